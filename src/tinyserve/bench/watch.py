"""`Watch`: a server seen from outside while it is under load: `/health` and memory.

Watching is done by another process, so that what is measured is the server and not the load.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import sys
import threading
import time
import urllib.parse
from typing import Any

from tinyserve.engine.memory import resident_memory

INTERVAL_S = 0.05
MEMORY_INTERVAL_S = 0.5
IDLE_S = 120.0  # how long a server may take to become idle once everybody has gone


class Watch:
    """What was seen of one server, by a process of its own: `start`, `mark`, `finish`."""

    def __init__(self, base: str, pid: int) -> None:
        self._command = [sys.executable, "-m", "tinyserve.bench.watch", base, str(pid)]
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(
            *self._command, stdin=pipe, stdout=pipe
        )

    def mark(self) -> None:
        """The server is warm now: from here on its memory should be flat."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(b"warm\n")

    async def finish(self) -> dict[str, Any]:
        """Latencies in milliseconds, memory in MiB, and whether the server became idle."""
        assert self._process is not None
        out, _ = await self._process.communicate(b"end\n")
        result: dict[str, Any] = json.loads(out)
        return result


class _Watcher:
    """The watching process: a thread reads orders, another the memory, the main one asks."""

    def __init__(self, base: str, pid: int) -> None:
        place = urllib.parse.urlsplit(base)
        self._address = place.hostname or "127.0.0.1", place.port or 80
        self._pid = pid
        self._latencies: list[tuple[float, float]] = []  # time, milliseconds
        self._began = time.perf_counter()
        self._memory: list[tuple[float, float]] = []  # time, MiB
        self._warm_at = 0.0
        self._is_over = threading.Event()

    def run(self) -> dict[str, Any]:
        for target in (self._obey, self._read_memory):
            threading.Thread(target=target, daemon=True).start()
        while not self._is_over.wait(INTERVAL_S):
            began = time.perf_counter()
            self._health()
            self._latencies.append((began, 1000 * (time.perf_counter() - began)))
        return {**self._result(), "is_idle_after": self._becomes_idle()}

    def _obey(self) -> None:
        for line in sys.stdin:
            if line.startswith("warm"):
                self._warm_at = time.perf_counter()
            else:
                self._is_over.set()

    def _read_memory(self) -> None:
        while not self._is_over.wait(MEMORY_INTERVAL_S):
            resident = resident_mib(self._pid)
            if resident is not None:
                self._memory.append((time.perf_counter(), resident))

    def _health(self) -> dict[str, Any]:
        connection = http.client.HTTPConnection(*self._address, timeout=IDLE_S)
        try:
            connection.request("GET", "/health")
            health: dict[str, Any] = json.loads(connection.getresponse().read())
            return health
        finally:
            connection.close()

    def _becomes_idle(self) -> bool:
        deadline = time.perf_counter() + IDLE_S
        while time.perf_counter() < deadline:
            health = self._health()
            work = [health[name] for name in ("queue_depth", "waiting", "running", "swapped")]
            if health["status"] == "ok" and not any(work):
                return True
            time.sleep(INTERVAL_S)
        return False

    def _result(self) -> dict[str, Any]:
        latencies = sorted(latency for _, latency in self._latencies)
        slowest = sorted(self._latencies, key=lambda pair: -pair[1])[:10]
        warm = [sample for sample in self._memory if sample[0] >= self._warm_at]
        return {
            "health_ms": {
                "count": len(latencies),
                "p50": latencies[len(latencies) // 2],
                "p99": latencies[int(len(latencies) * 0.99)],
                "max": latencies[-1],
                "slowest_at_s": [
                    [round(at - self._began, 2), round(latency)] for at, latency in slowest
                ],
            },
            "memory_mib": {
                "before": self._memory[0][1] if self._memory else None,
                "warm": warm[0][1] if warm else None,
                "after": warm[-1][1] if warm else None,
                "growth_per_minute": slope(warm) * 60,
            },
        }


def resident_mib(pid: int) -> float | None:
    """The memory that a process holds; None where the system does not say."""
    return resident_memory(pid) / (1 << 20) or None


def slope(samples: list[tuple[float, float]]) -> float:
    """Least squares, per second; 0 of less than two samples."""
    if len(samples) < 2:
        return 0.0
    mean_x = sum(x for x, _ in samples) / len(samples)
    mean_y = sum(y for _, y in samples) / len(samples)
    spread = sum((x - mean_x) ** 2 for x, _ in samples)
    return sum((x - mean_x) * (y - mean_y) for x, y in samples) / spread if spread else 0.0


if __name__ == "__main__":
    print(json.dumps(_Watcher(sys.argv[1], int(sys.argv[2])).run()))
