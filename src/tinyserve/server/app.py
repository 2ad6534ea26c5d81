"""The HTTP application: its routes put together, errors, and the start and end of the engine's
thread.

`create_app(engine)` for an engine that is there, `create_app(loading=...)` for one that is still to
be loaded (`/health` says 503 meanwhile). No module-level state. `python -m tinyserve.server.app`
is `tinyserve serve`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from concurrent.futures import Future

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from tinyserve.config import ServerConfig
from tinyserve.engine.build import Engine
from tinyserve.errors import TinyServeError
from tinyserve.server.answer import failure_response
from tinyserve.server.endpoints import Endpoints
from tinyserve.server.errors import failure, is_news, status_failure
from tinyserve.server.gate import Gate
from tinyserve.server.guards import OPEN_PATHS, KeyGuard
from tinyserve.server.http import request_id_headers
from tinyserve.server.observe.http import HTTPMeter
from tinyserve.server.openapi.document import Reference
from tinyserve.server.routes import ROUTES
from tinyserve.server.session import ClientGoneError
from tinyserve.server.state import ServerState

logger = logging.getLogger("tinyserve.server")


def create_app(
    engine: Engine | None = None,
    *,
    loading: Future[Engine] | None = None,
    config: ServerConfig | None = None,
) -> Starlette:
    """The application for `engine`, or for the one that `loading` will hold.

    `config` defaults to the engine's. The `ServerState` is at `app.state.tinyserve`.
    """
    if config is None:
        config = engine.config.server if engine is not None else ServerConfig()
    state = ServerState(config)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        waiting = None
        if engine is not None:
            state.start(engine)
        elif loading is not None:
            waiting = asyncio.create_task(_start_when_loaded(state, loading))
        yield
        if waiting is not None:
            waiting.cancel()
        await asyncio.to_thread(state.stop)

    endpoints = Endpoints()
    for add_routes in ROUTES:
        add_routes(endpoints, state)
    reference = Reference(endpoints, OPEN_PATHS if state.keys else None)
    app = Starlette(routes=[*endpoints.routes(), *reference.routes()], lifespan=lifespan)
    app.router.redirect_slashes = False  # `NamedRoute` has its own way
    app.state.tinyserve = state
    _add_middleware(app, state)
    app.add_middleware(HTTPMeter, metrics=state.observer.http)  # the last one is the outermost
    _add_error_handlers(app)
    return app


async def _start_when_loaded(state: ServerState, loading: Future[Engine]) -> None:
    try:
        engine = await asyncio.wrap_future(loading)
    except Exception as error:
        state.load_error = error
        state.on_load_error()
        return
    state.start(engine)
    state.on_ready(engine)


class RootPath:
    """Serves under a path prefix of a proxy, whether or not the proxy strips it. The prefix alone
    leads to the page below it, whose links are relative.
    """

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        self._app = app
        self._root_path = root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if scope["type"] == "http" and scope["path"] == self._root_path:
            app = RedirectResponse(self._root_path + "/")
        scope["root_path"] = self._root_path  # in place: layers around it read what routes leave
        await app(scope, receive, send)


def _add_middleware(app: Starlette, state: ServerState) -> None:
    config = state.config
    app.add_middleware(Gate)
    if config.root_path:
        app.add_middleware(RootPath, root_path=config.root_path)
    if state.keys:
        app.add_middleware(KeyGuard, keys=state.keys, root_path=config.root_path)
    if config.allowed_origins:
        from starlette.middleware.cors import CORSMiddleware

        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(config.allowed_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            allow_private_network=True,  # browsers ask before a public page may call this machine
            expose_headers=["X-Request-Id", "Request-Id", "Retry-After"],
        )


def _add_error_handlers(app: Starlette) -> None:
    paths = [route.path for route in app.routes if isinstance(route, Route)]

    async def on_error(request: Request, error: Exception) -> Response:
        if isinstance(error, ClientGoneError):
            return Response(status_code=499)  # no client is left to read it
        path = request.url.path
        if isinstance(error, HTTPException):
            told = status_failure(error.status_code, request.method, path, error.headers, paths)
        else:
            told = failure(error, path)
        if is_news(error, told):
            logger.error("%s %s failed", request.method, path, exc_info=error)
        return failure_response(told)

    async def on_crash(request: Request, error: Exception) -> Response:
        """What nobody expected is answered outside of the meter."""
        response = await on_error(request, error)
        response.raw_headers += request_id_headers(request.scope)
        return response

    for kind in (TinyServeError, ClientGoneError, HTTPException):
        app.add_exception_handler(kind, on_error)
    app.add_exception_handler(Exception, on_crash)


if __name__ == "__main__":
    import sys

    from tinyserve.cli import main

    sys.exit(main(["serve", *sys.argv[1:]]))
