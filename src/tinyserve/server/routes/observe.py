"""What the server lets one see of its inside: metrics, the engine's state, a trace of its steps."""

from __future__ import annotations

import asyncio
import math
import time

from starlette.requests import Request
from starlette.responses import Response

import tinyserve
from tinyserve.engine.trace_events import trace_json
from tinyserve.errors import RequestError
from tinyserve.server.answer import json_response
from tinyserve.server.endpoints import Endpoints
from tinyserve.server.errors import HTTPError
from tinyserve.server.state import ServerState

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
DEFAULT_SECONDS, MAX_SECONDS = 5.0, 60.0
SECONDS = {
    "name": "seconds",
    "in": "query",
    "description": "how long to record",
    "schema": {
        "type": "number",
        "exclusiveMinimum": 0,
        "maximum": MAX_SECONDS,
        "default": DEFAULT_SECONDS,
    },
}
LOOK_S = 0.25  # how often a recording looks whether its client is still there


def add_routes(routes: Endpoints, state: ServerState) -> None:
    @routes.get("/metrics")
    async def metrics(request: Request) -> Response:
        """Prometheus text: vLLM's metric names, and tinyserve's own."""
        return Response(await state.observer.exposition(), headers={"content-type": CONTENT_TYPE})

    @routes.get("/engine/state")
    async def engine_state(request: Request) -> Response:
        """Requests, blocks and counters at one moment between two steps."""
        return json_response(await state.observer.view())

    @routes.get("/debug/trace", parameters=[SECONDS])
    async def debug_trace(request: Request) -> Response:
        """The engine's steps of the next `seconds`, for https://ui.perfetto.dev."""
        if not state.config.debug_trace:
            raise HTTPError(404, "traces are off; start the server with --enable-debug-trace")
        seconds = checked_seconds(request.query_params.get("seconds"))
        async with state.observer.recording() as recorder:
            began = time.monotonic()
            about = {"version": tinyserve.__version__, "time": time.time(), "seconds": seconds}
            await _wait(request, began + seconds)
        body = await asyncio.to_thread(trace_json, recorder, began, about)
        return Response(body, media_type="application/json")


async def _wait(request: Request, until: float) -> None:
    """Until then, or until the client has left."""
    while (left := until - time.monotonic()) > 0 and not await request.is_disconnected():
        await asyncio.sleep(min(left, LOOK_S))


def checked_seconds(text: str | None) -> float:
    """How long to record. Raises RequestError."""
    try:
        seconds = DEFAULT_SECONDS if text is None else float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= MAX_SECONDS:
        raise RequestError(
            f"seconds must be a number above 0 and at most {MAX_SECONDS:g}, got {text!r}",
            param="seconds",
        )
    return seconds
