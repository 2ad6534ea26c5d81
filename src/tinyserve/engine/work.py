"""What the scheduler hands to the core.

A step's plan is for the runner; the work says whose chunks they are, so that the draws find their
sequences. A lap is what remains of a step for those who measure. Records only.
"""

from __future__ import annotations

from dataclasses import dataclass

from tinyserve.engine.plan import Chunk, StepPlan
from tinyserve.engine.sequence import Sequence
from tinyserve.spec.proposer import Draft


@dataclass(slots=True)
class Work:
    """One sequence's chunk, and the draft that ends it: nothing, but for a decode. `end`: known
    tokens up to which the chunk computes; `drafts`, the ids of the draft, come after them.
    """

    seq: Sequence
    chunk: Chunk
    draft: Draft
    end: int
    drafts: list[int]


@dataclass(frozen=True, slots=True)
class Step:
    """What was decided: the plan for the runner, and whose chunks they are, in the same order."""

    plan: StepPlan
    work: list[Work]


@dataclass(frozen=True, slots=True)
class Lap:
    """A step that has been computed, and when its parts ended, in seconds of `time.monotonic`."""

    step: Step
    begin: float
    planned: float
    ran: float
    drawn: float
    end: float
