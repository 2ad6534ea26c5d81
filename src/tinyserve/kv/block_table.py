"""A sequence's share of the KV-cache: a dumb record that only `KVManager` changes.

    positions   0 .. B-1   B .. 2B-1   2B .. 3B-1   3B ...
    blocks     [   7     ,    2      ,    9       ,   4  ]       B = block_size
                `------ num_published = 2 ----'

The first `num_published` blocks are in the prefix cache (and so are full, verified, and never
written again). A table holds device blocks, or host slots after a swap-out, or neither; never both.
"""

from __future__ import annotations

from collections.abc import Hashable


class BlockTable:
    """Ordered blocks of one sequence. Compared by identity. Cached blocks are shared only between
    tables of the same `salt`.
    """

    __slots__ = (
        "_ids",
        "blocks",
        "host_slots",
        "keys",
        "num_published",
        "num_saved",
        "publishing",
        "salt",
        "tail_ids",
        "tail_start",
        "tail_stop",
    )

    def __init__(self, salt: str | None = None) -> None:
        self.salt = salt
        self.blocks: list[int] = []
        self.host_slots: list[int] = []  # where a swap-out put blocks 0, 1, ...
        self.num_saved = 0  # tokens whose KV is in `host_slots`
        self.keys: list[Hashable] = []  # chained hashes of the full blocks, as far as needed
        self.num_published = 0
        # False after a hash collision: later blocks would have no parent in the cache.
        self.publishing = True
        self._ids: tuple[int, ...] | None = None
        # The fast path of `KVManager.append`. A token at a position from tail_start to
        # tail_stop - 1, in the last block, needs no new block, no copy and no publication;
        # tail_ids are all block ids up to that one. Both bounds are 0 where there is more to do:
        # another table owns the block as well, or full blocks are still to be published.
        self.tail_start = self.tail_stop = 0
        self.tail_ids: tuple[int, ...] = ()

    def ids(self, num_blocks: int) -> tuple[int, ...]:
        """The first `num_blocks` block ids, cached between changes."""
        ids = self._ids
        if ids is None:
            ids = self._ids = tuple(self.blocks)
        return ids if len(ids) == num_blocks else ids[:num_blocks]

    def changed(self) -> None:
        """Forget what was derived from `blocks`. To be called after each change of them, and when
        the last one gets a second owner.
        """
        self._ids = None
        self.tail_start = self.tail_stop = 0
