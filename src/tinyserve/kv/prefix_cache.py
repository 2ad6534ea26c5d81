"""Full blocks by content: the chained-hash index, and the order in which unused ones are given up.

Owns the map from a hash to a published block, and the list of published blocks without an owner
("parked"). Knows no sequences and counts no references. A block's key chains over its prefix:

    key(block i) = hash(key(block i-1), tokens of block i);  key(-1) = hash(salt)

and a hit is believed only after the tokens, the parent block and the salt were compared, so a
colliding hash costs a miss and never a wrong block.

Invariant: an owner of a block also owns the block's parent. Therefore a parent is parked later than
its children (owners release tail first), and the parked list in order of parking always has leaves
before their prefixes: taking its first element is the least recently used leaf, in O(1).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from tinyserve.kv.block_table import BlockTable

HashBlock = Callable[[Hashable, Sequence[int]], Hashable]


def hash_block(parent: Hashable, tokens: Sequence[int]) -> Hashable:
    """Fast and not cryptographic: contents are compared on a hit."""
    return hash((parent, tuple(tokens)))


@dataclass(frozen=True, slots=True, eq=False)
class CachedBlock:
    """A published block. Compared by identity."""

    block: int
    key: Hashable
    parent: CachedBlock | None
    tokens: tuple[int, ...]
    salt: str | None


class PrefixCache:
    """Published blocks by key, and the parked ones in the order of eviction."""

    def __init__(self, hash_block: HashBlock = hash_block) -> None:
        self._hash = hash_block
        self._by_key: dict[Hashable, CachedBlock] = {}
        self._by_block: dict[int, CachedBlock] = {}
        self._parked: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_block)

    @property
    def num_parked(self) -> int:
        """Published blocks without an owner: all of them can be evicted."""
        return len(self._parked)

    def extend_keys(
        self, table: BlockTable, tokens: Sequence[int], num_blocks: int, block_size: int
    ) -> None:
        """Memoise the chained keys of the first `num_blocks` blocks of `tokens` in the table."""
        keys = table.keys
        parent: Hashable = keys[-1] if keys else self._hash(table.salt, ())
        for index in range(len(keys), num_blocks):
            parent = self._hash(parent, tokens[index * block_size : (index + 1) * block_size])
            keys.append(parent)

    def find(
        self,
        key: Hashable,
        parent: CachedBlock | None,
        tokens: Sequence[int],
        salt: str | None,
    ) -> CachedBlock | None:
        """The published block with exactly this content, or None."""
        entry = self._by_key.get(key)
        if (
            entry is None
            or entry.parent is not parent
            or entry.tokens != tuple(tokens)
            or entry.salt != salt
        ):
            return None
        return entry

    def match(
        self, table: BlockTable, tokens: Sequence[int], max_blocks: int, block_size: int
    ) -> list[CachedBlock]:
        """The longest run of leading blocks of `tokens` that is published, up to `max_blocks`.

        Changes nothing but the memoised keys: a block is used only once it is unparked.
        """
        self.extend_keys(table, tokens, max_blocks, block_size)
        run: list[CachedBlock] = []
        entry: CachedBlock | None = None
        for index in range(max_blocks):
            content = tokens[index * block_size : (index + 1) * block_size]
            entry = self.find(table.keys[index], entry, content, table.salt)
            if entry is None:
                break
            run.append(entry)
        return run

    def publish(self, entry: CachedBlock) -> bool:
        """Make a block findable; False when other content has its key (a hash collision)."""
        if entry.key in self._by_key:
            return False
        self._by_key[entry.key] = entry
        self._by_block[entry.block] = entry
        return True

    def entry_of(self, block: int) -> CachedBlock | None:
        return self._by_block.get(block)

    def park(self, block: int) -> None:
        """A published block has lost its last owner: it may be evicted, after those before it."""
        self._parked[block] = None

    def unpark(self, block: int) -> None:
        """A parked block has an owner again."""
        del self._parked[block]

    def evict(self) -> int:
        """Forget the least recently used leaf and return its block, which now holds nothing."""
        block, _ = self._parked.popitem(last=False)
        del self._by_key[self._by_block.pop(block).key]
        return block

    def check(self, is_owned: Callable[[int], bool]) -> None:
        """Raise AssertionError unless the index is consistent and parked means without an owner."""
        assert len(self._by_key) == len(self._by_block), "a key without a block, or the reverse"
        position = {block: index for index, block in enumerate(self._parked)}
        for key, entry in self._by_key.items():
            assert entry.key == key
            assert self._by_block.get(entry.block) is entry, f"stale entry for block {entry.block}"
            assert is_owned(entry.block) != (entry.block in position), (
                f"block {entry.block} is both owned and parked, or neither"
            )
            parent = entry.parent
            if parent is None:
                continue
            assert self._by_key.get(parent.key) is parent, "a cached block has lost its prefix"
            if entry.block not in position:
                assert parent.block not in position, "a block is owned but its prefix is not"
            elif parent.block in position:
                assert position[entry.block] < position[parent.block], "a prefix goes before a leaf"

    def parked_in_order(self) -> list[int]:
        """Parked blocks, next to be evicted first."""
        return list(self._parked)
