"""`KVManager`: the only interface between the scheduler and the KV-cache.

Owns the bookkeeping of blocks, prefix cache and swap arena, and the transfers that a step must
carry out. Knows tokens and counts, not requests, priorities or phases.

Transactional: `open`, `grow` and `swap_out` first count what they need, and either do all of it or
change nothing. Content moves only through the step's `Transfers`; what they still read is not given
away within the step (`SwapArena.retire`, `_held`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tinyserve.config import CacheConfig
from tinyserve.kv.allocator import BlockAllocator
from tinyserve.kv.block_table import BlockTable
from tinyserve.kv.prefix_cache import CachedBlock, HashBlock, PrefixCache, hash_block
from tinyserve.kv.swap import SwapArena
from tinyserve.kv.transfers import Pairs, Transfers


@dataclass(slots=True)
class KVCounters:
    """What has happened since the start."""

    cow_copies: int = 0
    swapped_out_blocks: int = 0
    swapped_in_blocks: int = 0


class KVManager:
    """Blocks for sequences: `open`, `grow`, `publish`, `fork`, `swap_out`, `free`."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        num_swap_blocks: int = 0,
        enable_prefix_caching: bool = True,
        hash_block: HashBlock = hash_block,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.counters = KVCounters()
        self.arena = SwapArena(num_swap_blocks)
        self.is_caching = enable_prefix_caching
        self._allocator = BlockAllocator(num_blocks)
        self._cache = PrefixCache(hash_block)
        self._tables: set[BlockTable] = set()  # those that hold blocks or slots
        self._transfers = Transfers()
        self._held: list[int] = []  # without an owner, but a copy of this step reads them

    @classmethod
    def from_config(cls, config: CacheConfig) -> KVManager:
        """`config.num_blocks` must be resolved to a number."""
        assert config.num_blocks is not None
        return cls(
            config.num_blocks,
            config.block_size,
            num_swap_blocks=config.num_swap_blocks,
            enable_prefix_caching=config.enable_prefix_caching,
        )

    @property
    def num_free(self) -> int:
        """Blocks that hold nothing."""
        return self._allocator.num_free

    @property
    def num_cached(self) -> int:
        """Blocks without an owner whose content a prefix hit may revive."""
        return self._cache.num_parked

    @property
    def num_available(self) -> int:
        """Blocks that can be had now: free, or cached and evicted on demand."""
        return self._allocator.num_free + self._cache.num_parked

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def open(
        self,
        table: BlockTable,
        tokens: Sequence[int],
        *,
        read_cache: bool = True,
        keep_free: int = 0,
    ) -> int | None:
        """Give a table that is new, dropped or swapped out blocks for all of `tokens`.

        Blocks come from the prefix cache where the content matches, then from the arena where a
        swap-out saved it, the rest are empty. Returns the number of leading tokens whose KV is
        there, always less than len(tokens); None, and nothing has changed, unless `keep_free`
        blocks would stay available.
        """
        assert not table.blocks, "the table is open"
        hits = self._hits(table, tokens) if read_cache and self.is_caching else []
        num_new = self.blocks_for(len(tokens)) - len(hits)
        revived = sum(1 for entry in hits if not self._allocator.num_refs(entry.block))
        if num_new + revived + keep_free > self.num_available:
            return None
        for entry in hits:
            self._acquire(entry.block)
        table.blocks = [entry.block for entry in hits]
        table.blocks += [self._take() for _ in range(num_new)]
        table.num_published = len(hits)
        table.publishing = True
        table.changed()
        self._tables.add(table)
        return max(len(hits) * self.block_size, self._restore(table, len(hits)))

    def grow(self, table: BlockTable, start: int, end: int) -> bool:
        """Make positions start .. end - 1 writable: enough blocks, and none of them shared.

        Blocks with other owners are copied on write. False, and nothing has changed, when blocks
        are short.
        """
        blocks = table.blocks
        first, last = start // self.block_size, (end - 1) // self.block_size + 1
        num_new = last - len(blocks)
        num_refs = self._allocator.num_refs
        if num_new <= 0 and last == first + 1 and num_refs(blocks[first]) == 1:
            return True  # nearly every decode
        shared = [i for i in range(first, min(last, len(blocks))) if num_refs(blocks[i]) > 1]
        if num_new <= 0 and not shared:
            return True
        if max(num_new, 0) + len(shared) > self.num_available:
            return False
        assert start >= table.num_published * self.block_size, "a published block is never written"
        for i in shared:
            source, blocks[i] = blocks[i], self._take()
            self._transfers.copies.append((source, blocks[i]))
            self._release(source)
        for _ in range(num_new):
            blocks.append(self._take())
        table.changed()
        self._tables.add(table)
        self.counters.cow_copies += len(shared)
        return True

    def append(self, table: BlockTable, position: int) -> tuple[int, ...] | None:
        """`grow` for one more token at `position`: the ids of all blocks up to its own, or None.

        The same tuple until the token falls into another block.
        """
        if not table.tail_start <= position < table.tail_stop:
            if not self.grow(table, position, position + 1):
                return None
            num_before = position // self.block_size
            table.tail_ids = table.ids(num_before + 1)
            if table.num_published == num_before or not (self.is_caching and table.publishing):
                table.tail_start = num_before * self.block_size
                table.tail_stop = table.tail_start + self.block_size
        return table.tail_ids

    def publish(self, table: BlockTable, tokens: Sequence[int], num_computed: int) -> None:
        """Offer the full blocks of the first `num_computed` tokens, all written and verified.

        There is nothing new to offer before `num_computed` reaches `table.tail_stop`.
        """
        if num_computed < (table.num_published + 1) * self.block_size:
            return
        if not self.is_caching or not table.publishing:
            return
        num_full = num_computed // self.block_size
        self._cache.extend_keys(table, tokens, num_full, self.block_size)
        for index in range(table.num_published, num_full):
            if not self._publish_block(table, tokens, index):
                table.publishing = False
                return
            table.num_published += 1

    def fork(self, table: BlockTable, num_computed: int) -> BlockTable:
        """A second owner of the blocks of `num_computed` tokens; the first of them to write copies.

        The full blocks among them have been offered to `publish`: an unpublished one that two
        tables share could be published by one of them under a prefix that the other does not own.
        """
        num_full = num_computed // self.block_size
        assert not self.is_caching or not table.publishing or table.num_published == num_full
        child = BlockTable(table.salt)
        child.blocks = table.blocks[: self.blocks_for(num_computed)]
        child.keys = table.keys[:num_full]
        child.num_published = table.num_published
        child.publishing = table.publishing
        table.changed()
        for block in child.blocks:
            self._allocator.retain(block)
        if child.blocks:
            self._tables.add(child)
        return child

    def swap_out(self, table: BlockTable, num_computed: int) -> bool:
        """Save the first `num_computed` tokens to the arena and give up every block.

        False, and nothing has changed, when there is nothing to save or the arena is too full. The
        table's blocks must not be part of this step.
        """
        num_saved = self.blocks_for(num_computed)
        slots = self.arena.try_take(num_saved) if num_saved else None
        if slots is None:
            return False
        self._transfers.swap_out += zip(table.blocks, slots, strict=False)
        self._release_blocks(table)
        table.host_slots = slots
        table.num_saved = num_computed
        self.counters.swapped_out_blocks += num_saved
        return True

    def free(self, table: BlockTable) -> None:
        """Give up everything the table holds, in whatever state. Idempotent."""
        self._release_blocks(table)
        self.arena.give(table.host_slots)
        table.host_slots = []
        table.num_saved = 0
        self._tables.discard(table)

    def take_transfers(self) -> tuple[Pairs, Pairs, Pairs]:
        """The step's (swap_out, swap_in, copies), each once; call it when the plan is complete."""
        taken = self._transfers.take()
        self.arena.free_retired()
        for block in self._held:
            self._place(block)
        self._held.clear()
        return taken

    def clear_cache(self) -> int:
        """Forget every cached block without an owner; returns how many became free."""
        num_parked = self._cache.num_parked
        for _ in range(num_parked):
            self._allocator.put_back(self._cache.evict())
        return num_parked

    def block_refs(self) -> list[int]:
        """How many tables own each block."""
        return self._allocator.refs()

    def cached_blocks(self) -> list[int]:
        """The blocks without an owner that a prefix hit may revive, next to be evicted first."""
        return self._cache.parked_in_order()

    def bookkeeping_bytes(self) -> int:
        """About what this bookkeeping occupies: counts, free lists, cached contents, tables."""
        per_cached_block = 400 + 8 * self.block_size  # record, its tokens, two index entries
        table_entries = sum(len(table.blocks) + 5 * len(table.keys) for table in self._tables)
        lists = 2 * self.num_blocks + self.arena.num_slots + table_entries
        return 8 * lists + per_cached_block * len(self._cache)

    def check(self) -> None:
        """Raise AssertionError unless every invariant holds."""
        refs: dict[int, int] = {}
        for table in self._tables:
            self._check_table(table)
            for block in table.blocks:
                refs[block] = refs.get(block, 0) + 1
        self._allocator.check(refs, {*self._cache.parked_in_order(), *self._held})
        self._cache.check(lambda block: block in refs)
        self.arena.check([slot for table in self._tables for slot in table.host_slots])

    def _hits(self, table: BlockTable, tokens: Sequence[int]) -> list[CachedBlock]:
        """The longest run of leading blocks that are in the cache, but for the last known token,
        which is always computed.

            known tokens       |----B----|----B----|----B----|   len(tokens) = 3 B
            may be hit         |----B----|----B----|             (len(tokens) - 1) // B blocks
            computed at least                        |---------| its last row gives the next token

        Without it a prompt of exactly k blocks would have no row left that yields logits. This is
        the only place with the rule.
        """
        limit = (len(tokens) - 1) // self.block_size
        return self._cache.match(table, tokens, limit, self.block_size)

    def _restore(self, table: BlockTable, num_hits: int) -> int:
        """Read from the arena what the cache did not have; returns how many tokens are there."""
        slots, num_saved = table.host_slots, table.num_saved
        if slots:
            pairs = list(zip(slots, table.blocks, strict=False))[num_hits:]
            self._transfers.swap_in += pairs
            self.counters.swapped_in_blocks += len(pairs)
            self.arena.retire(slots)
            table.host_slots = []
            table.num_saved = 0
        return num_saved

    def _publish_block(self, table: BlockTable, tokens: Sequence[int], index: int) -> bool:
        """Publish block `index`; False when a hash collision forbids it.

        If another sequence has published the same content in the meantime, the table switches to
        that block (equal content has equal bits) and its own copy is freed. So owning a block means
        owning its prefix.
        """
        size = self.block_size
        block = table.blocks[index]
        parent = self._cache.entry_of(table.blocks[index - 1]) if index else None
        content = tuple(tokens[index * size : (index + 1) * size])
        key = table.keys[index]
        found = self._cache.find(key, parent, content, table.salt)
        if found is None:
            entry = CachedBlock(block, key, parent, content, table.salt)
            return self._cache.publish(entry)
        if found.block != block:
            self._acquire(found.block)
            table.blocks[index] = found.block
            table.changed()
            self._release(block)
        return True

    def _take(self) -> int:
        """A block to fill; the caller has counted that there is one."""
        if not self._allocator.num_free:
            self._allocator.put_back(self._cache.evict())
        return self._allocator.take()

    def _acquire(self, block: int) -> None:
        if not self._allocator.num_refs(block):
            self._cache.unpark(block)
        self._allocator.retain(block)

    def _release(self, block: int) -> None:
        if self._allocator.release(block):
            if self._transfers.copies_from(block):
                self._held.append(block)
            else:
                self._place(block)

    def _place(self, block: int) -> None:
        """A block without an owner: what others may find again is kept, the rest is free."""
        if self._cache.entry_of(block) is not None:
            self._cache.park(block)
        else:
            self._allocator.put_back(block)

    def _release_blocks(self, table: BlockTable) -> None:
        for block in reversed(table.blocks):  # tail first: leaves are evicted before their prefixes
            self._release(block)
        table.blocks = []
        table.num_published = 0
        table.changed()

    def _check_table(self, table: BlockTable) -> None:
        assert table.blocks or table.host_slots, "an empty table is still registered"
        assert not (table.blocks and table.host_slots), "a table is in two places"
        assert len(table.host_slots) == self.blocks_for(table.num_saved)
        if table.tail_stop:
            index = table.tail_start // self.block_size
            assert table.tail_ids == (*table.blocks[: index + 1],)
            is_alone = self._allocator.num_refs(table.blocks[index]) == 1
            assert is_alone or index < table.num_published, "another may write into the last block"
        assert len(set(table.blocks)) == len(table.blocks), "a block is twice in one table"
        parent: CachedBlock | None = None
        for index, block in enumerate(table.blocks):
            entry = self._cache.entry_of(block)
            assert (entry is not None) == (index < table.num_published)
            if entry is not None:
                assert entry.parent is parent, "a table's published blocks are not one chain"
                assert entry.key == table.keys[index]
                assert entry.salt == table.salt
            parent = entry
