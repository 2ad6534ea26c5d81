"""What the scheduler hands to the core.

A step's plan is for the runner; the work says whose chunks they are, so that the draws find their
sequences. A lap is what remains of a step for those who measure. Records only.
"""

from __future__ import annotations

from typing import NamedTuple

from tinyserve.engine.plan import Chunk, StepPlan
from tinyserve.engine.sequence import Sequence
from tinyserve.spec.proposer import Draft


class Work(NamedTuple):
    """One sequence's chunk, and the draft that ends it: nothing, but for a decode."""

    seq: Sequence
    chunk: Chunk
    draft: Draft

    @property
    def drafts(self) -> list[int]:
        """The ids of the draft."""
        return self.draft.token_ids

    @property
    def end(self) -> int:
        """Known tokens up to which the chunk computes; the drafts come after them."""
        chunk = self.chunk
        return chunk.start + len(chunk.token_ids) - len(self.draft.token_ids)


class Step(NamedTuple):
    """What was decided: the plan for the runner, and whose chunks they are, in the same order."""

    plan: StepPlan
    work: list[Work]


class Lap(NamedTuple):
    """A step that has been computed, and when its parts ended, in seconds of `time.monotonic`."""

    step: Step
    begin: float
    planned: float
    ran: float
    drawn: float
    end: float
