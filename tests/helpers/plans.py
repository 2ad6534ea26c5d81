"""Steps for a runner without a scheduler: blocks, chunks, and logits sorted by sequence.

Blocks are dealt from a shuffled deck, so that a sequence's blocks are never neighbours by luck.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinyserve.engine.plan import Chunk, StepPlan

F32 = NDArray[np.float32]


class Sequences:
    """Block tables and positions of a few sequences over one pool; frees only when told to."""

    def __init__(self, *, block_size: int, num_blocks: int, seed: int = 0) -> None:
        self.block_size = block_size
        self.free = list(range(num_blocks))
        random.Random(seed).shuffle(self.free)
        self.tables: dict[int, list[int]] = {}
        self.computed: dict[int, int] = {}

    def chunk(
        self, seq_id: int, token_ids: Sequence[int], *, num_logits: int | None = None
    ) -> Chunk:
        """The next `token_ids` of `seq_id`, with logits for all of them unless told otherwise."""
        start = self.computed.get(seq_id, 0)
        stop = start + len(token_ids)
        table = self.tables.setdefault(seq_id, [])
        while len(table) * self.block_size < stop:
            table.append(self.free.pop())
        self.computed[seq_id] = stop
        count = len(token_ids) if num_logits is None else num_logits
        return Chunk(seq_id, start, tuple(token_ids), tuple(table), count)

    def release(self, seq_id: int) -> None:
        self.free.extend(self.tables.pop(seq_id, ()))
        self.computed.pop(seq_id, None)


def run_chunks(runner: Any, chunks: Sequence[Chunk]) -> dict[int, F32]:
    """One step; the logits of each sequence, `[num_logits, vocab]`, as copies."""
    logits = runner.run(StepPlan(tuple(chunks))).array()
    rows: dict[int, F32] = {}
    first = 0
    for chunk in chunks:
        rows[chunk.seq_id] = np.array(logits[first : first + chunk.num_logits], dtype=np.float32)
        first += chunk.num_logits
    assert first == len(logits)
    return rows


def cuts(lengths: dict[int, int], schedule: str, seed: int = 0) -> Iterator[dict[int, int]]:
    """How many tokens each sequence advances, step by step, until all `lengths` are done.

    `whole`: everything in one step. `chunks:N`: N tokens a step each. `decode`: one at a time.
    `ragged`: random advances, some sequences sitting a step out.
    """
    left = dict(lengths)
    rand = random.Random(seed)
    while left:
        step = {}
        for seq_id, count in left.items():
            if schedule == "whole":
                take = count
            elif schedule == "decode":
                take = 1
            elif schedule == "ragged":
                take = rand.choice((0, 1, 1, 2, 5, 17, count))
            else:
                take = int(schedule.removeprefix("chunks:"))
            if take:
                step[seq_id] = min(take, count)
        if step:
            yield step
        left = {s: n - step.get(s, 0) for s, n in left.items() if n > step.get(s, 0)}


def run_schedule(
    runner: Any, sequences: Sequences, prompts: dict[int, list[int]], schedule: str, seed: int = 0
) -> dict[int, F32]:
    """The logits of all positions of each prompt, `[len(prompt), vocab]`, see `cuts`."""
    parts: dict[int, list[F32]] = {seq_id: [] for seq_id in prompts}
    for step in cuts({s: len(ids) for s, ids in prompts.items()}, schedule, seed):
        chunks = []
        for seq_id, take in step.items():
            start = sequences.computed.get(seq_id, 0)
            chunks.append(sequences.chunk(seq_id, prompts[seq_id][start : start + take]))
        for seq_id, rows in run_chunks(runner, chunks).items():
            parts[seq_id].append(rows)
    return {seq_id: np.concatenate(rows) for seq_id, rows in parts.items()}
