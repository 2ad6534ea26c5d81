"""From a step's chunks to the ragged batch that the kernels read.

Owns the block tables as one array, a row for each sequence, which is kept from step to step: a
sequence that grows changes one number of it. The scheduler hands out the same tuple of block ids
until a block is added, so a new tuple is the sign to update a row. A batch is valid until the next
is made: decodes of the same sequences write their numbers into the arrays of the batch before.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain

import numpy as np

from tinyserve.engine.plan import Chunk
from tinyserve.kernels.ops import I32, Batch
from tinyserve.kv.pool import KVPool

Blocks = tuple[int, ...]  # one sequence's KV blocks


class BatchBuilder:
    """Makes batches over the blocks of one pool."""

    def __init__(self, pool: KVPool) -> None:
        self._block_size = pool.layout.block_size
        self._tables = BlockTables(pool)
        self._decodes: Batch | None = None  # the latest batch, if it was one token a sequence

    def of(self, chunks: Sequence[Chunk]) -> Batch:
        """The chunks, flattened. Nearly every step is decodes, one token and its logits each."""
        blocks = [chunk.block_ids for chunk in chunks]
        tables_have_moved = self._tables.update([chunk.seq_id for chunk in chunks], blocks)
        starts = [chunk.start for chunk in chunks]
        token_ids = [chunk.token_ids for chunk in chunks]
        num_logits = [chunk.num_logits for chunk in chunks]
        tokens = [*chain(*token_ids)]
        if not len(chunks) == len(tokens) == sum(num_logits):
            self._decodes = None
            return self._ragged(starts, token_ids, num_logits)
        if self._decodes is None or tables_have_moved:
            self._decodes = self._ragged(starts, token_ids, num_logits)
            return self._decodes
        batch = self._decodes
        batch.token_ids[:] = tokens
        batch.positions[:] = starts
        np.add(batch.positions, self._tables.last_offsets, out=batch.slots)
        return batch

    def _ragged(
        self,
        starts: Sequence[int],
        token_ids: Sequence[tuple[int, ...]],
        num_logits: Sequence[int],
    ) -> Batch:
        """Chunks of any length, without loops over their rows."""
        size, tables = self._block_size, self._tables
        lengths = [len(ids) for ids in token_ids]
        ends = list(accumulate(lengths))
        seq_starts = np.array([0, *ends], np.int32)
        positions = np.arange(ends[-1]) + np.repeat(np.subtract(starts, seq_starts[:-1]), lengths)
        first_blocks = np.repeat(tables.starts[:-1], lengths)
        slots = tables.ids[first_blocks + positions // size] * size + positions % size
        logit_rows = [range(end - n, end) for end, n in zip(ends, num_logits, strict=True)]
        return Batch(
            token_ids=np.array([*chain(*token_ids)], np.int32),
            positions=positions.astype(np.int32),
            slots=slots.astype(np.int32),
            seq_starts=seq_starts,
            block_ids=tables.ids,
            block_starts=tables.starts,
            logit_rows=np.array([*chain(*logit_rows)], np.int32),
        )


class BlockTables:
    """The block ids of the latest batch's sequences: sequence i's are ids[starts[i]] ..., the rest
    of its row is padding. `last_offsets`: in its last block a position p lies at slot p + offset.
    """

    def __init__(self, pool: KVPool) -> None:
        self._pool = pool
        self._block_size = pool.layout.block_size
        self._seq_ids: list[int] = []
        self._blocks: list[Blocks] = []  # per row
        self._rows = np.zeros((1, 0), np.int32)  # [sequences + 1, most blocks]; the last is spare
        self.ids: I32 = self._rows.reshape(-1)
        self.starts: I32 = np.zeros(1, np.int32)
        self.last_offsets: I32 = np.zeros(0, np.int32)

    def update(self, seq_ids: list[int], blocks: list[Blocks]) -> bool:
        """Bring the tables up to date; True where `ids` and `starts` are new arrays."""
        if blocks == self._blocks and seq_ids == self._seq_ids:  # quick: mostly the same tuples
            return False
        has_moved = seq_ids != self._seq_ids or max(map(len, blocks)) > self._rows.shape[1]
        if has_moved:
            self._lay_out(seq_ids, max(map(len, blocks)))
        for row, (known, ids) in enumerate(zip(self._blocks, blocks, strict=True)):
            if ids is not known:
                num_same = len(known) if ids[: len(known)] == known else 0
                self._rows[row, num_same : len(ids)] = ids[num_same:]
                self._pool.note_use(ids[num_same:])
                self.last_offsets[row] = (ids[-1] - len(ids) + 1) * self._block_size
        self._blocks = blocks
        return has_moved

    def _lay_out(self, seq_ids: list[int], most: int) -> None:
        """New arrays with a row for each sequence, known rows copied; room for `most` blocks and
        more.
        """
        old_rows = {seq_id: row for row, seq_id in enumerate(self._seq_ids)}
        sources = [old_rows.get(seq_id, -1) for seq_id in seq_ids]
        num_kept = min(most, self._rows.shape[1])
        rows = np.zeros((len(seq_ids) + 1, most + most // 4 + 4), np.int32)
        rows[:-1, :num_kept] = self._rows[sources, :num_kept]
        known = [*self._blocks, ()]
        self._blocks = [known[source][:num_kept] for source in sources]
        self._seq_ids = seq_ids
        self._rows, self.ids = rows, rows.reshape(-1)
        self.last_offsets = np.array([*self.last_offsets, 0], np.int32)[sources]
        self.starts = np.arange(0, rows.size, rows.shape[1], dtype=np.int32)
