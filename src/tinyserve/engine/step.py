"""`Step`: what the scheduler hands to the core. `Lap`: the same once computed, with its times.

A step's plan is for the runner, which knows no sequences; the step says whose chunks they are, so
that the draws find their sequences. A lap is for those who measure. Records only.
"""

from __future__ import annotations

from dataclasses import dataclass

from tinyserve.engine.plan import StepPlan
from tinyserve.engine.sequence import Sequence
from tinyserve.spec.proposer import Draft


@dataclass(slots=True)
class Step:
    """What was decided: the plan for the runner, whose chunks they are, in the same order, and the
    drafts that end some of them, by sequence id.
    """

    plan: StepPlan
    seqs: list[Sequence]
    drafts: dict[int, Draft]


@dataclass(slots=True)
class Lap:
    """A step that has been computed, and when its parts ended, in seconds of `time.monotonic`."""

    step: Step
    begin: float
    planned: float
    ran: float
    drawn: float
    end: float
