"""`Collector`: when the garbage collector of a serving process may walk all objects.

A full collection stops every thread. With some hundred requests waiting, it walks a hundred
thousand objects: a tenth of a second in which no token is sent and `/health` does not answer. It
is hardly ever needed: requests leave no reference cycles (`tests/server/test_garbage.py`), so
what they held is freed by count. So

- while the model and the modules load, nothing is collected, and then all of it is frozen: no
  collection walks it;
- young objects are collected as always, a few thousand at a time;
- all are collected when nobody waits: once, after the engine has worked and been left idle;
- else only where much more memory is in use than after the last time, as if something leaked.

Owns the process's settings of `gc`, and so belongs to `serve` alone, not to an application that
lives in somebody else's process. Knows no request. A Python that collects old objects incrementally
(some versions of 3.14) ignores the threshold of full collections.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import time
from typing import Protocol

from tinyserve.engine.request import EngineStats

logger = logging.getLogger("tinyserve.server")

TICK_S = 1.0
YOUNG = 1000  # new objects since the last collection that start one of the youngest generation
MIDDLE = 8  # collections of the youngest generation before one of the middle generation
NEVER = 1 << 30  # collections of the middle generation before a full one
MAX_GROWTH = 1_000_000  # memory blocks of about 100 bytes; a waiting request has about 400


class Server(Protocol):
    """What the collector asks of `EngineBridge`."""

    @property
    def num_open(self) -> int: ...
    @property
    def stats(self) -> EngineStats: ...


class Collector:
    """`start` when everything is loaded, on the event loop; `stop` at the end."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._before = gc.get_threshold()
        self._task: asyncio.Task[None] | None = None
        self._num_blocks = 0  # blocks in use after the last full collection
        self._collected_at = -1  # the engine's steps, then
        self._seen_at = -1  # blocks in use at the last tick

    def start(self) -> None:
        gc.freeze()
        gc.set_threshold(YOUNG, MIDDLE, NEVER)
        gc.enable()
        self._num_blocks = sys.getallocatedblocks()
        self._collected_at = self._server.stats.num_steps
        self._task = asyncio.get_running_loop().create_task(self._run())

    def stop(self) -> None:
        """Idempotent; the loop may be closed. What was frozen stays so."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
            gc.set_threshold(*self._before)

    def tick(self) -> None:
        """Collect, if it is the time."""
        if self._is_unused() or self._has_grown():
            self._collect()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self.tick()

    def _is_unused(self) -> bool:
        """Has the engine worked since the last time, but not since the last tick?"""
        seen, self._seen_at = self._seen_at, self._server.stats.num_steps
        is_quiet = self._server.num_open == 0 and self._seen_at == seen
        return is_quiet and self._seen_at != self._collected_at

    def _has_grown(self) -> bool:
        return sys.getallocatedblocks() > self._num_blocks + MAX_GROWTH

    def _collect(self) -> None:
        began = time.perf_counter()
        num_objects = gc.collect()
        seconds = time.perf_counter() - began
        self._num_blocks = sys.getallocatedblocks()
        self._collected_at = self._server.stats.num_steps
        logger.debug("collected %d objects of garbage in %.1f ms", num_objects, 1e3 * seconds)
