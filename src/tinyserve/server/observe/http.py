"""`HTTPMeter`: counts HTTP requests, notes when each came, and names each response.

The outermost ASGI layer, so that refusals by the layers below are counted too. Labels are bounded:
a handler is the template of its route, never a path that a client made up.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from tinyserve.errors import EngineDeadError
from tinyserve.server.errors import failure
from tinyserve.server.http import request_id_headers
from tinyserve.server.observe.histogram import Histogram
from tinyserve.server.sse import send_failure

ARRIVAL = "tinyserve.arrival"  # key in the scope: time.monotonic when the request came
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"})
GONE = 499  # nginx's status for a client that left before its answer
NO_HANDLER = "none"  # no route was reached: refused before routing, or unknown

SECONDS = (
    *(0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0),
    *(120.0, 300.0, 600.0, 1800.0),
)
REFUSALS = {
    400: "invalid",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    408: "timeout",
    413: "too_large",
    415: "unsupported_type",
    422: "invalid",
    429: "overloaded",
    503: "unavailable",
}


class HTTPMetrics:
    """Sums over all HTTP requests. The event loop's alone."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, str]] = Counter()  # handler, method, status class
        self.seconds: dict[tuple[str, str], Histogram] = {}  # handler, method
        self.refused: Counter[str] = Counter(dict.fromkeys(REFUSALS.values(), 0))
        self.num_disconnects = 0
        self.count_slow_readers: Callable[[], int] = lambda: 0

    def add(self, handler: str, method: str, status: int, seconds: float) -> None:
        self.requests[handler, method, f"{status // 100}xx"] += 1
        if (handler, method) not in self.seconds:
            self.seconds[handler, method] = Histogram(SECONDS)
        self.seconds[handler, method].observe(seconds)
        if status in REFUSALS:
            self.refused[REFUSALS[status]] += 1


class HTTPMeter:
    """The ASGI layer. Adds no coroutine to a token's way: `send` is looked at and passed on."""

    def __init__(self, app: ASGIApp, metrics: HTTPMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope[ARRIVAL] = began = time.monotonic()
        exchange = _Exchange(scope, receive, send)
        try:
            await self._app(scope, exchange.receive, exchange.send)
        except Exception:
            exchange.fail()
            raise
        except asyncio.CancelledError:  # the server ends; raised on, it would be logged as a crash
            await exchange.give_up()
        finally:
            if exchange.was_left:
                self._metrics.num_disconnects += 1
            method = scope["method"] if scope["method"] in METHODS else "OTHER"
            seconds = time.monotonic() - began
            self._metrics.add(_handler(scope), method, exchange.status, seconds)


class _Exchange:
    """One request: the status it was answered with, and whether the client left before the end."""

    __slots__ = ("_receive", "_scope", "_send", "is_complete", "status", "was_left")

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self.status = GONE  # until there is an answer
        self.is_complete = False
        self.was_left = False

    async def receive(self) -> Any:
        message = await self._receive()
        if message["type"] == "http.disconnect" and not self.is_complete:
            self.was_left = True
        return message

    def fail(self) -> None:
        """An exception has passed the layers below; the server answers it, outside of this one."""
        if self.status == GONE:
            self.status = 500

    async def give_up(self) -> None:
        """Refuse what is not answered by the end of the server, such as a body on its way."""
        if self.status == GONE and not self.was_left:
            error = EngineDeadError("the server is shutting down")
            await send_failure(self.send, failure(error, self._scope["path"]))

    def send(self, message: Any) -> Awaitable[None]:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message["headers"], *request_id_headers(self._scope)]
        elif not message.get("more_body"):
            self.is_complete = True
        return self._send(message)


def _handler(scope: Scope) -> str:
    path = getattr(scope.get("route"), "path", None)
    return path if isinstance(path, str) else NO_HANDLER
