"""`Gate`: requests with a body come in one at a time, so that a crowd does not hold up the loop.

Checking and tokenizing a request takes the event loop some milliseconds. A hundred that came at
once would take them in a row, while `/health` and every stream wait. The gate lets one in for each
round of the loop; the others wait before it, in an order that is fair between clients, and where
too many do, they are refused. A request that comes alone passes at once.
"""

from __future__ import annotations

import asyncio
import itertools

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from tinyserve.errors import QueueFullError
from tinyserve.server.errors import failure
from tinyserve.server.fair_queue import Entry, FairRequestQueue
from tinyserve.server.http import client_of
from tinyserve.server.sse import send_failure

MAX_WAITING = 1024


class Gate:
    """The ASGI layer."""

    def __init__(self, app: ASGIApp, max_waiting: int = MAX_WAITING) -> None:
        self._app = app
        self._line: FairRequestQueue[asyncio.Future[None]] = FairRequestQueue(max_waiting)
        self._numbers = itertools.count()
        self._has_let_in = False  # whether it has, in this round of the event loop

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST":
            try:
                await self._turn(Request(scope))
            except QueueFullError as error:
                await send_failure(send, failure(error, scope["path"]))
                return
        await self._app(scope, receive, send)

    async def _turn(self, request: Request) -> None:
        """Wait until this request may come in. Raises QueueFullError."""
        loop = asyncio.get_running_loop()
        if not self._has_let_in:
            self._has_let_in = True
            loop.call_soon(self._let_in)
            return
        turn: asyncio.Future[None] = loop.create_future()
        group = str(next(self._numbers))
        self._line.put([Entry(turn, group, client_of(request, None))])
        try:
            await turn
        finally:
            self._line.remove_group(group)

    def _let_in(self) -> None:
        turn = self._line.pop()
        self._has_let_in = turn is not None
        if turn is not None:
            if not turn.done():
                turn.set_result(None)
            asyncio.get_running_loop().call_soon(self._let_in)
