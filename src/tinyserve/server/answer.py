"""From a prepared request to its response: run it, and write the whole answer or the stream."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tinyserve.server.bridge import EngineBridge
from tinyserve.server.deltas import Delta, DeltaMaker
from tinyserve.server.errors import HTTPFailure
from tinyserve.server.http import ANSWER_ID
from tinyserve.server.json_text import in_pieces, to_json
from tinyserve.server.observe.http import ARRIVAL
from tinyserve.server.outlet import Outlet, Readers, SlowReaderError
from tinyserve.server.service import Prepared
from tinyserve.server.session import Group, Session
from tinyserve.server.sse import EventStream
from tinyserve.server.state import ServerState
from tinyserve.server.writer import Writer

logger = logging.getLogger("tinyserve.server")

INLINE_WEIGHT = 4096  # deltas; a longer answer is written off the event loop
LOGPROB_WEIGHT = 8  # deltas that take as long to write as a token with its logprobs


async def answer(
    state: ServerState, bridge: EngineBridge, request: Request, prepared: Prepared
) -> Response:
    """Run a prepared request. Whatever happens, it is released in the end."""
    group, writer = prepared.group, prepared.writer
    if prepared.is_stream:
        _identify(request, group)
        timeout_s, max_held = state.config.request_timeout_s, state.readers.buffer_size
        session = Session(bridge, group, timeout_s=timeout_s, max_held=max_held)
        session.open()
        return EventStream(session, writer, group.maker, state.readers)
    deltas = await collect(state, bridge, request, group)
    return _Whole(await _written(writer, deltas, group.maker), state.readers)


async def _written(writer: Writer, deltas: list[Delta], maker: DeltaMaker) -> bytes:
    """The whole answer as JSON; a long one is written on a thread, so that the loop goes on."""

    def write() -> bytes:
        return in_pieces(writer.whole(deltas, maker)).encode()

    weight = sum(1 + LOGPROB_WEIGHT * len(delta.logprobs or ()) for delta in deltas)
    if weight <= INLINE_WEIGHT and not any(map(maker.prompt_logprobs, maker.prompts)):
        return write()
    return await asyncio.to_thread(write)


def _identify(request: Request, group: Group) -> None:
    """Let HTTP and the engine agree about a request: it goes by the id of its answer, and arrived
    when HTTP received it, not when it had been tokenized.
    """
    request.scope[ANSWER_ID] = group.id
    for engine_request in group.requests:
        engine_request.arrival = request.scope.get(ARRIVAL, engine_request.arrival)


async def collect(
    state: ServerState, bridge: EngineBridge, request: Request, group: Group
) -> list[Delta]:
    """All deltas of a group, once it has finished. Whatever happens, it is released in the end."""
    _identify(request, group)
    session = Session(bridge, group, timeout_s=state.config.request_timeout_s)
    session.open()
    try:
        session.watch(request.receive)
        deltas: list[Delta] = []
        async for batch in session.batches():
            deltas += batch
        return deltas
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


class _Whole(Response):
    """A JSON answer that may be long. A client that does not read it is cut off: else the server
    would have to keep it.
    """

    media_type = "application/json"

    def __init__(self, body: bytes, readers: Readers) -> None:
        super().__init__(body)
        self._readers = readers

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        outlet = Outlet(send, scope, self._readers)
        headers = self.raw_headers
        try:
            await outlet.send({"type": "http.response.start", "status": 200, "headers": headers})
            await outlet.write(bytes(self.body), is_last=True)
        except SlowReaderError:
            logger.info("a client that did not read its answer was cut off")
