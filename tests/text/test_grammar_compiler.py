"""`GrammarCompiler` as a cache and a queue: once each, bounded, and never in anybody's way."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from helpers.fake_service import tokenizer
from helpers.grammars import EOS_IDS, WIDTH, compiler, ids_of, tokens_of

from tinyserve.errors import QueueFullError, RequestError
from tinyserve.text import grammar as grammar_module
from tinyserve.text.grammar import (
    MAX_CACHED,
    MAX_CACHED_CHARACTERS,
    MAX_USES,
    NUM_THREADS,
    Grammar,
    GrammarCompiler,
)
from tinyserve.text.grammar_matcher import GrammarMatcher
from tinyserve.text.grammar_spec import GrammarSpec


def regex(value: str, param: str = "p") -> GrammarSpec:
    return GrammarSpec("regex", value, param=param)


class Gated(GrammarCompiler):
    """A compiler that waits at a gate; `started` counts what came so far."""

    def __init__(self, **options: Any) -> None:
        super().__init__(tokenizer(), WIDTH, EOS_IDS, **options)
        self._tokens = compiler()._token_table()
        self.gate = threading.Event()
        self.gate.set()
        self.started = 0

    def _compile(self, spec: GrammarSpec) -> Grammar:
        self.started += 1
        self.gate.wait()
        return super()._compile(spec)


@pytest.fixture
def gated() -> Iterator[Callable[..., Gated]]:
    made: list[Gated] = []

    def make(**options: Any) -> Gated:
        made.append(Gated(**options))
        return made[-1]

    yield make
    for one in made:
        one.gate.set()


def test_a_grammar_is_compiled_once(gated: Callable[..., Gated]) -> None:
    """GD-05: cached by content, whatever field it came in."""
    one = gated()
    first = one.compile(regex("a+", "guided_regex"))
    assert one.compile(regex("a+", "structured_outputs.regex")) is first
    assert one.compile(regex("b+")) is not first
    assert one.started == 2


def test_a_refusal_is_remembered_and_names_the_field_of_each_request(
    gated: Callable[..., Gated],
) -> None:
    one = gated()
    for param in ("guided_regex", "regex"):
        with pytest.raises(RequestError, match="unclosed") as caught:
            one.compile(regex("(a", param))
        assert caught.value.param == param
    assert one.started == 1


def test_those_who_come_together_share_one_compilation(gated: Callable[..., Gated]) -> None:
    one = gated()
    one.gate.clear()
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(one.compile, regex("a+")) for _ in range(4)]
        one.gate.set()
        assert len({id(future.result()) for future in waiting}) == 1
    assert one.started == 1


def test_what_takes_too_long_is_refused_and_finishes_unheard(gated: Callable[..., Gated]) -> None:
    """GD-05: a time limit; and once it is there after all, it is used."""
    one = gated(time_limit_s=0.05)
    one.gate.clear()
    for _ in range(3):
        with pytest.raises(RequestError, match="seconds to compile") as caught:
            one.compile(regex("a+"))
        assert caught.value.param == "p"
    assert one.started == 1
    (pending,) = one._results.values()
    one.gate.set()
    grammar = pending.result(10)
    assert one.compile(regex("a+")) is grammar


def test_a_busy_compiler_says_so_and_still_gives_what_it_has(gated: Callable[..., Gated]) -> None:
    one = gated(time_limit_s=0.05)
    ready = one.compile(regex("a+"))
    one.gate.clear()
    for i in range(NUM_THREADS):
        with pytest.raises(RequestError, match="seconds to compile"):
            one.compile(regex(f"b{i}"))
    with pytest.raises(QueueFullError):
        one.compile(regex("c"))
    assert not one._queue
    assert one.compile(regex("a+")) is ready
    one.gate.set()
    for pending in list(one._results.values()):
        pending.result(10)
    assert one.compile(regex("c")).matcher().masks(), "a refusal for want of room is forgotten"


def test_the_cache_is_bounded(gated: Callable[..., Gated]) -> None:
    one = gated()
    for i in range(MAX_CACHED + 10):
        one.compile(regex(f"a{i}"))
        one.compile(regex("kept"))
    assert len(one._results) == MAX_CACHED
    started = one.started
    one.compile(regex("kept"))
    assert one.started == started, "the least recently used goes first"
    one.compile(regex("a0"))
    assert one.started == started + 1


def test_the_cache_is_bounded_in_size_too(gated: Callable[..., Gated]) -> None:
    one = gated()
    for i in range(12):
        one.compile(regex("a" * 100_000 + str(i)))
    assert len(one._results) == MAX_CACHED_CHARACTERS // 100_000
    one.compile(regex("x"))
    assert regex("x") in one._results


def test_a_grammar_that_has_served_long_or_failed_is_compiled_anew(
    gated: Callable[..., Gated],
) -> None:
    """What its lexer has learnt only grows, up to a limit at which everybody would fail."""
    one = gated()
    first = one.compile(regex("a+"))
    for _ in range(MAX_USES):
        first.matcher()
    second = one.compile(regex("a+"))
    assert second is not first
    second._fail()
    assert one.compile(regex("a+")) is not second


def test_a_failure_in_use_is_an_error_and_never_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """llguidance's own mask is then that of an end; letting it through would cut the answer."""
    monkeypatch.setitem(grammar_module.LIMITS, "step_lexer_fuel", 1500)
    monkeypatch.setattr(grammar_module, "PROBE_STEPS", 1)
    one = GrammarCompiler(tokenizer(), WIDTH, EOS_IDS)
    one._tokens = compiler()._token_table()
    spec = regex("([a-z]{1,200}){1,200}")
    grammar = one.compile(spec)
    matcher = grammar.matcher()
    assert _follow(matcher, 200) > 0
    with pytest.raises(RequestError, match="any further"):
        matcher.masks()
    assert grammar.is_worn
    assert one.compile(spec).matcher().masks(), "the next request starts afresh"


def test_what_others_have_taught_the_lexer_makes_nobody_fail(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its states are counted for all who share it; one that would not fail alone must not."""
    monkeypatch.setitem(grammar_module.LIMITS, "max_lexer_states", 500)
    monkeypatch.setattr(grammar_module, "RENEWAL_S", 1e9)
    spec = regex("[ab]*a[ab]{30}")
    texts = [_random_ids(seed, 100) for seed in range(12)]
    alone = [_masks_along(compiled_anew(spec).matcher(), ids) for ids in texts]
    grammar = compiled_anew(spec)
    assert [_masks_along(grammar.matcher(), ids) for ids in texts] == alone
    assert grammar.is_worn, "the shared lexer was to reach its limit"


def compiled_anew(spec: GrammarSpec) -> Grammar:
    return GrammarCompiler(tokenizer(), WIDTH, EOS_IDS).compile(spec)


def _random_ids(seed: int, count: int) -> list[int]:
    dice = random.Random(seed)
    return [tokenizer().encode(dice.choice("ab"))[0] for _ in range(count)]


def _masks_along(matcher: GrammarMatcher, ids: list[int]) -> list[bytes]:
    masks = []
    for token_id in ids:
        (mask,) = matcher.masks()
        masks.append(mask.tobytes())
        matcher.take(token_id)
    return masks


def _follow(matcher: GrammarMatcher, most: int) -> int:
    """How many tokens it went before it failed."""
    for count in range(most):
        try:
            (mask,) = matcher.masks()
        except RequestError:
            return count
        matcher.take(max(ids_of(mask)))
    raise AssertionError("it never failed")


def test_other_threads_run_while_a_grammar_compiles() -> None:
    """GD-05: the interpreter is free meanwhile, so that streams go on."""
    hard = regex("|".join(f"w{i}[a-z]+x" for i in range(8000)))
    compiler().compile(regex("a"))
    ticks = 0
    with ThreadPoolExecutor(1) as pool:
        interval = sys.getswitchinterval()
        pending = pool.submit(compiler().compile, hard)
        while not pending.done():
            ticks += 1
            threading.Event().wait(0.001)
        assert sys.getswitchinterval() == interval
    assert ticks > 5


def test_the_token_table_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    table = compiler()._token_table()
    monkeypatch.setattr(grammar_module, "token_table", lambda *args: made.append(args) or table)
    one = GrammarCompiler(tokenizer(), WIDTH, EOS_IDS)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(one.compile, [regex(f"a{i}") for i in range(8)]))
    assert len(made) == 1


def test_compiling_leaves_the_stacks_of_other_threads_alone() -> None:
    before = threading.stack_size()
    compiler().compile(regex("stack"))
    assert threading.stack_size() == before


def test_nothing_is_made_before_the_first_grammar() -> None:
    one = GrammarCompiler(tokenizer(), WIDTH, EOS_IDS)
    assert one._tokens is None


def test_a_matcher_goes_on_after_its_grammar_was_dropped(gated: Callable[..., Gated]) -> None:
    one = gated()
    matcher = one.compile(regex("abc")).matcher()
    one._results.clear()
    for token in tokens_of(b"abc"):
        assert token in ids_of(matcher.masks()[0])
        matcher.take(token)
    assert ids_of(matcher.masks()[0]) == set(EOS_IDS)
