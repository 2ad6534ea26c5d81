"""`Admission`: how much of the fair queue the engine is given at a time."""

from __future__ import annotations

from dataclasses import dataclass

from tinyserve.engine.request import EngineRequest


@dataclass(frozen=True)
class Admission:
    """How many choices the engine is given at once, so that the rest waits in fair order.

    `seats` is what it computes in a step. `lookahead` more may wait inside it, where its policy
    needs several requests to choose from.
    """

    seats: int
    lookahead: int = 0

    def allows(self, in_engine: dict[str, EngineRequest], choices: int, priority: int) -> bool:
        """Whether the engine should take one more request, of `priority`, now."""
        if choices < self.seats + self.lookahead:
            return True
        least_urgent = max(request.priority for request in in_engine.values())
        return priority < least_urgent and choices < 2 * (self.seats + self.lookahead)
