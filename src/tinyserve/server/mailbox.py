"""`Mailbox`: everything that can happen to one HTTP request, in one queue on the event loop.

Engine outputs, errors, the client's leaving, and the ticks that keep an idle connection alive all
arrive here, so that whoever answers the request waits in one place. Not thread-safe: the loop's
alone.
"""

from __future__ import annotations

import asyncio
from enum import Enum

from tinyserve.engine.request import RequestOutput
from tinyserve.errors import TinyServeError


class Signal(Enum):
    """Happenings without a value."""

    GONE = "the client has left"
    TICK = "nothing has been sent for a while"


Event = RequestOutput | TinyServeError | Signal


class Mailbox:
    """An unbounded queue with one reader, which takes all that has come at once."""

    __slots__ = ("_events", "_waiter")

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._waiter: asyncio.Future[None] | None = None

    def put(self, event: Event) -> None:
        self._events.append(event)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def take(self) -> list[Event]:
        """All events since the last call; waits for the first."""
        while not self._events:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        events, self._events = self._events, []
        return events
