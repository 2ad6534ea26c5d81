"""`Outlet`: the way out to one client, which cuts off a reader that does not read.

The web server's `send` waits while the connection's buffer is full. An outlet bounds that wait: a
reader that takes nothing for `stall_timeout_s` is cut off, by the connection's `abort` where the
server offers one (`connection.py`), else by giving up the response. What comes from the engine
meanwhile is bounded by the mailbox. Knows bytes, not what they mean.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.types import Message, Scope, Send

ABORT = "tinyserve.abort"  # the extension of the ASGI scope that holds a connection's abort
PIECE = 1 << 16  # a long body goes out in pieces, so that no buffer holds it whole


class SlowReaderError(Exception):
    """The client does not read what it asked for; there is nobody to answer."""


@dataclass
class Readers:
    """The limits on slow readers, and how many were cut off. One per application."""

    stall_timeout_s: float
    buffer_size: int
    num_cut_off: int = 0


class Outlet:
    """Sends the messages of one response. `on_wait(True)` and `on_wait(False)` surround each."""

    def __init__(
        self,
        send: Send,
        scope: Scope,
        readers: Readers,
        on_wait: Callable[[bool], None] = lambda is_waiting: None,
    ) -> None:
        self._send = send
        self._abort: Callable[[], None] | None = (scope.get("extensions") or {}).get(ABORT)
        self._readers = readers
        self._on_wait = on_wait
        self._is_cut = False
        self._task: asyncio.Task[Any] | None = None

    async def write(self, body: bytes, *, is_last: bool = False) -> None:
        """Some of the body. Raises SlowReaderError."""
        pieces = [body[i : i + PIECE] for i in range(0, len(body) or 1, PIECE)]
        for i, piece in enumerate(pieces, start=1):
            more = not is_last or i < len(pieces)
            await self.send({"type": "http.response.body", "body": piece, "more_body": more})

    async def send(self, message: Message) -> None:
        """One ASGI message. Raises SlowReaderError."""
        self._task = asyncio.current_task()
        timer = asyncio.get_running_loop().call_later(self._readers.stall_timeout_s, self._cut)
        self._on_wait(True)
        try:
            await self._send(message)
        except asyncio.CancelledError:
            if not self._is_cut:
                raise
            getattr(self._task, "uncancel", int)()  # Python 3.11 counts cancellations
        finally:
            self._on_wait(False)
            timer.cancel()
        if self._is_cut:
            raise SlowReaderError

    def _cut(self) -> None:
        self._is_cut = True
        self._readers.num_cut_off += 1
        if self._abort is not None:
            self._abort()
        if self._task is not None:
            self._task.cancel()
