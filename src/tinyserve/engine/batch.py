"""From a step's chunks to the ragged batch that the kernels read.

Owns the block tables as arrays: each is kept while its sequence grows, and all of them in one array
while nobody's blocks change. The scheduler hands out the same tuple of block ids until then, which
is how it is noticed.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain

import numpy as np

from tinyserve.engine.draw_rows import extended
from tinyserve.engine.plan import Chunk
from tinyserve.kernels.ops import I32, Batch
from tinyserve.kv.pool import KVPool

MAX_TABLES = 4096  # of sequences, most of them long gone


class BatchBuilder:
    """Makes batches over the blocks of one pool."""

    def __init__(self, pool: KVPool) -> None:
        self._pool = pool
        self._block_size = pool.layout.block_size
        self._tables: dict[int, tuple[tuple[int, ...], I32]] = {}  # by sequence
        self._blocks: Sequence[tuple[int, ...]] = ()  # of the latest batch
        self._flat = np.zeros(0, np.int32), np.zeros(1, np.int32)

    def of(self, chunks: Sequence[Chunk]) -> Batch:
        """The chunks, flattened. Nearly every step is decodes, so there are no loops over rows."""
        size = self._block_size
        seq_ids, starts, token_ids, blocks, num_logits = zip(*chunks, strict=True)
        lengths = [len(ids) for ids in token_ids]
        ends = list(accumulate(lengths))
        num_rows = ends[-1]
        block_ids, block_starts = self._flat_tables(seq_ids, blocks)
        positions = np.array(starts, np.int32)
        first_blocks = block_starts[:-1]
        if num_rows > len(chunks):
            rows_before = np.array([0, *ends[:-1]], np.int32)
            first_blocks = np.repeat(first_blocks, lengths)
            positions = np.repeat(positions - rows_before, lengths)
            positions += np.arange(num_rows, dtype=np.int32)
        slots = block_ids[first_blocks + positions // size] * size + positions % size
        if sum(num_logits) < num_rows:
            last = [range(end - n, end) for end, n in zip(ends, num_logits, strict=True)]
            logit_rows = np.array([*chain(*last)], np.int32)
        else:
            logit_rows = np.arange(num_rows, dtype=np.int32)
        return Batch(
            token_ids=np.array([*chain(*token_ids)], np.int32),
            positions=positions,
            slots=slots,
            seq_starts=np.array([0, *ends], np.int32),
            block_ids=block_ids,
            block_starts=block_starts,
            logit_rows=logit_rows,
        )

    def _flat_tables(
        self, seq_ids: Sequence[int], blocks: Sequence[tuple[int, ...]]
    ) -> tuple[I32, I32]:
        """(block_ids, block_starts) of a `Batch`, for the blocks of each sequence."""
        if blocks != self._blocks:  # by identity, where nothing has changed
            tables = list(map(self._table, seq_ids, blocks))
            starts = np.array([0, *accumulate(map(len, blocks))], np.int32)
            self._flat = np.concatenate(tables), starts
            self._blocks = blocks
        return self._flat

    def _table(self, seq_id: int, blocks: tuple[int, ...]) -> I32:
        known, table = self._tables.get(seq_id, ((), None))
        if table is not None and known is blocks:
            return table
        self._pool.note_use(blocks)
        if len(self._tables) > MAX_TABLES:
            self._tables.clear()
        if table is not None and blocks[: len(known)] == known:
            table = extended(table, blocks)
        else:
            table = np.array(blocks, np.int32)
        self._tables[seq_id] = blocks, table
        return table
