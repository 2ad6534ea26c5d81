"""What one step moves before it computes. Collects; moves nothing itself.

Order of effects: swap-outs, then swap-ins, then copies, then the forward pass. Within a step a
block that a swap-out saves may therefore be filled again at once, while a host slot that a swap-in
reads and a block that a copy reads must not be reused before the next step.
"""

from __future__ import annotations

Pairs = tuple[tuple[int, int], ...]


class Transfers:
    """Pairs of (from, to): blocks to host slots, host slots to blocks, blocks to blocks."""

    __slots__ = ("copies", "swap_in", "swap_out")

    def __init__(self) -> None:
        self.swap_out: list[tuple[int, int]] = []
        self.swap_in: list[tuple[int, int]] = []
        self.copies: list[tuple[int, int]] = []

    def copies_from(self, block: int) -> bool:
        return any(source == block for source, _ in self.copies)

    def take(self) -> tuple[Pairs, Pairs, Pairs]:
        """(swap_out, swap_in, copies), each once."""
        if not (self.swap_out or self.swap_in or self.copies):
            return (), (), ()
        taken = tuple(self.swap_out), tuple(self.swap_in), tuple(self.copies)
        self.swap_out, self.swap_in, self.copies = [], [], []
        return taken
