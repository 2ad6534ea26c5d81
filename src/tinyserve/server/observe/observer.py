"""`Observer`: one per application; gathers what the engine thread and the HTTP layer have recorded.

Lives on the event loop. The engine thread only appends records to its `TimedCore`; the observer
takes them out after each step's outputs were delivered, every second, and whenever somebody looks.
So records never pile up until the next request, and nothing is computed on the engine thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import importlib
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from tinyserve.config import ServerConfig
from tinyserve.engine.build import Engine
from tinyserve.engine.chronicle import Chronicle, Life, TimedStep
from tinyserve.engine.request import EngineRequest, FinishReason
from tinyserve.engine.snapshot import EngineSnapshot
from tinyserve.engine.timing import TimedCore
from tinyserve.engine.trace import TraceRecorder
from tinyserve.errors import EngineDeadError
from tinyserve.server.bridge import EngineBridge
from tinyserve.server.errors import HTTPError
from tinyserve.server.observe.http import HTTPMetrics
from tinyserve.server.observe.log import RequestLog, ThroughputLog
from tinyserve.server.observe.metrics import Metrics
from tinyserve.server.observe.view import MAX_LISTED, Outside, cache_info, engine_view, static_view

TICK_S = 1.0
EXPORT = "tinyserve.server.observe.export"
STEP_PATIENCE_S = 10.0
SNAPSHOT_PATIENCE_S = 0.8  # a step may take longer; then the last snapshot must do


class Observer:
    """Made with the application; `attach` when there is an engine, then `start` on the loop."""

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        self.started = time.monotonic()
        self.core: TimedCore | None = None
        self.metrics = Metrics(1)
        self.http = HTTPMetrics()
        self._chronicle = Chronicle(self)
        self._static: dict[str, Any] = {}
        self._cache_info: dict[str, str] = {}
        self._is_exporting = False
        self._request_log: RequestLog | None = None
        self._throughput_log: ThroughputLog | None = None
        self._bridge: EngineBridge | None = None
        self._ticker: asyncio.Task[None] | None = None
        self._asked: asyncio.Future[EngineSnapshot] | None = None
        self._snapshot: EngineSnapshot | None = None

    def attach(self, engine: Engine, model: str) -> TimedCore:
        """The engine's core, timed; this is what the bridge is to run. `model`: the served name."""
        self.metrics = Metrics(engine.intake.limits.max_model_len)
        self.core = TimedCore(engine.core)
        self._static = static_view(engine, model)
        self._cache_info = cache_info(engine)
        self._snapshot = engine.core.snapshot()
        if self._config.log_requests:
            self._request_log = RequestLog(self._config, engine.intake.tokenizer)
        if not self._config.disable_log_stats:
            self._throughput_log = ThroughputLog(time.monotonic(), engine.core.stats())
        return self.core

    def start(self, bridge: EngineBridge) -> None:
        self._bridge = bridge
        self._ticker = asyncio.get_running_loop().create_task(self._tick())

    def stop(self) -> None:
        """Drop the engine. May be called from any thread, when the loop is done."""
        if self._ticker is not None:
            self._ticker.get_loop().call_soon_threadsafe(self._ticker.cancel)
        # A cancelled task keeps its frame alive, which refers to the bridge.
        self.core = self._bridge = self._ticker = None

    def dropped(self, requests: Sequence[EngineRequest], reason: FinishReason) -> None:
        """Count requests that ended without reaching the engine."""
        self._chronicle.drop(requests, reason, time.monotonic())

    def gather(self) -> None:
        """Take in everything that has been recorded until now."""
        records = self.core.records if self.core is not None else ()
        while records:
            self._chronicle.take(records.popleft())

    def add_step(self, step: TimedStep) -> None:
        """Called by the chronicle."""
        self.metrics.add_step(step)

    def add_life(self, life: Life) -> None:
        """Called by the chronicle."""
        self.metrics.add_life(life)
        if self._request_log is not None:
            self._request_log.add(life)

    async def exposition(self) -> bytes:
        """The body of `GET /metrics`. Waits for nobody, least of all the engine thread."""
        if not self._is_exporting:  # the first time, a library is imported: not on the loop
            await asyncio.to_thread(importlib.import_module, EXPORT)
            self._is_exporting = True
        from tinyserve.server.observe.export import Source, collect, exposition

        self.gather()
        source = Source(self.http, self.metrics)
        if self._bridge is not None:
            source = dataclasses.replace(
                source,
                model_name=self._static["model"],
                stats=self._bridge.stats,
                num_queued=self._bridge.num_queued,
                is_alive=self._bridge.death is None,
                cache_info=self._cache_info,
                build_info={k: str(self._static[k]) for k in ("version", "fingerprint", "kernels")},
            )
        return await asyncio.to_thread(exposition, collect(source))

    async def view(self) -> dict[str, Any]:
        """The body of `GET /engine/state`. Raises EngineDeadError while there is no engine."""
        bridge = self.bridge
        snapshot = await self.snapshot()
        if bridge.death is not None:
            snapshot = _after_death(snapshot, bridge)
        self.gather()
        uptime = {"uptime_s": round(time.monotonic() - self.started, 3)}
        outside = Outside(bridge.stats, bridge.num_queued, bridge.waiting(MAX_LISTED))
        return self._static | uptime | engine_view(snapshot, outside, self.metrics)

    @contextlib.asynccontextmanager
    async def recording(self) -> AsyncIterator[TraceRecorder]:
        """Every step of the engine while it is entered, the one that then runs included.

        Raises HTTPError 409 while somebody else records.
        """
        bridge, core = self.bridge, self.core
        assert core is not None
        if core.tracer is not None:
            raise HTTPError(409, "a trace is being recorded", code="trace_in_progress")
        core.tracer = recorder = TraceRecorder()
        try:
            yield recorder
            with contextlib.suppress(EngineDeadError):
                await asyncio.wait([bridge.ask(lambda: None)], timeout=STEP_PATIENCE_S)
        finally:
            core.tracer = None

    @property
    def bridge(self) -> EngineBridge:
        if self._bridge is None:
            raise EngineDeadError("the model is still loading")
        return self._bridge

    async def snapshot(self) -> EngineSnapshot:
        """The engine between two steps: now, or at the latest moment that is known.

        All callers that come while the engine is being asked share its answer.
        """
        if self._asked is None or self._asked.done():
            with contextlib.suppress(EngineDeadError):
                self._asked = self._ask()
        if self._asked is not None:
            await asyncio.wait([self._asked], timeout=SNAPSHOT_PATIENCE_S)
        assert self._snapshot is not None
        return self._snapshot

    def _ask(self) -> asyncio.Future[EngineSnapshot]:
        assert self.core is not None
        asked = self.bridge.ask(self.core.snapshot)
        asked.add_done_callback(self._keep)
        return asked

    def _keep(self, asked: asyncio.Future[EngineSnapshot]) -> None:
        if not asked.cancelled() and asked.exception() is None:
            self._snapshot = asked.result()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self.gather()
            if self._throughput_log is not None:
                bridge = self.bridge
                self._throughput_log.tick(time.monotonic(), bridge.stats, bridge.num_queued)


def _after_death(snapshot: EngineSnapshot, bridge: EngineBridge) -> EngineSnapshot:
    """The last snapshot without its requests: nothing runs any more."""
    no_refs = [0] * len(snapshot.refs)
    return dataclasses.replace(snapshot, sequences=[], refs=no_refs, stats=bridge.stats)
