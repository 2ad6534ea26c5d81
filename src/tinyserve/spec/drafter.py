"""`Drafter`: what the engine talks to. A proposer, and a controller that bounds its drafts.

Owns the calls around a step: `propose` while it is planned, `record` for each of its decodes,
`learn` when it is done, `forget` when a sequence ends. Knows no model and no blocks. Without a
controller every sequence gets as many drafts as there is room for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from tinyserve.spec.proposer import Draft, Known, Proposer


class Outcome(NamedTuple):
    """What a decode with drafts gave: drafts verified and, of those, accepted."""

    seq_id: int
    num_drafts: int
    num_accepted: int


class Controller(Protocol):
    """Decides how many drafts each sequence gets, from what earlier ones brought and cost."""

    def choose(self, limits: Sequence[tuple[int, int]], num_rows: int) -> list[int]:
        """How many drafts for each (sequence id, most) in a step of `num_rows` other rows."""
        ...

    def learn(
        self, seconds: float | None, proposing: float, num_decodes: int, outcomes: Sequence[Outcome]
    ) -> None:
        """A step of so many decodes took `seconds`, `proposing` of them for the drafts; None where
        prompts shared the step, so that its time says nothing. `outcomes`: of those with drafts.
        """
        ...

    def forget(self, seq_id: int) -> None: ...


class Drafter:
    """Makes drafts for the decodes of a step, and learns what became of them."""

    def __init__(
        self,
        proposer: Proposer[Any],
        controller: Controller | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.proposer = proposer
        self.max_drafts = proposer.max_drafts
        self._controller = controller
        self._clock = clock
        self.num_accepted = [0] * self.max_drafts  # [i]: runs of which draft i was accepted
        # The present step: seconds spent on drafts, decodes, and how the drafts fared.
        self._proposing = 0.0
        self._num_decodes = 0
        self._outcomes: list[Outcome] = []

    def propose(
        self, wanted: Sequence[tuple[Known, int]], num_rows: int
    ) -> list[tuple[int, Draft]]:
        """Drafts for some of the (sequence, most tokens) pairs: each with its pair's index.

        `num_rows`: rows of the step without them.
        """
        limits = [limit for _, limit in wanted]
        if self._controller is not None:
            ids = [(seq.seq_id, limit) for seq, limit in wanted]
            limits = self._controller.choose(ids, num_rows)
        asked = [i for i, limit in enumerate(limits) if limit > 0]
        if not asked:
            return []
        began = self._clock()
        proposed = self.proposer.propose([(wanted[i][0], limits[i]) for i in asked])
        self._proposing = self._clock() - began
        return list(zip(asked, proposed, strict=True))

    def record(self, seq_id: int, num_drafts: int, num_accepted: int) -> None:
        """A decode of this step, and what became of its drafts."""
        self._num_decodes += 1
        if num_drafts:
            self._outcomes.append(Outcome(seq_id, num_drafts, num_accepted))
            for index in range(num_accepted):
                self.num_accepted[index] += 1

    def learn(self, num_rows: int, seconds: float) -> None:
        """The step had `num_rows` rows and took `seconds`, proposing included."""
        proposing, self._proposing = self._proposing, 0.0
        num_decodes, self._num_decodes = self._num_decodes, 0
        outcomes, self._outcomes = self._outcomes, []
        if self._controller is None or not num_decodes:
            return
        is_pure = num_rows == num_decodes + sum(outcome.num_drafts for outcome in outcomes)
        self._controller.learn(seconds if is_pure else None, proposing, num_decodes, outcomes)

    def memory_report(self) -> dict[str, Any]:
        """Bytes by item, reserved and touched, of proposers that hold many."""
        report = getattr(self.proposer, "memory_report", None)
        return {} if report is None else dict(report())

    def forget(self, seq: Known) -> None:
        """The sequence has ended."""
        self.proposer.forget(seq)
        if self._controller is not None:
            self._controller.forget(seq.seq_id)
