"""Slots of the host arena: where the KV of preempted sequences waits, block by block.

Owns which slots are free; the bytes are the pool's business. A slot that a swap-in reads is handed
back only after the step (`retire`, then `free_retired`): a step runs its swap-outs first, so a slot
reused within the step would be overwritten before it was read.
"""

from __future__ import annotations

from collections.abc import Sequence


class SwapArena:
    """Free slots 0 .. num_slots - 1 of the host arena."""

    __slots__ = ("_free", "_retired", "num_slots")

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self._free = list(range(num_slots - 1, -1, -1))
        self._retired: list[int] = []

    @property
    def num_free(self) -> int:
        return len(self._free)

    def try_take(self, num_slots: int) -> list[int] | None:
        """`num_slots` free slots, or None and no change."""
        if num_slots > len(self._free):
            return None
        return [self._free.pop() for _ in range(num_slots)]

    def give(self, slots: Sequence[int]) -> None:
        """Free slots at once: their content is not wanted any more."""
        self._free.extend(reversed(slots))

    def retire(self, slots: Sequence[int]) -> None:
        """Free slots, but only after this step, which still reads them."""
        self._retired.extend(slots)

    def free_retired(self) -> None:
        """The step's transfers are on their way: retired slots are free for the next one."""
        if self._retired:
            self.give(self._retired)
            self._retired = []

    def check(self, held: Sequence[int]) -> None:
        """Raise AssertionError unless every slot is free, retired, or held once."""
        slots = [*self._free, *self._retired, *held]
        assert sorted(slots) == list(range(self.num_slots)), "a swap slot is lost or held twice"
