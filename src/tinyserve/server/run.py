"""`serve`: the application on a socket, from the open port to the graceful end.

The port opens first; the model loads beside it, on a thread, and `/health` says 503 until it is
there. On SIGTERM or SIGINT no new request is taken, running ones get `shutdown_timeout_s`, then
their streams end with an error; exit code 0. A second signal ends the process at once, with 128 and
the signal's number; one that follows within `REPEAT_S` is the first, told twice. If the engine
dies, every stream ends with an error, `/health` says 503 for `DEATH_GRACE_S`, and the process ends
with an error, for a supervisor to start it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import selectors
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from tinyserve.config import ServerConfig
from tinyserve.engine.build import Engine
from tinyserve.errors import ConfigError, EngineDeadError, reason_of
from tinyserve.server.app import create_app
from tinyserve.server.collector import Collector
from tinyserve.server.connection import Connection
from tinyserve.server.guards import HostGuard, host_rule
from tinyserve.server.listen import duplicates, listening, raise_file_limit, url_of
from tinyserve.server.state import ServerState
from tinyserve.signals import end_at_once, handled

logger = logging.getLogger("tinyserve.server")

# Idle connections are kept longer than clients and proxies keep them (httpx 5 s, Go's 90 s, Caddy
# 2 minutes, Google's load balancers 10): where the server closes first, the request that was just
# being sent is lost.
KEEP_ALIVE_S = 620
TAKE_IN_S = 0.2  # for connections made before listening ended to be accepted and read
GRACE_S = 2  # for the last responses to go out once their requests have been ended
REPEAT_S = 0.5  # `timeout` and others send one signal to the process and to its group
DEATH_GRACE_S = 2.0  # for clients and probes to learn that the engine is dead
CERT_REQS = {
    "none": ssl.CERT_NONE,
    "optional": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}


def serve(
    loading: Future[Engine],
    config: ServerConfig,
    *,
    on_ready: Callable[[Engine, str], None] | None = None,
) -> None:
    """Serve until a signal. Raises what loading raises, EngineDeadError when the engine has died,
    ConfigError where the port is taken or a certificate is bad.

    `on_ready` is told the engine and the URL when requests can be answered.
    """
    app = create_app(loading=loading, config=config)
    state: ServerState = app.state.tinyserve
    knows = host_rule(config, has_keys=bool(state.keys))
    settings = web_settings(app if knows is None else HostGuard(app, knows), config)
    raise_file_limit()
    server = GracefulServer(settings, state)
    state.on_load_error = server.give_up
    # Signals are heeded before the port is open: who can connect can also stop the server.
    with (
        contextlib.ExitStack() as ending,
        server.capture_signals(),
        listening(config) as listener,
    ):
        url = url_of(config, listener)

        def ready(engine: Engine) -> None:
            assert state.bridge is not None
            collector = Collector(state.bridge)
            collector.start()
            ending.callback(collector.stop)
            if on_ready is not None:
                on_ready(engine, url)

        state.on_ready = ready
        server.run(sockets=duplicates(listener))
    if state.load_error is not None:
        raise state.load_error
    if state.death is not None:
        raise EngineDeadError(f"the engine has stopped: {state.death}")


def web_settings(app: ASGIApp, config: ServerConfig) -> uvicorn.Config:
    """uvicorn's settings. Raises ConfigError for a certificate that cannot be used."""
    settings = uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        workers=1,  # or uvicorn reads WEB_CONCURRENCY, which may be meant for others, or no number
        log_level=config.log_level if config.log_level == "debug" else "warning",
        access_log=config.access_log,
        lifespan="on",
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=int(config.shutdown_timeout_s) + GRACE_S,
        server_header=False,
        log_config=None,
        ssl_certfile=config.ssl_certfile,
        ssl_keyfile=config.ssl_keyfile,
        ssl_ca_certs=config.ssl_ca_certs,
        ssl_cert_reqs=CERT_REQS[config.ssl_cert_reqs],
    )
    if config.access_log:  # whose lines are INFO, below the level of uvicorn's others
        logging.getLogger("uvicorn.access").setLevel(logging.INFO)
    for name in ("ssl_certfile", "ssl_keyfile", "ssl_ca_certs"):
        path = getattr(config, name)
        try:
            is_encrypted = path is not None and b"ENCRYPTED" in Path(path).read_bytes()
        except OSError as error:
            raise ConfigError(f"server.{name}: cannot read {path}: {reason_of(error)}") from None
        if is_encrypted:  # OpenSSL would ask the terminal for the password, and wait
            raise ConfigError(
                f"server.{name}: the key in {path} has a password; "
                f"`openssl pkey -in {path}` writes it without one"
            )
    try:
        settings.load()
    except OSError as error:  # ssl.SSLError is one
        raise ConfigError(
            "server.ssl_certfile, ssl_keyfile, ssl_ca_certs: these files hold no certificate and "
            f"key in PEM form that belong together ({reason_of(error)})"
        ) from None
    return settings


class GracefulServer(uvicorn.Server):
    """uvicorn with our own end: drain, fail what is left, and leave with exit code 0."""

    def __init__(self, config: uvicorn.Config, state: ServerState) -> None:
        super().__init__(config)
        self._state = state
        self._is_doomed = False
        self._signalled = -math.inf  # time.monotonic of the first signal

    def give_up(self) -> None:
        """End, because there is no engine."""
        self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if now - self._signalled < REPEAT_S:
            return
        if self.should_exit:
            logger.warning("a second signal: ending at once")
            logging.shutdown()
            end_at_once(128 + sig)
        self._signalled = now
        self.should_exit = True

    async def on_tick(self, counter: int) -> bool:
        if self._state.death is not None and not self._is_doomed:
            self._is_doomed = True
            logger.error("the engine is dead; the server ends in %g s", DEATH_GRACE_S)
            asyncio.get_running_loop().call_later(DEATH_GRACE_S, self.give_up)
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._state.is_draining = True
        bridge = self._state.bridge
        if bridge is not None and bridge.num_open:
            timeout = self._state.config.shutdown_timeout_s
            logger.info("finishing %d requests (at most %g s)", bridge.num_open, timeout)
            error = EngineDeadError("the server is shutting down")
            asyncio.get_running_loop().call_later(timeout, bridge.fail_all, error)
        await self._take_in(sockets or [])
        await super().shutdown(sockets)

    async def _take_in(self, sockets: list[socket.socket]) -> None:
        """Answer whoever has connected already, if only with a refusal: the system would reset a
        connection that is closed with a request unread, or before it was accepted.
        """
        loop = asyncio.get_running_loop()
        with selectors.DefaultSelector() as waiting:
            for one in sockets[:1]:  # all are the same
                waiting.register(one, selectors.EVENT_READ)
            latest = loop.time() + TAKE_IN_S
            while sockets and waiting.select(0) and loop.time() < latest:
                await asyncio.sleep(0)
        for server in self.servers:
            server.close()
        for one in sockets:
            one.close()
        latest = loop.time() + TAKE_IN_S
        while self._has_new() and loop.time() < latest:
            await asyncio.sleep(0.01)

    def _has_new(self) -> bool:
        """Is there a connection on which nothing has been asked yet?"""
        connections = self.server_state.connections
        return any(isinstance(one, Connection) and one.cycle is None for one in connections)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """uvicorn would raise the signal again after the shutdown; a clean end is exit code 0."""
        with handled(self.handle_exit):
            yield
