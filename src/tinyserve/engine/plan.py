"""What the scheduler decides and the runner executes: values of ids and ints, no more, and never
changed once they are made. Records with slots: cheaper to make and to read than named tuples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import eq
from typing import Any, Protocol

from tinyserve.engine.sampling import SampledToken, SampleRow


@dataclass(slots=True)
class Chunk:
    """One sequence's share of a step: compute `token_ids` at positions `start`, `start + 1`, ..."""

    seq_id: int
    start: int
    token_ids: tuple[int, ...]
    block_ids: tuple[int, ...]  # of the KV pool, in order: they hold positions 0 .. the last one
    # That many rows at the end yield logits: 0 while a prompt is still being computed, 1 for a
    # decode, 1 + k for k drafts, all for prompt logprobs.
    num_logits: int
    num_drafts: int = 0  # that many tokens at the end are drafts; the others are known

    @property
    def end(self) -> int:
        """Known tokens up to which the chunk computes; the drafts come after them."""
        return self.start + len(self.token_ids) - self.num_drafts

    @property
    def drafts(self) -> tuple[int, ...]:
        """The ids of the draft that ends it."""
        return self.token_ids[len(self.token_ids) - self.num_drafts :]

    def num_accepted(self, new_token_ids: Sequence[int]) -> int:
        """How many of the draft's tokens are among those that the chunk gave. The last one given is
        the target's own, unless it ended the choice before the draft's end.
        """
        return sum(map(eq, new_token_ids, self.drafts)) if self.num_drafts else 0


@dataclass(slots=True)
class StepPlan:
    """What one step does. Order of effects: swap_out, then swap_in, then copies, then the chunks'
    forward pass.
    """

    chunks: tuple[Chunk, ...]
    swap_out: tuple[tuple[int, int], ...] = ()  # (physical block, host slot)
    swap_in: tuple[tuple[int, int], ...] = ()  # (host slot, physical block)
    copies: tuple[tuple[int, int], ...] = ()  # (source block, destination block)

    @property
    def num_tokens(self) -> int:
        return sum([len(chunk.token_ids) for chunk in self.chunks])


class Logits(Protocol):
    """The logits of one step, rows in chunk order; valid until the runner's next `run`."""

    def sample(self, rows: list[SampleRow]) -> list[SampledToken]:
        """Draw or score one token for each row, or read its hidden state; `SampleRow.row` indexes
        the step's logits rows.
        """
        ...


class Runner(Protocol):
    """Runs plans. The only thing the engine asks of a model; tests put a fake here."""

    def run(self, plan: StepPlan) -> Logits: ...

    def memory_report(self) -> dict[str, Any]:
        """Bytes by item: {"weights": {"reserved": ..., "touched": ...}, ...}."""
        ...
