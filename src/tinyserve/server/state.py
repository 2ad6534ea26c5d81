"""`ServerState`: what the routes share, from start-up to the end. One per application."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tinyserve.config import ServerConfig
from tinyserve.engine.build import Engine
from tinyserve.errors import EngineDeadError
from tinyserve.server.admission import Admission
from tinyserve.server.bridge import EngineBridge
from tinyserve.server.fair_queue import FairRequestQueue
from tinyserve.server.guards import load_keys
from tinyserve.server.observe.observer import Observer
from tinyserve.server.outlet import Readers
from tinyserve.server.service import Service


class ServerState:
    """What the routes share: the service and the bridge, once there are any."""

    def __init__(self, config: ServerConfig) -> None:
        self.config = config
        self.keys = load_keys(config)
        self.readers = Readers(config.stream_stall_timeout_s, config.stream_buffer_size)
        self.observer = Observer(config)
        self.observer.http.count_slow_readers = lambda: self.readers.num_cut_off
        self.service: Service | None = None
        self.bridge: EngineBridge | None = None
        self.load_error: BaseException | None = None
        # Hooks for whoever serves the application, called on the event loop.
        self.on_ready: Callable[[Engine], None] = lambda engine: None  # requests can be answered
        self.on_load_error: Callable[[], None] = lambda: None
        self.is_draining = False
        self._last_death: BaseException | None = None

    def start(self, engine: Engine) -> None:
        """Begin to serve `engine`, on the running loop."""
        scheduler, limits = engine.config.scheduler, self.config
        service = Service(engine)
        self.bridge = EngineBridge(
            self.observer.attach(engine, service.names[0]),
            admission=Admission(scheduler.max_num_seqs, is_fair=scheduler.policy == "fair"),
            queue=FairRequestQueue(limits.max_queued_requests, limits.max_queued_tokens),
            on_dropped=self.observer.dropped,
            on_delivered=self.observer.gather,
        )
        self.bridge.start()
        self.observer.start(self.bridge)
        self.service = service

    def ready(self) -> tuple[Service, EngineBridge]:
        """Raises EngineDeadError (503) while there is nothing to serve with."""
        if self.is_draining:
            raise EngineDeadError("the server is shutting down")
        if self.service is None or self.bridge is None:
            raise EngineDeadError("the model is still loading")
        return self.service, self.bridge

    @property
    def death(self) -> BaseException | None:
        """Why the engine died, if it did."""
        return self.bridge.death if self.bridge is not None else self._last_death

    def stop(self) -> None:
        """Stop the engine's thread and drop the engine.

        Merely forgetting the application would not free it: once `/openapi.json` was asked for, a
        cache of FastAPI's keeps the routes, and so this object, until the process ends.
        """
        self.observer.stop()
        if self.bridge is not None:
            self.bridge.stop()
            self._last_death = self.bridge.death
            self.service = self.bridge = None

    def health(self) -> tuple[int, dict[str, Any]]:
        """Status and body of /health."""
        if self.load_error is not None:
            return 503, {"status": "failed", "error": str(self.load_error)}
        if self.bridge is None:
            return 503, {"status": "loading"}
        status = "ok"
        if self.bridge.death is not None:
            status = "dead"
        elif self.is_draining:
            status = "draining"
        stats = self.bridge.stats
        return 200 if status == "ok" else 503, {
            "status": status,
            "queue_depth": self.bridge.num_queued,
            "waiting": stats.num_waiting,
            "running": stats.num_running,
            "swapped": stats.num_swapped,
        }
