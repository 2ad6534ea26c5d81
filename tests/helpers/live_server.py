"""The HTTP server on a real socket, in a thread of the test process, over any engine."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
from helpers.fake_service import SpeakingRunner, assert_idle, runner_of

from tinyserve.engine.build import Engine
from tinyserve.server.app import create_app
from tinyserve.server.bridge import EngineBridge
from tinyserve.server.listen import duplicates
from tinyserve.server.run import GracefulServer, web_settings
from tinyserve.server.state import ServerState

LOOK_S = 0.002  # between two looks of `wait_for`


@dataclass
class Live:
    """A running server and what is inside it."""

    base_url: str
    engine: Engine
    state: ServerState
    server: GracefulServer
    client: httpx.Client
    connections: list[http.client.HTTPConnection] = field(default_factory=list)

    @property
    def runner(self) -> SpeakingRunner:
        return runner_of(self.engine)

    @property
    def bridge(self) -> EngineBridge:
        assert self.state.bridge is not None
        return self.state.bridge

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.client.post(path, json=body)

    def open(self, body: dict[str, Any], **headers: str) -> http.client.HTTPConnection:
        """Send a completion request on a connection of its own, which the test may drop."""
        host, _, port = self.base_url.removeprefix("http://").partition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=20)
        self.connections.append(connection)
        headers = {"content-type": "application/json", **headers}
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        return connection

    def hang_up(self) -> None:
        """Close every connection made by `open`."""
        while self.connections:
            self.connections.pop().close()

    def complete(self, prompt: Any = "hello", **body: Any) -> dict[str, Any]:
        return ok(self.post("/v1/completions", prompt=prompt, **body))

    def chat(self, content: str = "hello", **body: Any) -> dict[str, Any]:
        messages = [{"role": "user", "content": content}]
        return ok(self.post("/v1/chat/completions", messages=messages, **body))

    def stream(self, path: str, **body: Any) -> list[dict[str, Any]]:
        """The chunks of a stream that ends well."""
        response = self.post(path, stream=True, **body)
        assert response.status_code == 200, response.text
        events = sse_events(response.text)
        assert events[-1] == "[DONE]"
        return [json.loads(event) for event in events[:-1]]

    def wait_idle(self) -> None:
        """Until every request has been released and its blocks are back."""
        wait_for(lambda: self.bridge.num_open == 0 and not self.engine.core.has_work())
        assert_idle(self.engine)


def ok(response: httpx.Response) -> dict[str, Any]:
    assert response.status_code == 200, response.text
    result: dict[str, Any] = response.json()
    return result


def sse_events(text: str) -> list[str]:
    """The data of each event; comments are skipped, anything else is an error."""
    assert text.endswith("\n\n")
    events = []
    for block in text.removesuffix("\n\n").split("\n\n"):
        if block.startswith(":"):
            continue
        assert block.startswith("data: "), block
        assert "\n" not in block
        events.append(block.removeprefix("data: "))
    return events


def wait_for(condition: Callable[[], bool], timeout: float = 30.0) -> None:
    """Counts looks, not time: a process that the machine has paused still gets them all."""
    for _ in range(int(timeout / LOOK_S)):
        if condition():
            return
        time.sleep(LOOK_S)
    raise AssertionError("timed out")


@contextlib.contextmanager
def live(
    engine: Engine, *, check_idle: bool = True, send_buffer: int | None = None
) -> Iterator[Live]:
    """Serve `engine` on a free port until the block ends; then everything must be given back.

    `send_buffer`: bytes that the kernel may hold of a connection's answers.
    """
    app = create_app(engine)
    state: ServerState = app.state.tinyserve
    settings = web_settings(app, engine.config.server)
    settings.timeout_graceful_shutdown = 5
    settings.timeout_keep_alive = 600  # a machine may pause a test; no connection ends meanwhile
    server = GracefulServer(settings, state)
    listener = socket.socket()
    if send_buffer is not None:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
    listener.bind(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    thread = threading.Thread(
        target=server.run, kwargs={"sockets": duplicates(listener)}, daemon=True
    )
    thread.start()
    wait_for(lambda: server.started)
    with httpx.Client(base_url=url, timeout=30) as client:
        running = Live(url, engine, state, server, client)
        try:
            yield running
            running.hang_up()
            if check_idle:
                running.wait_idle()
        finally:
            running.hang_up()
            engine_runner = engine.core.runner
            if isinstance(engine_runner, SpeakingRunner):
                engine_runner.gate.set()
            server.should_exit = True
            wait_for(lambda: not thread.is_alive())
