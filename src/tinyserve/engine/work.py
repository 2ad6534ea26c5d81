"""What the scheduler hands to the core, and the seam through which drafts come in.

A step's plan is for the runner; the work says whose chunks they are, so that the draws find their
sequences. A lap is what remains of a step for those who measure. Records only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tinyserve.engine.plan import Chunk, StepPlan
from tinyserve.engine.sequence import Sequence


class Proposer(Protocol):
    """Guesses what comes next. Wrong drafts cost time, never correctness."""

    max_drafts: int

    def propose(self, token_ids: list[int], max_drafts: int) -> list[int]:
        """Up to `max_drafts` tokens that may follow `token_ids` (not to be kept or changed)."""
        ...


@dataclass(slots=True)
class Work:
    """One sequence's chunk, and the drafts that end it."""

    seq: Sequence
    chunk: Chunk
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
