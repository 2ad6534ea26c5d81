"""From a prepared request to its response: run it, and write the whole answer or the stream."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tinyserve.server.bridge import EngineBridge
from tinyserve.server.deltas import Delta
from tinyserve.server.errors import HTTPFailure
from tinyserve.server.http import request_id_header
from tinyserve.server.service import Prepared
from tinyserve.server.session import Session
from tinyserve.server.shapes import to_json
from tinyserve.server.sse import EventStream
from tinyserve.server.state import ServerState


async def answer(
    state: ServerState, bridge: EngineBridge, request: Request, prepared: Prepared
) -> Response:
    """Run a prepared request. Whatever happens, it is released in the end."""
    job, writer = prepared.job, prepared.writer
    session = Session(bridge, job, timeout_s=state.config.request_timeout_s)
    session.open()
    headers = request_id_header(request)
    if prepared.is_stream:
        return _Raw(EventStream(session, writer, job.deltas, headers))
    try:
        session.watch(request.receive)
        deltas: list[Delta] = []
        async for batch in session.batches():
            deltas += batch
        response = json_response(writer.whole(deltas, job.deltas))
        response.raw_headers += headers
        return response
    finally:
        session.close()


def json_response(value: Any, status: int = 200) -> Response:
    """Compact JSON."""
    return Response(to_json(value), status, media_type="application/json")


def failure_response(told: HTTPFailure) -> Response:
    """An error as a response."""
    response = json_response(told.body, told.status)
    response.headers.update(told.headers)
    return response


class _Raw(Response):
    """Lets a bare ASGI callable stand for a response."""

    def __init__(self, stream: EventStream) -> None:
        self._stream = stream
        self.background = None
        self.raw_headers = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._stream(receive, send)
