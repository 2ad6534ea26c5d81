"""`Mailbox`: everything that can happen to one HTTP request, in one queue on the event loop.

Engine outputs, errors, the client's leaving, and the ticks that keep an idle connection alive all
arrive here, so that whoever answers the request waits in one place. Not thread-safe: the loop's
alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum

from tinyserve.engine.request import RequestOutput
from tinyserve.errors import TinyServeError


class Signal(Enum):
    """Events that carry no value."""

    GONE = "the client has left"
    TICK = "nothing has been sent for a while"


Event = RequestOutput | TinyServeError | Signal


class Mailbox:
    """A queue with one reader, which takes all that has come at once.

    While `is_held` (its reader waits for a client that does not read) outputs of more than
    `max_held` bytes, estimated, make it full: `on_full` is called once, an error is put, and
    further outputs are thrown away. `on_full` must not refer to the mailbox's owner: each request
    would leave a reference cycle to the garbage collector.
    """

    __slots__ = ("_events", "_is_full", "_max_held", "_on_full", "_size", "_waiter", "is_held")

    def __init__(
        self, max_held: int | None = None, on_full: Callable[[], None] = lambda: None
    ) -> None:
        self._events: list[Event] = []
        self._waiter: asyncio.Future[None] | None = None
        self._max_held = max_held
        self._on_full = on_full
        self._size = 0
        self._is_full = False
        self.is_held = False

    def put(self, event: Event) -> None:
        if isinstance(event, RequestOutput):
            if self._is_full:
                return
            self._weigh(event)
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
        self._size = 0
        return events

    def _weigh(self, output: RequestOutput) -> None:
        self._size += estimated_bytes(output)
        if self.is_held and self._max_held is not None and self._size > self._max_held:
            self._is_full = True
            self._on_full()
            self.put(TinyServeError("the answer was not read fast enough"))


def estimated_bytes(output: RequestOutput) -> int:
    """About what an output weighs in memory. Cheap: it is asked for every token."""
    size = 256 + 4 * len(output.new_text)
    for scores in (output.logprobs, output.prompt_logprobs):
        if scores:
            size += sum(96 + 96 * len(score.top) for score in scores if score is not None)
    return size
