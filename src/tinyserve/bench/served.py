"""A server in a process of its own, from its command to its end: any program with `/health`."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

# Opens a URL directly: the shell's proxies have no say in a measurement on this machine.
unproxied = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
START_S = 600.0  # vLLM compiles for minutes when it first starts
STOP_TIMEOUT_S = 20.0
POLL_S = 0.02


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass(frozen=True)
class Served:
    """A healthy server. `start_s`: seconds from its command to its first healthy answer."""

    url: str
    pid: int
    start_s: float


@contextlib.contextmanager
def serving(command: Sequence[str], port: int) -> Iterator[Served]:
    """The server that `command` starts; it is ended afterwards.

    Raises RuntimeError with what it printed, if it ends or does not become healthy.
    """
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryFile() as log:
        begin = time.monotonic()
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            if not becomes_healthy(url, process, START_S):
                log.seek(0)
                printed = log.read()[-4000:].decode(errors="replace")
                raise RuntimeError(f"the server did not become healthy; it printed:\n{printed}")
            yield Served(url, process.pid, time.monotonic() - begin)
        finally:
            end(process)


def becomes_healthy(url: str, process: subprocess.Popen[bytes], timeout_s: float) -> bool:
    """Wait until `/health` says 200; False once the process has ended, or the time is over."""
    deadline = time.monotonic() + timeout_s
    while process.poll() is None and time.monotonic() < deadline:
        if _is_healthy(url):
            return True
        time.sleep(POLL_S)
    return False


def _is_healthy(url: str) -> bool:
    try:
        with unproxied(f"{url}/health", timeout=5) as response:
            return bool(response.status == 200)
    except urllib.error.HTTPError as error:  # another status
        error.close()
    except OSError:  # nobody listens yet
        pass
    return False


def end(process: subprocess.Popen[bytes]) -> None:
    """Let it end by itself; if it will not, end it."""
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
