"""Driving a real engine: requests come in by and by, results are collected as users get them."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any

from exact_models import MAX_LEN, VOCAB
from helpers.plans import F32

from tinyserve.config import SchedulerConfig
from tinyserve.engine.core import EngineCore
from tinyserve.engine.outputs import Choice, Output
from tinyserve.engine.plan import StepPlan
from tinyserve.engine.request import EngineRequest
from tinyserve.engine.runner import ModelRunner, StepLogits
from tinyserve.engine.sampling import SampledToken, SampleRow
from tinyserve.engine.sequence import Sequence as EngineSequence
from tinyserve.kv.manager import KVManager
from tinyserve.spec.drafter import Drafter
from tinyserve.spec.proposer import Draft, Known

Results = dict[str, Output]


def make_core(
    runner: Any,
    *,
    blocks: int,
    block_size: int,
    num_swap_blocks: int = 0,
    enable_prefix_caching: bool = True,
    proposer: Any = None,
    **scheduler: Any,
) -> EngineCore:
    """An engine over any runner; `scheduler` are fields of SchedulerConfig."""
    kv = KVManager(
        blocks,
        block_size,
        num_swap_blocks=num_swap_blocks,
        enable_prefix_caching=enable_prefix_caching,
    )
    config = SchedulerConfig(max_model_len=MAX_LEN, **scheduler)
    drafter = Drafter(proposer) if proposer is not None else None
    return EngineCore(runner, kv, config, vocab_size=VOCAB, drafter=drafter)


def serve(
    core: EngineCore, requests: Iterable[EngineRequest], rand: random.Random | None = None
) -> Results:
    """Run until all are done. With `rand`, a few requests arrive before each step."""
    waiting = list(requests)
    results: Results = {}
    for _ in range(100_000):
        count = len(waiting) if rand is None else rand.choice((0, 1, 2, 5))
        for request in waiting[:count]:
            core.add_request(request)
            choices = [Choice(index) for index in range(request.params.n)]
            results[request.request_id] = Output(None, list(request.prompt_token_ids), choices)
        del waiting[:count]
        if core.has_work():
            for output in core.step():
                assert output.error is None
                results[output.request_id].add(output)
                if output.prompt_logprobs is not None:
                    results[output.request_id].prompt_logprobs = output.prompt_logprobs
        elif not waiting:
            return results
    raise AssertionError("the requests do not end")


def differences(results: Results, truth: Results) -> list[str]:
    """What a user would see differently, field by field; cached tokens may differ."""
    found = []
    for request_id, want in truth.items():
        got = results[request_id]
        if got.prompt_logprobs != want.prompt_logprobs:
            found.append(f"{request_id}: prompt_logprobs")
        for a, b in zip(got.outputs, want.outputs, strict=True):
            for name in ("token_ids", "text", "logprobs", "finish_reason", "stop_reason"):
                if getattr(a, name) != getattr(b, name):
                    found.append(f"{request_id}.{a.index}: {name}")
    return found


class RecordingRunner:
    """A runner that keeps every row of logits beside the tokens it was computed from."""

    def __init__(self, runner: ModelRunner) -> None:
        self.runner = runner
        self.core: EngineCore  # set once there is one
        self.rows: list[tuple[tuple[int, ...], bytes]] = []

    def run(self, plan: StepPlan) -> RecordedLogits:
        known = {
            seq.seq_id: seq for job in self.core._jobs.values() for seq in job.sequences
        }  # a chunk does not say what came before it
        logits = self.runner.run(plan)
        rows = logits.array()
        first = 0
        for chunk in plan.chunks:
            seq: EngineSequence = known[chunk.seq_id]
            tokens = (*seq.token_ids[: chunk.start], *chunk.token_ids)
            for offset in range(chunk.num_logits):
                end = len(tokens) - chunk.num_logits + offset + 1
                self.rows.append((tokens[:end], rows[first + offset].tobytes()))
            first += chunk.num_logits
        return RecordedLogits(logits)

    def memory_report(self) -> dict[str, Any]:
        return self.runner.memory_report()

    def wrong_rows(self, finished: Sequence[Sequence[int]], truth: Any) -> list[int]:
        """Positions of rows that differ from the truth. `finished`: all sequences at their end."""
        index: dict[tuple[int, ...], F32] = {}
        for tokens in finished:
            logits = truth.logits(tokens)
            for end in range(1, len(tokens) + 1):
                index[tuple(tokens[:end])] = logits[end - 1]
        wrong = []
        for context, row in sorted(self.rows, key=lambda item: -len(item[0])):
            if context not in index:  # after a wrong draft; shorter ones of its chunk come with it
                logits = truth.compute(context)
                index.update(
                    {
                        context[: len(context) - i]: logits[-1 - i]
                        for i in range(min(6, len(context)))
                    }
                )
            if row != index[context].tobytes():
                wrong.append(len(context) - 1)
        return wrong


class RecordedLogits:
    """Sampling as it was; the rows have been copied."""

    def __init__(self, logits: StepLogits) -> None:
        self._logits = logits

    def sample(self, rows: list[SampleRow]) -> list[SampledToken]:
        return self._logits.sample(rows)


class HalfOracle:
    """Proposes what will be drawn, with mistakes; `futures` are finished sequences."""

    def __init__(
        self, futures: Iterable[Sequence[int]], rand: random.Random, vocab: int, max_drafts: int
    ) -> None:
        self.futures = [list(tokens) for tokens in futures]
        self.rand, self.vocab, self.max_drafts = rand, vocab, max_drafts

    def propose(self, wanted: Sequence[tuple[Known, int]]) -> list[Draft]:
        return [Draft(self._next(seq.token_ids, most)) for seq, most in wanted]

    def forget(self, seq: Known) -> None:
        pass

    def _next(self, token_ids: list[int], most: int) -> list[int]:
        count = min(self.rand.randint(0, self.max_drafts), most)
        length = len(token_ids)
        after = [f[length:] for f in self.futures if f[:length] == token_ids]
        drafts = (after[0] if after else [])[:count]
        drafts += [0] * (count - len(drafts))
        return [
            self.rand.randrange(self.vocab) if self.rand.random() < 0.3 else draft
            for draft in drafts
        ]
