"""`TraceRecorder`: what every step did, while a trace is recorded.

Lives on the engine thread and keeps plain numbers, at most `max_chunks` of them; beyond that it
only counts what it missed. What a trace viewer wants is made of it elsewhere (`trace_events.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from tinyserve.engine.plan import Chunk
from tinyserve.engine.request import EngineStats, RequestOutput
from tinyserve.engine.sequence import Sequence, Status
from tinyserve.engine.step import Lap

Key = tuple[str, int]  # request id, choice
Kind = Literal["prefill", "decode", "verify", "recompute"]
MAX_CHUNKS = 100_000


@dataclass(frozen=True, slots=True)
class TracedChunk:
    """One sequence's share of a step. `num_accepted` of its `num_drafts` drafts were right."""

    key: Key
    kind: Kind
    start: int
    num_tokens: int
    num_drafts: int
    num_accepted: int


@dataclass(frozen=True, slots=True)
class TracedEvent:
    """Something that happened to a sequence: admitted, preempted, resumed, finished."""

    key: Key
    name: str
    detail: str = ""


@dataclass(slots=True)
class TracedStep:
    """One step; times are of `time.monotonic`. The gauges are those after it."""

    lap: tuple[float, float, float, float, float]  # begin, planned, ran, drawn, end
    num_swapped_out: int
    num_swapped_in: int
    num_copies: int
    num_running: int
    num_waiting: int
    num_free_blocks: int
    chunks: list[TracedChunk] = field(default_factory=list)
    events: list[TracedEvent] = field(default_factory=list)


class TraceRecorder:
    """Records steps. `steps` may be read once nothing is added any more."""

    def __init__(self, max_chunks: int = MAX_CHUNKS) -> None:
        self.steps: list[TracedStep] = []
        self.num_missed = 0  # steps that were not recorded any more
        self._room = max_chunks
        self._known: dict[Key, Sequence] = {}
        self._preempted: set[Key] = set()

    def add(self, lap: Lap, outputs: list[RequestOutput], stats: EngineStats) -> None:
        """Take down one step."""
        self._room -= 1 + len(lap.step.seqs)
        if self._room < 0:
            self.num_missed += 1
            return
        plan = lap.step.plan
        step = TracedStep(
            (lap.begin, lap.planned, lap.ran, lap.drawn, lap.end),
            len(plan.swap_out),
            len(plan.swap_in),
            len(plan.copies),
            stats.num_running,
            stats.num_waiting + stats.num_swapped,
            stats.num_free_blocks + stats.num_cached_blocks,
        )
        new_ids = {(o.request_id, o.index): o.new_token_ids for o in outputs}
        for seq, chunk in zip(lap.step.seqs, plan.chunks, strict=True):
            key = (seq.job.request_id, seq.choice)
            self._arrive(key, seq, chunk, step)
            step.chunks.append(_chunk(key, seq, chunk, new_ids.get(key, [])))
        self._depart(step)
        self.steps.append(step)

    def _arrive(self, key: Key, seq: Sequence, chunk: Chunk, step: TracedStep) -> None:
        """Note a sequence that this step computes and that was not running in the step before."""
        if key in self._preempted:
            self._preempted.discard(key)
            step.events.append(TracedEvent(key, "resumed"))
        elif key not in self._known and _is_first(seq, chunk):
            cached = seq.job.num_cached_tokens
            step.events.append(TracedEvent(key, "admitted", f"{cached} tokens cached"))
        self._known[key] = seq

    def _depart(self, step: TracedStep) -> None:
        """Note the known sequences that lost their seat, or ended, in this step or since."""
        ended = []
        for key, seq in self._known.items():
            if seq.status is Status.FINISHED:
                ended.append(key)
                step.events.append(TracedEvent(key, "finished", seq.finish_reason or ""))
            elif seq.status is not Status.RUNNING and key not in self._preempted:
                self._preempted.add(key)
                how = "swap" if seq.status is Status.SWAPPED else "recompute"
                step.events.append(TracedEvent(key, "preempted", how))
        for key in ended:
            del self._known[key]
            self._preempted.discard(key)


def _is_first(seq: Sequence, chunk: Chunk) -> bool:
    """Whether this is the first chunk of its sequence, as far as can be told."""
    return len(seq.output_ids) <= 1 and chunk.start <= seq.job.num_cached_tokens


def _chunk(key: Key, seq: Sequence, chunk: Chunk, new_token_ids: list[int]) -> TracedChunk:
    num_drafts, num_tokens = chunk.num_drafts, len(chunk.token_ids)
    kind: Kind = "decode"
    if num_drafts:
        kind = "verify"
    elif chunk.start < len(seq.job.prompt_ids):
        kind = "prefill"
    elif num_tokens > 1:
        kind = "recompute"
    accepted = chunk.num_accepted(new_token_ids)
    return TracedChunk(key, kind, chunk.start, num_tokens, num_drafts, accepted)
