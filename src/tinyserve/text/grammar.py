"""`GrammarCompiler`: constraints on an answer's text, compiled by llguidance within bounds.

Compiling runs on a thread of its own, which the caller waits for up to a time limit. Native code
cannot be stopped: a grammar that takes too long is refused, the refusal is cached, and the thread
finishes without anybody waiting. llguidance releases the GIL, so that streams keep flowing. Its
own limits bound the work of compiling and of each mask. Nothing is imported or built before the
first grammar.

Invariants: the same spec is compiled once at a time; the cache is bounded in number and size, and
holds refusals too; a grammar is handed out only after it has led somewhere (`_probe`).
"""

from __future__ import annotations

import concurrent.futures
import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import numpy as np

from tinyserve.errors import QueueFullError, RequestError
from tinyserve.text.grammar_matcher import GrammarMatcher, reason
from tinyserve.text.grammar_source import source_of
from tinyserve.text.grammar_spec import GrammarSpec
from tinyserve.text.grammar_tokens import token_table
from tinyserve.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    import llguidance

logger = logging.getLogger("tinyserve")

TIME_LIMIT_S = 5.0
FIRST_TIME_S = 30.0  # added while the token table is being built
MAX_CACHED = 64
MAX_CACHED_CHARACTERS = 1 << 20  # in all cached specs: a measure of the grammars' size
NUM_THREADS = 2
RENEWAL_S = 0.25  # a grammar that took longer is not compiled again while the engine waits for it
MAX_USES = 256  # choices that may share one lexer, whose states only ever grow
PROBE_STEPS = 24
# The compiler recurses as deep as a grammar's rules refer to each other; with as many of them as
# `grammar_source.MAX_CHARACTERS` hold, this is twice what it needs. Only what is used takes memory.
STACK_BYTES = 256 << 20

# Work and memory, in llguidance's units; the fuel of a step is good for some ten milliseconds.
LIMITS: dict[str, Any] = {
    "initial_lexer_fuel": 1_000_000,
    "max_grammar_size": 500_000,
    "step_lexer_fuel": 60_000,
    "step_max_items": 20_000,
    "max_items_in_row": 2_000,
    "max_lexer_states": 100_000,
    "verbose_errors": False,
}


class Grammar:
    """A compiled constraint. Its matchers share what the lexer has learnt, and nothing else.

    `holds_start`: it applies from the text's first character on, with no free thinking before.
    `renew` compiles it once more, for a matcher that shares nothing.
    """

    def __init__(
        self,
        matcher: llguidance.LLMatcher,
        width: int,
        eos_ids: frozenset[int],
        *,
        holds_start: bool = True,
        renew: Callable[[], llguidance.LLMatcher] | None = None,
    ) -> None:
        self._fresh = matcher
        self._renew = renew
        self._width = width
        self.eos_ids = eos_ids
        self.holds_start = holds_start
        self._num_uses = 0
        self._has_failed = False

    def matcher(self) -> GrammarMatcher:
        """The state of one more choice, at its beginning. Takes microseconds."""
        self._num_uses += 1
        return GrammarMatcher(
            self._fresh.deep_copy(), self._width, self.eos_ids, self._fail, self._renew
        )

    @property
    def is_worn(self) -> bool:
        """Whether its shared lexer has grown for too long, or hit a limit: it is compiled anew."""
        return self._has_failed or self._num_uses >= MAX_USES

    def _fail(self) -> None:
        self._has_failed = True


class Pending(Future[Grammar]):
    """The compilation of one spec; `is_late` once a caller has given up waiting for it."""

    is_late = False

    @property
    def is_worn(self) -> bool:
        """Whether it is there, but to be compiled anew."""
        if self.cancelled():
            return True
        if not self.done():
            return False
        error = self.exception()
        return self.result().is_worn if error is None else not isinstance(error, RequestError)


class GrammarCompiler:
    """Grammars for one model. `width`: that of the logits. Safe to share between threads."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        width: int,
        eos_ids: Sequence[int],
        *,
        time_limit_s: float = TIME_LIMIT_S,
    ) -> None:
        self._tokenizer = tokenizer
        self._width = width
        self._eos_ids = tuple(eos_ids)
        self._time_limit_s = time_limit_s
        self._lock = threading.Lock()  # guards the three below
        self._results: OrderedDict[GrammarSpec, Pending] = OrderedDict()
        self._queue: deque[tuple[GrammarSpec, Pending]] = deque()
        self._num_running = 0
        self._tokens_lock = threading.Lock()
        self._tokens: llguidance.LLTokenizer | None = None

    def compile(self, spec: GrammarSpec) -> Grammar:
        """The grammar of `spec`, from the cache or compiled now; may block up to the time limit.

        Raises RequestError naming `spec.param`, with llguidance's reason, for what is wrong, not
        supported or too complex; QueueFullError while others' grammars keep the compiler busy.
        """
        pending = self.submit(spec)
        concurrent.futures.wait([pending], self.patience(pending))
        return self.result(spec, pending)

    def submit(self, spec: GrammarSpec) -> Pending:
        """Look `spec` up, or begin to compile it. Does not wait: that is for the caller, no longer
        than `patience`, and then to take the `result`.
        """
        with self._lock:
            pending = self._results.get(spec)
            if pending is None or pending.is_worn:
                pending = self._results[spec] = Pending()
                self._queue.append((spec, pending))
                self._start_next()
            self._results.move_to_end(spec)
            self._evict()
            return pending

    def _evict(self) -> None:
        """Keep what was used last, within the limits; under the lock."""
        num_characters = sum(map(_size, self._results))
        while len(self._results) > MAX_CACHED or num_characters > MAX_CACHED_CHARACTERS:
            spec, _ = self._results.popitem(last=False)
            num_characters -= _size(spec)

    def patience(self, pending: Pending) -> float:
        """How long to wait for it, in seconds."""
        if pending.is_late or pending.done():
            return 0.0
        return self._time_limit_s + (FIRST_TIME_S if self._tokens is None else 0.0)

    def result(self, spec: GrammarSpec, pending: Pending) -> Grammar:
        """The grammar, or the error why there is none (yet): those of `compile`. What has not begun
        is cancelled.
        """
        if not pending.done() and not pending.cancel():
            pending.is_late = True
            raise RequestError(
                f"the grammar takes longer than {self._time_limit_s:g} seconds to compile",
                param=spec.param,
            )
        if pending.cancelled():  # it has never begun
            self._forget(spec, pending)
            raise QueueFullError("the grammar compiler is busy; try again")
        try:
            return pending.result()
        except RequestError as error:  # perhaps another request's: the field is this one's
            raise RequestError(error.message, param=spec.param) from None

    def _forget(self, spec: GrammarSpec, pending: Pending) -> None:
        with self._lock:
            if self._results.get(spec) is pending:
                del self._results[spec]
            if (spec, pending) in self._queue:
                self._queue.remove((spec, pending))

    def _start_next(self) -> None:
        """Start a thread for what waits, if one may run; under the lock."""
        while self._queue and self._num_running < NUM_THREADS:
            spec, pending = self._queue.popleft()
            if not pending.set_running_or_notify_cancel():
                continue
            # A daemon, so that a compilation without end does not keep the process from ending. A
            # new thread for each, so that the memory of a deep stack is given back.
            thread = threading.Thread(
                target=self._run, args=(spec, pending), name="grammar-compiler", daemon=True
            )
            usual = threading.stack_size(STACK_BYTES)  # for every new thread, so set back at once
            try:
                thread.start()
                self._num_running += 1
            except RuntimeError as error:  # the system has no more threads
                pending.set_exception(QueueFullError(f"a grammar cannot be compiled now: {error}"))
            finally:
                threading.stack_size(usual)

    def _run(self, spec: GrammarSpec, pending: Pending) -> None:
        try:
            pending.set_result(self._compile(spec))
        except RequestError as error:
            pending.set_exception(error)
        except BaseException as error:  # whoever waits must hear of it, a panic of Rust's too
            logger.exception("a grammar could not be compiled")
            pending.set_exception(RequestError(f"the grammar cannot be compiled: {error}"))
        finally:
            with self._lock:
                self._num_running -= 1
                self._start_next()

    def _compile(self, spec: GrammarSpec) -> Grammar:
        from llguidance import LLMatcher, LLParserLimits

        tokens = self._token_table()
        source = source_of(spec, self._tokenizer.special_id)
        try:
            source.encode()
        except UnicodeEncodeError:
            raise RequestError("the grammar holds a lone surrogate, no character") from None

        def compiled() -> LLMatcher:
            return LLMatcher(tokens, source, log_level=0, limits=LLParserLimits(**LIMITS))

        began = time.monotonic()
        matcher = compiled()
        if matcher.is_error():
            raise RequestError(f"the grammar is refused: {reason(matcher.get_error())}")
        grammar = Grammar(
            matcher,
            self._width,
            frozenset(tokens.eos_tokens),
            holds_start=spec.after is None,
            renew=compiled if time.monotonic() - began <= RENEWAL_S else None,
        )
        _probe(grammar)
        return grammar

    def _token_table(self) -> llguidance.LLTokenizer:
        with self._tokens_lock:
            if self._tokens is None:
                self._tokens = token_table(self._tokenizer, self._width, self._eos_ids)
            return self._tokens


def _size(spec: GrammarSpec) -> int:
    return len(spec.value) + (0 if spec.or_else is None else _size(spec.or_else))


def _probe(grammar: Grammar) -> None:
    """Follow the grammar for some tokens, at random but always the same.

    What no text satisfies, or what outgrows the limits at once, is refused before it is used.
    """
    matcher = grammar.matcher()
    dice = np.random.default_rng(0)
    for step in range(PROBE_STEPS):
        try:
            (mask,) = matcher.masks()
        except RequestError as error:
            what = "is too complex" if step else "allows no text, or is too complex"
            raise RequestError(f"the grammar {what}: {error.message}") from None
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
        token = int(dice.choice(allowed))
        if token in grammar.eos_ids:
            return
        matcher.take(token)
