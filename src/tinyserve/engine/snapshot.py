"""Who is in the engine and who owns which block, at one moment between two steps.

Taken on the engine thread, only on request, and as cheaply as possible: copies of lists and a few
numbers for each sequence. What is made of it (JSON, owners of blocks) is computed by whoever asked,
elsewhere. Holds no prompt and no output.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from time import monotonic

from tinyserve.engine.job import Job
from tinyserve.engine.request import EngineStats
from tinyserve.engine.sequence import Sequence
from tinyserve.kv.manager import KVManager


@dataclass(frozen=True, slots=True)
class SequenceState:
    """One choice."""

    request_id: str
    choice: int
    client: str
    status: str  # waiting | running | swapped
    priority: int
    arrival: float
    num_prompt_tokens: int
    num_output_tokens: int
    num_computed_tokens: int
    num_cached_tokens: int
    blocks: tuple[int, ...]  # in the KV pool
    num_host_slots: int  # blocks in the host arena


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """What the engine holds at one moment."""

    time: float  # `time.monotonic`
    stats: EngineStats
    sequences: list[SequenceState]  # oldest first
    block_size: int
    refs: list[int]  # by block id: how many hold it
    cached_blocks: list[int]


def take_snapshot(jobs: Iterable[Job], kv: KVManager, stats: EngineStats) -> EngineSnapshot:
    """The engine's state between two steps. Of a request whose prompt is still being computed only
    choice 0 is listed: the others fork from it later.
    """
    sequences = [
        seq
        for job in jobs
        for seq in (job.sequences if job.has_forked else job.sequences[:1])
        if seq.finish_reason is None
    ]
    sequences.sort(key=lambda seq: seq.order)
    return EngineSnapshot(
        time=monotonic(),
        stats=stats,
        sequences=[_state_of(seq) for seq in sequences],
        block_size=kv.block_size,
        refs=kv.block_refs(),
        cached_blocks=kv.cached_blocks(),
    )


def _state_of(seq: Sequence) -> SequenceState:
    job = seq.job
    return SequenceState(
        request_id=job.request_id,
        choice=seq.choice,
        client=job.request.client,
        status=seq.status.name.lower(),
        priority=seq.priority,
        arrival=job.request.arrival,
        num_prompt_tokens=len(job.prompt_ids),
        num_output_tokens=len(seq.output_ids),
        num_computed_tokens=seq.num_computed,
        num_cached_tokens=job.num_cached_tokens,
        blocks=tuple(seq.table.blocks),
        num_host_slots=len(seq.table.host_slots),
    )
