"""Physical blocks: who is free, and how many own the rest.

Owns the reference counts and the free list. Knows no tokens, no sequences and no cache: a block
whose last reference goes is not free by itself; the caller decides whether to put it back or to
keep its content for later. Invariant: a block on the free list has no references, and is on it
once.
"""

from __future__ import annotations


class BlockAllocator:
    """Reference counts and the free list of `num_blocks` blocks, ids 0 .. num_blocks - 1."""

    __slots__ = ("_free", "_refs", "num_blocks")

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._refs = [0] * num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))  # a stack: warm blocks are reused first

    @property
    def num_free(self) -> int:
        return len(self._free)

    def num_refs(self, block: int) -> int:
        return self._refs[block]

    def refs(self) -> list[int]:
        """The number of references of every block: a copy."""
        return self._refs.copy()

    def take(self) -> int:
        """A free block, with one reference. The caller has made sure that there is one."""
        block = self._free.pop()
        self._refs[block] = 1
        return block

    def retain(self, block: int) -> None:
        self._refs[block] += 1

    def release(self, block: int) -> bool:
        """Give up one reference; True when it was the last, and the caller must place the block."""
        refs = self._refs[block] - 1
        assert refs >= 0, f"block {block} released more often than retained"
        self._refs[block] = refs
        return refs == 0

    def put_back(self, block: int) -> None:
        """Return a block without references to the free list."""
        assert self._refs[block] == 0, f"block {block} is still referenced"
        self._free.append(block)

    def check(self, expected_refs: dict[int, int], parked: set[int]) -> None:
        """Raise AssertionError unless counts are as expected and all else is free or parked."""
        for block, refs in enumerate(self._refs):
            assert refs == expected_refs.get(block, 0), (
                f"block {block} has {refs} references, {expected_refs.get(block, 0)} are known"
            )
        free = set(self._free)
        assert len(free) == len(self._free), "a block is on the free list twice"
        assert not free & parked, "a cached block is on the free list"
        assert not free & expected_refs.keys(), "a block in use is on the free list"
        assert len(free) + len(parked) + len(expected_refs) == self.num_blocks, "a block is lost"
