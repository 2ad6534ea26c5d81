"""`serve`: the application on a socket, from start-up summary to graceful end.

The port opens first; the model loads beside it, on a thread, and `/health` says 503 until it is
there. On SIGTERM or SIGINT no new request is taken, running ones get `shutdown_timeout_s`, then
their streams end with an error. A second SIGINT ends at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future

import uvicorn

from tinyserve.config import ServerConfig
from tinyserve.engine.build import Engine
from tinyserve.errors import ConfigError, EngineDeadError
from tinyserve.server.app import create_app
from tinyserve.server.state import ServerState

logger = logging.getLogger("tinyserve.server")

GRACE_S = 2  # for responses to go out once their requests have been ended


def serve(
    loading: Future[Engine],
    config: ServerConfig,
    *,
    on_ready: Callable[[Engine, str], None] | None = None,
) -> None:
    """Serve until a signal. Raises what loading raises, ConfigError where the port is taken.

    `on_ready` is told the engine and the URL when requests can be answered.
    """
    listener = _listen(config)
    url = _url(config.host, listener.getsockname()[1])

    def announce(engine: Engine) -> None:
        if on_ready is not None:
            on_ready(engine, url)

    app = create_app(loading=loading, config=config, on_ready=announce)
    state: ServerState = app.state.tinyserve
    settings = uvicorn.Config(
        app,
        log_level=config.log_level if config.log_level == "debug" else "warning",
        access_log=config.access_log,
        lifespan="on",
        timeout_graceful_shutdown=int(config.shutdown_timeout_s) + GRACE_S,
        server_header=False,
        log_config=None,
    )
    server = GracefulServer(settings, state)
    state.on_load_error = server.give_up
    with contextlib.closing(listener):
        server.run(sockets=[listener])
    if state.load_error is not None:
        raise state.load_error


class GracefulServer(uvicorn.Server):
    """uvicorn with our own end: drain, fail what is left, and leave with exit code 0."""

    def __init__(self, config: uvicorn.Config, state: ServerState) -> None:
        super().__init__(config)
        self._state = state

    def give_up(self) -> None:
        """End because the model could not be loaded."""
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._state.is_draining = True
        bridge = self._state.bridge
        if bridge is not None and bridge.num_open:
            timeout = self._state.config.shutdown_timeout_s
            logger.info("finishing %d requests (at most %g s)", bridge.num_open, timeout)
            error = EngineDeadError("the server is shutting down")
            asyncio.get_running_loop().call_later(timeout, bridge.fail_all, error)
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """uvicorn would raise the signal again after the shutdown; a clean end is exit code 0."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {s: signal.signal(s, self.handle_exit) for s in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _listen(config: ServerConfig) -> socket.socket:
    """A bound socket, so that a taken port is known before the model loads."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((config.host, config.port))
    except (OSError, UnicodeError) as error:
        listener.close()
        raise ConfigError(
            f"server.host, server.port: cannot listen on {config.host}:{config.port}: {error}"
        ) from None
    listener.set_inheritable(False)
    return listener


def _url(host: str, port: int) -> str:
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}"
