"""The server as a process: start, signals, a dying engine, exit codes, and what it writes."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from helpers.live_server import wait_for

import tinyserve

SCRIPT = Path(__file__).parent.parent / "helpers" / "serve_fake.py"
SOURCE = Path(tinyserve.__file__).parent.parent
BODY = {"prompt": "x", "max_tokens": 40, "ignore_eos": True, "stream": True}


class Server:
    """A child process that serves a fake engine on a Unix socket."""

    def __init__(self, folder: Path, **environment: object) -> None:
        self.path = folder / "s"
        values = {"TINYSERVE_SERVER_UDS": self.path, **environment}
        env = {**os.environ, **{name: str(value) for name, value in values.items()}}
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT)],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        transport = httpx.HTTPTransport(uds=str(self.path))
        self.client = httpx.Client(transport=transport, base_url="http://s", timeout=30)

    def is_up(self) -> bool:
        """Does it take connections?"""
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(str(self.path)) == 0

    def wait_ready(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline().startswith("http")

    def end(self, *signals: signal.Signals) -> tuple[int, str]:
        """Send signals, if any, and wait for the end: exit code and what was said."""
        for number in signals:
            self.process.send_signal(number)
        _, said = self.process.communicate(timeout=60)
        return self.process.returncode, said

    def health(self) -> tuple[int, str]:
        response = self.client.get("/health")
        return response.status_code, response.json()["status"]


@contextlib.contextmanager
def server(folder: Path, **environment: object) -> Iterator[Server]:
    started = Server(folder, **environment)
    try:
        yield started
    finally:
        started.client.close()
        if started.process.poll() is None:
            started.process.kill()
            started.process.communicate()


class Stream(threading.Thread):
    """A client that reads a stream to its end."""

    def __init__(self, client: httpx.Client) -> None:
        super().__init__(daemon=True)
        self.client = client
        self.lines: list[str] = []
        self.start()
        wait_for(lambda: len(self.lines) > 4, 30)

    def run(self) -> None:
        with self.client.stream("POST", "/v1/completions", json=BODY) as response:
            for line in response.iter_lines():
                if line:
                    self.lines.append(line)

    def last_event(self) -> str:
        self.join(30)
        assert not self.is_alive()
        return self.lines[-1].removeprefix("data: ")


def test_the_port_opens_first_and_a_signal_drains(tmp_path: Path) -> None:
    with server(tmp_path, FAKE_LOAD_S=1, FAKE_STEP_S=0.03) as running:
        wait_for(running.is_up, 60)
        assert running.health() == (503, "loading")
        assert running.client.post("/v1/completions", json=BODY).status_code == 503
        running.wait_ready()
        assert running.health() == (200, "ok")
        stream = Stream(running.client)
        code, said = running.end(signal.SIGTERM)
        assert stream.last_event() == "[DONE]"
        assert len(stream.lines) > 20
        assert code == 0, said
        assert "Traceback" not in said
        assert not running.path.exists()


def test_what_takes_too_long_ends_with_an_error(tmp_path: Path) -> None:
    with server(tmp_path, TINYSERVE_SERVER_SHUTDOWN_TIMEOUT_S=0, FAKE_STEP_S=0.2) as running:
        running.wait_ready()
        stream = Stream(running.client)
        code, said = running.end(signal.SIGTERM)
        assert "shutting down" in json.loads(stream.last_event())["error"]["message"]
        assert code == 0, said
        assert "ERROR" not in said, "that is how it was to end"


def test_a_variable_of_other_servers_is_nothing_to_this_one(tmp_path: Path) -> None:
    with server(tmp_path, WEB_CONCURRENCY="auto") as running:
        running.wait_ready()
        assert running.health() == (200, "ok")


def test_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    with server(tmp_path, TINYSERVE_SERVER_SHUTDOWN_TIMEOUT_S=600, FAKE_STEP_S=5) as running:
        running.wait_ready()
        threading.Thread(target=_forsaken, args=(running.client,), daemon=True).start()
        wait_for(lambda: running.client.get("/health").json()["running"] == 1, 30)
        running.process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            running.process.wait(1)
        code, _ = running.end(signal.SIGTERM)
        assert code == 128 + signal.SIGTERM


def test_a_signal_that_is_told_twice_is_one(tmp_path: Path) -> None:
    """`timeout` sends it to the process and to its group: that is no second request to end."""
    with server(tmp_path, TINYSERVE_SERVER_SHUTDOWN_TIMEOUT_S=600, FAKE_STEP_S=0.1) as running:
        running.wait_ready()
        stream = Stream(running.client)
        running.process.send_signal(signal.SIGTERM)
        code, said = running.end(signal.SIGINT)  # of another number, so that both arrive
        assert code == 0, said
        assert stream.last_event() == "[DONE]"


def test_a_body_that_is_not_there_by_the_end_is_refused(tmp_path: Path) -> None:
    with server(tmp_path, TINYSERVE_SERVER_SHUTDOWN_TIMEOUT_S=0) as running:
        running.wait_ready()
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(running.path))
            head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            client.sendall(head + b"Content-Length: 99\r\n\r\n{")
            assert running.health() == (200, "ok")
            code, said = running.end(signal.SIGTERM)
            assert code == 0
            assert "Traceback" not in said
            assert client.recv(1000).startswith(b"HTTP/1.1 503 ")


def _forsaken(client: httpx.Client) -> None:
    with contextlib.suppress(httpx.HTTPError):
        client.post("/v1/completions", json=BODY)


def test_a_signal_while_the_model_loads(tmp_path: Path) -> None:
    with server(tmp_path, FAKE_LOAD_S=600) as running:
        wait_for(running.is_up, 60)
        code, said = running.end(signal.SIGINT)
        assert code == 0, said


def test_con_15_a_dying_engine_ends_the_process_with_an_error(tmp_path: Path) -> None:
    with server(tmp_path, FAKE_FAULT_AFTER=8, FAKE_STEP_S=0.02) as running:
        running.wait_ready()
        stream = Stream(running.client)
        assert "the fake model broke" in json.loads(stream.last_event())["error"]["message"]
        assert running.health() == (503, "dead")
        assert running.client.post("/v1/completions", json=BODY).status_code == 503
        code, said = running.end()
        assert code == 1
        assert "the engine has stopped: the fake model broke" in said


def tree(folder: Path) -> dict[str, float]:
    return {str(p.relative_to(folder)): p.stat().st_mtime for p in folder.rglob("*")}


def test_nothing_is_written_outside_the_cache_folder(tmp_path: Path) -> None:
    """Home, working directory and temporary files stay as they were."""
    cache, outside = tmp_path / "cache", tmp_path / "outside"
    for name in ("home", "work", "tmp"):
        (outside / name).mkdir(parents=True)
    environment = {
        **os.environ,
        "HOME": str(outside / "home"),
        "TMPDIR": str(outside / "tmp"),
        "TINYSERVE_CACHE": str(cache),
        "PYTHONPATH": str(SOURCE),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    before = tree(outside)
    command = [sys.executable, "-m", "tinyserve", "serve", "--model", "synthetic", "--port", "0"]
    process = subprocess.Popen(
        command, env=environment, cwd=outside / "work", stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    said = ""
    try:
        while (match := re.search(r"http://127\.0\.0\.1:\d+", said)) is None:
            line = process.stderr.readline()
            assert line, said
            said += line
        with httpx.Client(base_url=match.group(), timeout=30) as client:
            for path in ("/", "/v1/models", "/openapi.json", "/metrics"):
                client.get(path)
            messages = [{"role": "user", "content": "hello"}]
            body = {"messages": messages, "max_tokens": 3}
            assert client.post("/v1/chat/completions", json=body).status_code == 200
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        assert process.returncode == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    assert tree(outside) == before
