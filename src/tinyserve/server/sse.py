"""The streamed response: server-sent events, written as they come.

A response that sends by itself instead of the framework's, so that a token costs one `send` and
nothing else. The status line waits for the first event (or the first ping), so that an error
before it is still plain JSON with its own status. After it, an error is an event and the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tinyserve.server.deltas import Delta, DeltaMaker
from tinyserve.server.errors import HTTPFailure, failure, is_news
from tinyserve.server.json_text import to_json
from tinyserve.server.outlet import Outlet, Readers, SlowReaderError
from tinyserve.server.session import INLINE_SCORES, ClientGoneError, Session
from tinyserve.server.writer import Writer

logger = logging.getLogger("tinyserve.server")

PING = b": ping\n\n"  # a comment, which clients pass over (WHATWG HTML, section 9.2)
# To the standard only CR and LF end a line. Python's `str.splitlines`, and with it httpx's
# `iter_lines`, takes these characters for ends too, and would cut the JSON in two.
_BREAKS = tuple((char.encode(), f"\\u{ord(char):04x}".encode()) for char in "\x85\u2028\u2029")
HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class EventStream(Response):
    """Sends one session as events. `session` is open and is closed here."""

    def __init__(
        self, session: Session, writer: Writer, maker: DeltaMaker, readers: Readers
    ) -> None:
        self._session = session
        self._writer = writer
        self._maker = maker
        self._readers = readers
        self._has_begun = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        outlet = Outlet(send, scope, self._readers, on_wait=self._session.hold)
        try:
            self._session.watch(receive, ticks=True)
            await self._stream(outlet)
        except (ClientGoneError, OSError):  # servers raise OSError on sending to a closed socket
            logger.debug("a client left its stream")
        except SlowReaderError:
            logger.info("a client that did not read its stream was cut off")
        except Exception as error:
            await self._fail(error, outlet, scope["path"])
        finally:
            self._session.close()

    async def _stream(self, outlet: Outlet) -> None:
        async for batch in self._session.batches():
            if not self._has_begun:
                await self._begin(outlet)
            if self._maker.scores_prompts and _is_long(batch):
                await outlet.write(await asyncio.to_thread(self._frames, batch))
            else:
                await outlet.write(self._frames(batch) if batch else PING)
        closing = self._writer.closing(self._maker.usage)
        await outlet.write(one_line_each(closing), is_last=True)

    def _frames(self, batch: Sequence[Delta]) -> bytes:
        return one_line_each(self._writer.frames(batch, self._maker.usage))

    async def _begin(self, outlet: Outlet) -> None:
        self._has_begun = True
        await outlet.send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        opening = one_line_each(self._writer.opening(self._maker))
        if opening:
            await outlet.write(opening)

    async def _fail(self, error: Exception, outlet: Outlet, path: str) -> None:
        told = failure(error, path)
        if is_news(error, told):
            logger.error("a stream failed: %s", error, exc_info=error)
        with contextlib.suppress(OSError, SlowReaderError):  # the client may be gone as well
            if self._has_begun:
                await outlet.write(one_line_each(self._writer.error(told)), is_last=True)
            else:
                await send_failure(outlet.send, told)


def _is_long(batch: Sequence[Delta]) -> bool:
    """Whether writing it would hold up the loop: it has the scores of a long prompt."""
    return any(len(delta.logprobs or ()) > INLINE_SCORES for delta in batch)


def one_line_each(events: bytes) -> bytes:
    """The events, with those characters in their JSON escaped that some clients take for the end of
    a line.
    """
    if not events.isascii():
        for char, escape in _BREAKS:
            events = events.replace(char, escape)
    return events


async def send_failure(
    send: Send, told: HTTPFailure, headers: list[tuple[bytes, bytes]] | None = None
) -> None:
    """A whole error response through bare ASGI."""
    body = to_json(told.body).encode()
    own = [(k.lower().encode(), v.encode()) for k, v in told.headers.items()]
    all_headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        *own,
        *(headers or []),
    ]
    await send({"type": "http.response.start", "status": told.status, "headers": all_headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
