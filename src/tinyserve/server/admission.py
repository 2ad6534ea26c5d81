"""How much of the fair queue the engine is given at a time: `Admission`, and what is in it already:
`Occupancy`.

The engine gets about as many choices as it computes in a step, so that the rest waits in the
queue's fair order. More than that only where its policy needs them to choose from: an urgent
request, which may displace another, and under the fair policy some waiting requests of each client.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping
from dataclasses import dataclass

from tinyserve.engine.request import EngineRequest


class Occupancy:
    """The requests inside the engine, counted by choice. The engine thread's alone."""

    def __init__(self) -> None:
        self._requests: dict[str, EngineRequest] = {}
        self._open: dict[str, int] = {}  # choices that have not finished
        self._unstarted: set[str] = set()  # requests without any output yet
        self._waiting: Counter[str] = Counter()  # those of each client
        self.num_choices = 0

    @property
    def waiting(self) -> Mapping[str, int]:
        """How many requests of each client have not begun to answer; only those with any."""
        return self._waiting

    @property
    def least_urgent(self) -> int:
        """The highest priority number inside."""
        return max(request.priority for request in self._requests.values())

    def add(self, request: EngineRequest) -> None:
        self._requests[request.request_id] = request
        self._open[request.request_id] = request.params.n
        self.num_choices += request.params.n
        self._unstarted.add(request.request_id)
        self._waiting[request.client] += 1

    def start(self, request_id: str) -> None:
        """The request's first output has come. Idempotent."""
        if request_id in self._unstarted:
            self._unstarted.remove(request_id)
            client = self._requests[request_id].client
            self._waiting[client] -= 1
            if not self._waiting[client]:
                del self._waiting[client]

    def close_choice(self, request_id: str) -> bool:
        """One choice has finished. Returns whether no other is left (or the request is unknown)."""
        if self._open.get(request_id, 1) == 1:
            self.drop(request_id)
            return True
        self._open[request_id] -= 1
        self.num_choices -= 1
        return False

    def drop(self, request_id: str) -> None:
        """The request has left. Idempotent."""
        if request_id in self._requests:
            self.start(request_id)
            self.num_choices -= self._open.pop(request_id)
            del self._requests[request_id]


MANY_CLIENTS = 8


@dataclass(frozen=True)
class Admission:
    """Decides who may enter the engine. `seats`: choices computed in a step. `is_fair`: the policy
    balances clients.

    The fair policy forgets how little a client was served once none of its requests waits inside.
    So each client may keep one more there than a step can start, until `MANY_CLIENTS` do.
    """

    seats: int
    is_fair: bool = False

    def blocked(self, inside: Occupancy, priority: int) -> Container[str] | None:
        """The clients that may have no further request in the engine; None: no client may have one.

        `priority` is the most urgent one that waits.
        """
        if inside.num_choices < self.seats:
            return ()
        if priority < inside.least_urgent and inside.num_choices < 2 * self.seats:
            return ()
        if not self.is_fair or inside.num_choices >= MANY_CLIENTS * (self.seats + 1) + self.seats:
            return None
        return {client for client, count in inside.waiting.items() if count > self.seats}
