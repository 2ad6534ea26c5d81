"""When all objects are searched for garbage: never while somebody waits, unless memory leaks."""

from __future__ import annotations

import asyncio
import gc
import sys
import weakref
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from tinyserve.server import collector
from tinyserve.server.collector import MAX_GROWTH, Collector


class Server:
    """As much of a bridge as a collector looks at."""

    def __init__(self) -> None:
        self.num_open = 0
        self.stats = SimpleNamespace(num_steps=0)

    def work(self, *, num_open: int = 0) -> None:
        self.stats.num_steps += 1
        self.num_open = num_open


class Circle:
    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Server, Collector]]:
    """A started collector that ticks when it is told; this process's objects are not frozen."""
    monkeypatch.setattr(gc, "freeze", lambda: None)
    monkeypatch.setattr(collector, "TICK_S", 3600)
    server = Server()
    made = Collector(server)  # type: ignore[arg-type]

    async def start() -> None:
        made.start()

    before = gc.get_threshold()
    asyncio.run(start())
    try:
        yield server, made
    finally:
        made.stop()
        made.stop()
    assert gc.get_threshold() == before


def old_circle() -> weakref.ref[Circle]:
    """Garbage that collections of young objects do not see any more."""
    circle = Circle()
    gc.collect(0)
    gc.collect(1)
    return weakref.ref(circle)


def test_all_objects_are_collected_once_the_server_is_left_idle(
    watched: tuple[Server, Collector],
) -> None:
    server, made = watched
    circle = old_circle()
    made.tick()
    made.tick()
    assert circle() is not None  # nothing has happened yet
    for _ in range(3):
        server.work()
        made.tick()
    assert circle() is not None  # it works between the ticks
    made.tick()
    assert circle() is None
    circle = old_circle()
    made.tick()
    made.tick()
    assert circle() is not None  # once is enough


def test_nothing_is_collected_while_somebody_waits(watched: tuple[Server, Collector]) -> None:
    server, made = watched
    circle = old_circle()
    server.work(num_open=1)
    for _ in range(3):
        made.tick()
    assert circle() is not None
    server.num_open = 0
    made.tick()
    assert circle() is None


def test_a_leak_is_collected_under_load(
    watched: tuple[Server, Collector], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, made = watched
    circle = old_circle()
    num_blocks = sys.getallocatedblocks()
    monkeypatch.setattr(sys, "getallocatedblocks", lambda: num_blocks + 2 * MAX_GROWTH)
    server.work(num_open=1)
    made.tick()
    assert circle() is None
    circle = old_circle()
    made.tick()
    assert circle() is not None  # as much memory as after the last time: it is in use


@pytest.mark.skipif(
    sys.version_info >= (3, 14), reason="old objects may be collected in small portions"
)
def test_python_itself_collects_the_young_alone(watched: tuple[Server, Collector]) -> None:
    del watched
    full: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            full.append(info["generation"])

    gc.callbacks.append(note)
    try:
        kept = [[i] for i in range(100_000)]
    finally:
        gc.callbacks.remove(note)
    assert len(kept) == 100_000
    assert full.count(0) > 50
    assert 2 not in full
