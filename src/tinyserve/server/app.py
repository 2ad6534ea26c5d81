"""The HTTP application: routes, their errors, and the start and end of the engine's thread.

`create_app(engine)` for an engine that is there, `create_app(loading=...)` for one that is still to
be loaded (`/health` says 503 meanwhile). No module-level state. `python -m tinyserve.server.app`
is `tinyserve serve`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

import tinyserve
from tinyserve.config import ServerConfig
from tinyserve.engine.build import Engine
from tinyserve.errors import EngineDeadError, TinyServeError, UnknownModelError
from tinyserve.server.bridge import EngineBridge
from tinyserve.server.deltas import Delta
from tinyserve.server.errors import HTTPFailure, failure, status_failure
from tinyserve.server.http import KeyGuard, client_of, read_json, request_id_header
from tinyserve.server.openapi import body_schema
from tinyserve.server.protocol import ChatRequest, CompletionRequest, parse_body
from tinyserve.server.service import ALIAS, Prepared
from tinyserve.server.session import ClientGoneError, Session
from tinyserve.server.shapes import to_json
from tinyserve.server.sse import EventStream
from tinyserve.server.state import ServerState

logger = logging.getLogger("tinyserve.server")


def create_app(
    engine: Engine | None = None,
    *,
    loading: Future[Engine] | None = None,
    config: ServerConfig | None = None,
    on_ready: Callable[[Engine], None] | None = None,
) -> FastAPI:
    """The application for `engine`, or for the one that `loading` will hold.

    `on_ready` is told the engine when requests can be answered.

    `config` defaults to the engine's. The state is at `app.state.tinyserve`.
    """
    if config is None:
        config = engine.config.server if engine is not None else ServerConfig()
    state = ServerState(config)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        waiting = None
        if engine is not None:
            state.start(engine)
        elif loading is not None:
            waiting = asyncio.create_task(_wait(state, loading, on_ready))
        yield
        if waiting is not None:
            waiting.cancel()
        await asyncio.to_thread(state.stop)

    app = FastAPI(title="tinyserve", version=tinyserve.__version__, lifespan=lifespan)
    app.state.tinyserve = state
    _add_middleware(app, config)
    _add_error_handlers(app)
    _add_routes(app, state)
    return app


async def _wait(
    state: ServerState,
    loading: Future[Engine],
    on_ready: Callable[[Engine], None] | None,
) -> None:
    try:
        engine = await asyncio.wrap_future(loading)
    except Exception as error:
        state.load_error = error
        if state.on_load_error is not None:
            state.on_load_error()
        return
    state.start(engine)
    if on_ready is not None:
        on_ready(engine)


def _add_middleware(app: FastAPI, config: ServerConfig) -> None:
    if config.api_key:
        app.add_middleware(KeyGuard, keys=config.api_key)
    if config.allowed_origins:
        from starlette.middleware.cors import CORSMiddleware

        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(config.allowed_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
        )


def _add_error_handlers(app: FastAPI) -> None:
    async def on_error(request: Request, error: Exception) -> Response:
        if isinstance(error, ClientGoneError):
            return Response(status_code=499)  # nobody reads it
        if isinstance(error, HTTPException):
            return _json_failure(status_failure(error.status_code, error.detail))
        told = failure(error)
        if told.status >= 500 and not isinstance(error, EngineDeadError):
            logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return _json_failure(told)

    for kind in (TinyServeError, ClientGoneError, HTTPException, Exception):
        app.add_exception_handler(kind, on_error)


def _add_routes(app: FastAPI, state: ServerState) -> None:
    @app.head("/health", include_in_schema=False)
    @app.get("/health")
    async def health() -> Response:
        status, body = state.health()
        return _json(body, status)

    @app.get("/v1/models")
    async def models() -> Response:
        service, _ = state.ready()
        data = [service.model_object(name) for name in service.names]
        return _json({"object": "list", "data": data})

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> Response:
        service, _ = state.ready()
        if name not in (*service.names, ALIAS):
            raise UnknownModelError(name)
        return _json(service.model_object(name))

    @app.post("/v1/completions", openapi_extra=body_schema(CompletionRequest))
    async def completions(request: Request) -> Response:
        service, bridge = state.ready()
        body = parse_body(CompletionRequest, await read_json(request, state.config.max_body_size))
        prepared = await service.completion(body, client_of(request, body.user))
        return await _answer(state, bridge, request, prepared)

    @app.post("/v1/chat/completions", openapi_extra=body_schema(ChatRequest))
    async def chat_completions(request: Request) -> Response:
        service, bridge = state.ready()
        body = parse_body(ChatRequest, await read_json(request, state.config.max_body_size))
        prepared = await service.chat(body, client_of(request, body.user))
        return await _answer(state, bridge, request, prepared)


async def _answer(
    state: ServerState, bridge: EngineBridge, request: Request, prepared: Prepared
) -> Response:
    """Run a prepared request: the whole answer, or the stream of it."""
    session = Session(bridge, prepared.job, timeout_s=state.config.request_timeout_s)
    session.open()
    headers = request_id_header(request)
    if prepared.body.stream:
        return _Raw(
            EventStream(
                session,
                prepared.shape,
                prepared.job.deltas,
                num_choices=prepared.job.num_choices,
                include_usage=prepared.body.include_usage,
                headers=headers,
            )
        )
    try:
        session.watch(request.receive)
        deltas: list[Delta] = []
        async for batch in session.batches():
            deltas += batch
        response = _json(prepared.whole(deltas))
        response.raw_headers += headers
        return response
    finally:
        session.close()


class _Raw(Response):
    """Lets a bare ASGI callable stand for a response."""

    def __init__(self, stream: EventStream) -> None:
        self._stream = stream
        self.background = None
        self.raw_headers = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._stream(receive, send)


def _json(value: Any, status: int = 200) -> Response:
    return Response(to_json(value), status, media_type="application/json")


def _json_failure(told: HTTPFailure) -> Response:
    response = _json(told.body, told.status)
    response.headers.update(told.headers)
    return response


if __name__ == "__main__":
    import sys

    from tinyserve.cli import main

    sys.exit(main(["serve", *sys.argv[1:]]))
