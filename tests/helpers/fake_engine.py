"""An engine over a fake model that computes nothing but would notice every mistake of bookkeeping.

The fake's KV-cache holds a (position, token) pair per physical slot; swaps and copies are carried
out literally. Its next token is a hash of all earlier tokens *as read back from those slots*, so a
wrong block table, a missed copy, a stale swap or a wrong prefix hit changes the output, and usually
fails an assertion first.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tinyserve.config import SchedulerConfig
from tinyserve.engine.core import EngineCore
from tinyserve.engine.plan import Chunk, StepPlan
from tinyserve.engine.request import (
    EngineRequest,
    Pooling,
    RequestOutput,
    TextOutput,
    TokenGrammar,
)
from tinyserve.engine.sampling import SampledToken, SampleRow, SamplingParams
from tinyserve.engine.sequence import Sequence as EngineSequence
from tinyserve.kv.manager import KVManager
from tinyserve.spec.drafter import Drafter

VOCAB = 101
HIDDEN = 4


def digest(*parts: object) -> int:
    """A number that any change of `parts` changes; the same in every process."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=6).digest(), "big")


def first_allowed(row: SampleRow, token: int, vocab: int) -> int | None:
    """`token`, or the next one after it that the row's bans and mask leave; None: there is none."""
    for token_id in (*range(token, vocab), *range(token)):
        is_masked = row.mask is not None and not int(row.mask[token_id // 32]) >> token_id % 32 & 1
        if token_id not in row.banned_ids and not is_masked:
            return token_id
    return None


class FakeRunner:
    """Runs plans on slots of (position, token); see the module. `plans` keeps what it ran."""

    def __init__(self, num_blocks: int, block_size: int, num_swap_blocks: int) -> None:
        self.block_size = block_size
        self.blocks: list[list[Any]] = [[None] * block_size for _ in range(num_blocks)]
        self.host: list[list[Any] | None] = [None] * num_swap_blocks
        self.plans: list[StepPlan] = []
        self.sequences: dict[int, EngineSequence] = {}  # what each sequence should hold
        self.nan_token: int | None = None  # logits after this token are not numbers
        self.error: Exception | None = None

    def run(self, plan: StepPlan) -> FakeLogits:
        if self.error is not None:
            raise self.error
        self.plans.append(plan)
        self._check(plan)
        for block, slot in plan.swap_out:
            self.host[slot] = list(self.blocks[block])
        for slot, block in plan.swap_in:
            saved = self.host[slot]
            assert saved is not None, f"host slot {slot} holds nothing"
            self.blocks[block] = list(saved)
        for source, target in plan.copies:
            self.blocks[target] = list(self.blocks[source])
        contexts: list[tuple[int, ...]] = []
        for chunk in plan.chunks:
            contexts += self._compute(chunk)
        return FakeLogits(contexts, self.nan_token)

    def memory_report(self) -> dict[str, Any]:
        return {"weights": {"reserved": 0, "touched": 0}}

    def _compute(self, chunk: Chunk) -> list[tuple[int, ...]]:
        """Write the chunk's tokens and read all back: the context of each row with logits."""
        size, end = self.block_size, chunk.start + len(chunk.token_ids)
        assert len(chunk.block_ids) == -(-end // size), "block_ids cover the chunk and no more"
        for position, token in enumerate(chunk.token_ids, chunk.start):
            self.blocks[chunk.block_ids[position // size]][position % size] = (position, token)
        slots = [slot for block in chunk.block_ids for slot in self.blocks[block]][:end]
        assert all(slot is not None for slot in slots), "a slot was read that nobody wrote"
        assert [position for position, _ in slots] == list(range(end)), "KV of other positions"
        tokens = tuple(token for _, token in slots)
        if chunk.seq_id in self.sequences:
            known = self.sequences[chunk.seq_id].token_ids
            assert list(tokens[: len(known)]) == known[:end], "KV of other tokens"
        return [tokens[: row + 1] for row in range(end - chunk.num_logits, end)]

    def _check(self, plan: StepPlan) -> None:
        """Nothing within the step may depend on the order inside a group of effects."""
        for chunk in plan.chunks:
            assert chunk.token_ids, "an empty chunk"
            assert 0 <= chunk.num_logits <= len(chunk.token_ids), "logits of rows not computed"
            assert len(set(chunk.block_ids)) == len(chunk.block_ids)
        targets = [block for _, block in (*plan.swap_in, *plan.copies)]
        assert len(set(targets)) == len(targets), "two transfers fill one block"
        for chunk, other in itertools.permutations(plan.chunks, 2):
            assert chunk.seq_id != other.seq_id
            shared = set(chunk.block_ids[chunk.start // self.block_size :]) & set(other.block_ids)
            assert not shared, "a block is written while another sequence owns it"
        out_slots = [slot for _, slot in plan.swap_out]
        in_slots = [slot for slot, _ in plan.swap_in]
        assert len(set(out_slots)) == len(out_slots)
        assert not set(out_slots) & set(in_slots), "a slot is overwritten before it is read"
        sources = {source for source, _ in plan.copies}
        assert not sources & set(targets), "a copy's source is overwritten before it is read"


@dataclass
class FakeLogits:
    """Rows as the contexts they were computed from."""

    contexts: list[tuple[int, ...]]
    nan_token: int | None = None

    def sample(self, rows: list[SampleRow]) -> list[SampledToken]:
        return [self._state(row) if row.wants_state else self._sample(row) for row in rows]

    def _state(self, row: SampleRow) -> SampledToken:
        """A hidden state of four numbers that any change of the context changes."""
        context = self.contexts[row.row]
        assert tuple(row.prompt_ids[: row.position]) == context, "the row is another's"
        is_nan = self.nan_token is not None and context[-1] == self.nan_token
        numbers = [digest(context, i) % 2001 / 1000 - 1 for i in range(HIDDEN)]
        return SampledToken(-1, is_nan=is_nan, state=np.array(numbers, np.float32))

    def _sample(self, row: SampleRow) -> SampledToken:
        context = self.contexts[row.row]
        assert row.position == len(context), "the row's position is not its context's end"
        if row.target is None:
            known = (*row.prompt_ids, *row.output_ids, *row.drafted_ids)
            assert known == context, "the row is another's"
        key = () if row.params.is_greedy else (row.seed, row.choice, row.position)
        drawn = first_allowed(row, digest(context, *key) % VOCAB, VOCAB)
        if drawn is None and row.target is None:
            return SampledToken(0, is_blocked=True)
        token = drawn if row.target is None else row.target
        is_nan = self.nan_token is not None and context[-1] == self.nan_token
        if row.num_logprobs is None:
            return SampledToken(token, is_nan=is_nan)
        top = [(digest(context, i) % VOCAB, -float(i + 1)) for i in range(row.num_logprobs)]
        logprob = -digest(context, token, "logprob") % 1000 / 100
        return SampledToken(token, logprob, 1, top, is_nan)


class FakeText:
    """Text output whose token 7 reads "<7>" and whose stop strings are whole tokens."""

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self.stops = stops
        self.stop_hit: str | None = None
        self.checked = ""

    def push(self, token_id: int, can_stop: bool) -> str:
        text = f"<{token_id}>"
        self.checked = self.checked + text if can_stop else ""
        self.stop_hit = next((stop for stop in self.stops if stop in self.checked), None)
        return "" if self.stop_hit else text

    def flush(self) -> str:
        return "."


@dataclass
class Choice:
    """What a choice has received so far."""

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[SampledToken] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    prompt_logprobs: list[SampledToken | None] | None = None
    num_cached_tokens: int = 0
    error: Exception | None = None
    embedding: list[float] | None = None

    def take(self, output: RequestOutput) -> None:
        assert self.finish_reason is None, "an output after the last"
        self.token_ids += output.new_token_ids
        self.text += output.new_text
        self.logprobs += output.logprobs or []
        if output.logprobs is not None:
            assert len(output.logprobs) == len(output.new_token_ids)
        if output.prompt_logprobs is not None:
            assert self.prompt_logprobs is None
            self.prompt_logprobs = output.prompt_logprobs
        self.finish_reason, self.stop_reason = output.finish_reason, output.stop_reason
        self.num_cached_tokens, self.error = output.num_cached_tokens, output.error
        if output.embedding is not None:
            self.embedding = output.embedding.tolist()


class FakeEngine:
    """EngineCore, KVManager and FakeRunner together; checks every invariant after every step."""

    def __init__(
        self,
        *,
        num_blocks: int = 64,
        block_size: int = 4,
        num_swap_blocks: int = 0,
        caching: bool = True,
        eos_token_ids: tuple[int, ...] = (),
        proposer: Any = None,
        controller: Any = None,
        check: bool = True,
        **scheduler: Any,
    ) -> None:
        self.check = check
        self.config = SchedulerConfig(**scheduler)
        self.kv = KVManager(
            num_blocks,
            block_size,
            num_swap_blocks=num_swap_blocks,
            enable_prefix_caching=caching,
        )
        self.runner = FakeRunner(num_blocks, block_size, num_swap_blocks)
        self.core = EngineCore(
            self.runner,
            self.kv,
            self.config,
            eos_token_ids=eos_token_ids,
            vocab_size=VOCAB,
            drafter=Drafter(proposer, controller) if proposer is not None else None,
        )
        self.results: dict[str, list[Choice]] = {}
        self.num_added = 0

    @property
    def last_plan(self) -> StepPlan:
        return self.runner.plans[-1]

    def add(
        self,
        prompt: Iterable[int],
        *,
        request_id: str | None = None,
        priority: int = 0,
        client: str = "",
        cache_salt: str | None = None,
        bad_words_ids: tuple[tuple[int, ...], ...] = (),
        text: bool = False,
        pooling: Pooling | None = None,
        grammar: Callable[[], TokenGrammar] | None = None,
        **params: Any,
    ) -> str:
        """Add a greedy request; requests arrive in the order of their adding."""
        request_id = request_id or f"r{self.num_added}"
        params.setdefault("temperature", 0.0)
        if pooling is not None:
            params.setdefault("max_tokens", 0)
        sampling = SamplingParams(**params)

        def make_text() -> TextOutput:
            return FakeText(sampling.stop)

        request = EngineRequest(
            request_id=request_id,
            prompt_token_ids=list(prompt),
            params=sampling,
            priority=priority,
            arrival=float(self.num_added),
            cache_salt=cache_salt,
            client=client,
            new_text=make_text if text else None,
            bad_words_ids=bad_words_ids,
            pooling=pooling,
            new_grammar=grammar,
        )
        self.core.add_request(request)
        self.num_added += 1
        self.results[request_id] = [Choice() for _ in range(sampling.n)]
        if request_id in self.core._jobs:
            sequences = self.core._jobs[request_id].sequences
            self.runner.sequences.update({seq.seq_id: seq for seq in sequences})
        return request_id

    def step(self) -> list[RequestOutput]:
        outputs = self.core.step()
        if self.check:
            self.kv.check()
        assert self.core.stats().num_running <= self.config.max_num_seqs
        for output in outputs:
            self.results[output.request_id][output.index].take(output)
        return outputs

    def run(self, max_steps: int = 10_000) -> None:
        """Step until there is no more work."""
        for _ in range(max_steps):
            if not self.core.has_work():
                return
            self.step()
        raise AssertionError(f"still working after {max_steps} steps: {self.core.stats()}")

    def generate(self, prompt: Iterable[int], **options: Any) -> list[int]:
        """The tokens of choice 0 of one request, run with whatever else is there."""
        request_id = self.add(prompt, **options)
        self.run()
        return self.results[request_id][0].token_ids

    def planned_ids(self) -> list[str]:
        """Request ids of the last step's chunks, in order."""
        chunks = self.last_plan.chunks
        return [self.runner.sequences[c.seq_id].job.request.request_id for c in chunks]

    def status(self, request_id: str, choice: int = 0) -> str:
        """The status of a choice, by the sequence that the fake model remembers."""
        for seq in self.runner.sequences.values():
            if seq.job.request.request_id == request_id and seq.choice == choice:
                return seq.status.name.lower()
        raise KeyError(request_id)

    def assert_empty(self) -> None:
        """Everything was given back."""
        self.kv.check()
        stats = self.core.stats()
        assert (stats.num_waiting, stats.num_running, stats.num_swapped) == (0, 0, 0)
        assert stats.num_free_blocks + stats.num_cached_blocks == stats.num_total_blocks
        assert stats.num_free_swap_blocks == stats.num_total_swap_blocks
        assert not self.core._jobs
        self.kv.clear_cache()
        assert self.kv.num_free == self.kv.num_blocks


def roomy_engine() -> FakeEngine:
    """Plenty of everything, no cache, a prompt a step: the truth for all others."""
    return FakeEngine(
        num_blocks=128,
        block_size=16,
        max_num_seqs=64,
        max_num_batched_tokens=4096,
        caching=False,
        check=False,
    )


def generate_alone(prompt: Iterable[int], **options: Any) -> list[list[int]]:
    """The tokens of a request's choices with an engine of its own."""
    engine = roomy_engine()
    request_id = engine.add(prompt, **options)
    engine.run()
    return [choice.token_ids for choice in engine.results[request_id]]
