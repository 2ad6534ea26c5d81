"""pytest plugin: `tinyserve_server`, a running server for the tests of a project that talks to one.

The server runs in a process of its own, on a free port of this machine, for the whole test session.
The model is a tiny random one unless `--tinyserve-model` (or `tinyserve_model` in the ini file)
says otherwise: nothing is downloaded, and it starts in about a second. The same request gives the
same answer, always, so tests may assert on text.

Costs a test run that does not use it nothing: no server code is imported here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from openai import OpenAI

LOG_LINES = 40  # shown when the server does not start
PORT_TRIES = 3
# The server ends when its standard input is closed. The test run holds the other end of that pipe,
# so no server outlives it, even if it is killed.
PROGRAM = """
import os, signal, sys, threading

def end_with_the_test_run():
    os.read(0, 1)
    os.kill(os.getpid(), signal.SIGTERM)

threading.Thread(target=end_with_the_test_run, daemon=True).start()

from tinyserve.cli import main

sys.exit(main())
"""
# The only TINYSERVE_* variables of the shell that reach the server: no test depends on others.
KEPT_VARIABLES = ("TINYSERVE_CACHE", "TINYSERVE_BACKEND")


@dataclass(frozen=True)
class TinyserveServer:
    """A running server."""

    url: str  # http://127.0.0.1:PORT
    model: str  # its name in the API; "tinyserve" works as well
    log_path: Path  # receives what the server prints

    @property
    def base_url(self) -> str:
        """The URL with /v1, for OpenAI's clients."""
        return f"{self.url}/v1"

    def openai(self, **options: Any) -> OpenAI:
        """A client of the `openai` package, which must be installed. The shell's proxies have no
        say: the server is on this machine.
        """
        from openai import DefaultHttpxClient, OpenAI

        if "http_client" not in options:
            options["http_client"] = DefaultHttpxClient(trust_env=False)
        return OpenAI(**{"base_url": self.base_url, "api_key": "none", **options})


class StartError(Exception):
    """The server did not start; the message ends with what it printed."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tinyserve", "a server for tests (fixture tinyserve_server)")
    group.addoption(
        "--tinyserve-model",
        metavar="MODEL",
        help="synthetic (tiny, random; the default), default (SmolLM2-135M, fetched once), "
        "or what `tinyserve serve` takes: a folder, a .gguf file, a hub id",
    )
    parser.addini("tinyserve_model", "the same as --tinyserve-model", default="synthetic")
    parser.addini("tinyserve_args", "more arguments for `tinyserve serve`", type="args")
    parser.addini("tinyserve_timeout", "seconds that the server may take to start", default="300")


@pytest.fixture(scope="session")
def tinyserve_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TinyserveServer]:
    """A running tinyserve, started once for the session; see `TinyserveServer`."""
    from tinyserve.bench.served import unproxied

    config = request.config
    model = config.getoption("--tinyserve-model") or config.getini("tinyserve_model")
    log_path = tmp_path_factory.mktemp("tinyserve") / "server.log"
    try:
        process, url = start_server(
            ["--model", model, *config.getini("tinyserve_args")],
            log_path,
            timeout_s=float(config.getini("tinyserve_timeout")),
        )
    except StartError as error:
        pytest.fail(str(error), pytrace=False)
    try:
        with unproxied(f"{url}/v1/models", timeout=30) as answer:
            name = json.load(answer)["data"][0]["id"]
        yield TinyserveServer(url, name, log_path)
    finally:
        stop_server(process)


def start_server(
    arguments: list[str], log_path: Path, *, timeout_s: float = 300
) -> tuple[subprocess.Popen[bytes], str]:
    """Start `tinyserve serve` on a free port and wait until it answers: (process, URL).

    Raises StartError.
    """
    from tinyserve.bench.served import becomes_healthy, free_port

    for attempt in range(1, PORT_TRIES + 1):
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-c", PROGRAM, "serve", *arguments]
        command += ["--host", "127.0.0.1", "--port", str(port)]
        with log_path.open("wb") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=_environment()
            )
        is_ready = False
        try:
            is_ready = becomes_healthy(url, process, timeout_s)
            code = process.poll()
        finally:
            if not is_ready:
                stop_server(process)
        if is_ready:
            return process, url
        how = (
            f"did not start in {timeout_s:g} s" if code is None else f"ended with exit code {code}"
        )
        printed = _tail(log_path)
        was_taken = "cannot listen on" in printed  # another process was faster
        if not was_taken or attempt == PORT_TRIES:
            raise StartError(f"tinyserve {how}\n{printed}")
    raise AssertionError("unreachable")


def stop_server(process: subprocess.Popen[bytes]) -> None:
    """End it, by force if need be."""
    from tinyserve.bench.served import end

    if process.stdin is not None:
        process.stdin.close()  # tells the server that the test run has ended
    end(process)


def _environment() -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("TINYSERVE_") or name in KEPT_VARIABLES
    }


def _tail(log_path: Path) -> str:
    lines = log_path.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES:]
    return "\n".join(["--- its log ---", *lines])
