"""`Session`: the life of one HTTP request from submission to release.

It submits to the engine, watches the connection and the clock, yields what there is to answer with,
and in the end, however it comes, releases everything.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator
from dataclasses import dataclass

from starlette.types import Receive

from tinyserve.engine.request import EngineRequest, RequestOutput
from tinyserve.errors import RequestTimeoutError, TinyServeError
from tinyserve.server.bridge import EngineBridge
from tinyserve.server.deltas import Delta, DeltaMaker
from tinyserve.server.mailbox import Event, Mailbox, Signal

PING_INTERVAL_S = 15.0
FAILURES = ("error", "abort")  # reasons to finish
INLINE_SCORES = 256  # prompt tokens; the scores of more are read, and written, off the event loop


class ClientGoneError(Exception):
    """The client has closed the connection; there is nobody to answer."""


@dataclass(frozen=True)
class Group:
    """What one HTTP request asks of the engine, and what makes deltas of its outputs."""

    id: str
    maker: DeltaMaker

    @property
    def requests(self) -> list[EngineRequest]:
        return [prompt.request for prompt in self.maker.prompts]


class Session:
    """Use once: `open`, then `batches`, then `close` (idempotent)."""

    def __init__(
        self, bridge: EngineBridge, group: Group, *, timeout_s: float, max_held: int | None = None
    ) -> None:
        """`max_held`: bytes of output that may wait while the session is on hold."""
        self._bridge = bridge
        self._group = group
        self._timeout_s = timeout_s
        self._mailbox = Mailbox(max_held, functools.partial(bridge.release, group.id))
        self._timer: asyncio.TimerHandle | None = None
        self._ticker: asyncio.TimerHandle | None = None
        self._watcher: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Queue the requests. Raises QueueFullError or EngineDeadError."""
        self._bridge.submit(self._group.id, self._group.requests, self._mailbox)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._timeout_s, self._expire)

    def close(self) -> None:
        """Release the requests and stop watching."""
        self._bridge.release(self._group.id)
        for handle in (self._timer, self._ticker):
            if handle is not None:
                handle.cancel()
        if self._watcher is not None:
            self._watcher.cancel()
            self._watcher = None  # its exception's traceback has frames that refer to us

    def hold(self, is_held: bool) -> None:
        """The client must first take what was sent; what the engine says meanwhile is kept."""
        self._mailbox.is_held = is_held

    def watch(self, receive: Receive, *, ticks: bool = False) -> None:
        """Notice the client's leaving; with `ticks`, also wake up every PING_INTERVAL_S seconds."""
        self._watcher = asyncio.get_running_loop().create_task(self._watch(receive))
        if ticks:
            self._tick_later()

    async def batches(self) -> AsyncIterator[list[Delta]]:
        """Yields deltas in order, all that have come by then at once; an empty batch is a tick.

        Ends after the last choice's finish. Raises ClientGoneError, or the error that ended the
        request.
        """
        feed = self._group.maker.feed
        left = sum(request.params.n for request in self._group.requests)
        while left:
            deltas: list[Delta] = []
            is_tick = False
            for event in await self._mailbox.take():
                if event is Signal.GONE:
                    raise ClientGoneError
                if event is Signal.TICK:
                    is_tick = True
                    continue
                if not isinstance(event, RequestOutput) or event.finish_reason in FAILURES:
                    try:
                        raise _error_of(event)
                    finally:
                        del event  # the error's traceback has this frame, and would refer to itself
                if len(event.prompt_logprobs or ()) <= INLINE_SCORES:
                    delta = feed(event)
                else:
                    delta = await asyncio.to_thread(feed, event)
                if delta is not None:
                    deltas.append(delta)
                    left -= delta.finish_reason is not None
            if deltas or is_tick:
                yield deltas

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._end(Signal.GONE)

    def _expire(self) -> None:
        self._end(RequestTimeoutError(f"the request took longer than {self._timeout_s:g} seconds"))

    def _end(self, event: TinyServeError | Signal) -> None:
        """Give everything back at once: whoever answers may be waiting for the client just now."""
        self._bridge.release(self._group.id)
        self._mailbox.put(event)

    def _tick_later(self) -> None:
        self._ticker = asyncio.get_running_loop().call_later(PING_INTERVAL_S, self._tick)

    def _tick(self) -> None:
        self._mailbox.put(Signal.TICK)
        self._tick_later()


def _error_of(event: Event) -> Exception:
    """Why the request failed."""
    error = event.error if isinstance(event, RequestOutput) else event
    return error if isinstance(error, Exception) else TinyServeError("the request was aborted")
