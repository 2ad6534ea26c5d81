"""`TimedCore`: an engine that writes down what happens, and when.

Stands where `EngineCore` stands and passes every call on. On the engine thread it appends one
record to a queue for each call, a few microseconds' work; what the records mean is worked out
on the thread that takes them out (`chronicle.py`). `collections.deque` is safe for one that
appends and one that pops. Records hold only what is never changed: requests, plans, outputs,
numbers. They should be taken out soon: while they lie there, they keep the outputs alive.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from time import monotonic

from tinyserve.engine.core import EngineCore
from tinyserve.engine.plan import StepPlan
from tinyserve.engine.request import EngineRequest, EngineStats, RequestOutput
from tinyserve.engine.snapshot import EngineSnapshot
from tinyserve.engine.step import Lap
from tinyserve.engine.trace import TraceRecorder

MAX_RECORDS = 1 << 16  # waiting to be taken out; beyond, the oldest are dropped


@dataclass(frozen=True, slots=True)
class Added:
    """The engine has taken a request in; where `is_refused`, it would not."""

    request: EngineRequest
    time: float
    is_refused: bool = False


@dataclass(frozen=True, slots=True)
class Aborted:
    """A request was released before it had ended."""

    request_id: str
    time: float


@dataclass(frozen=True, slots=True)
class Stepped:
    """A step."""

    begin: float
    end: float
    plan: StepPlan | None  # None: nothing was computed, the outputs were there already
    scheduled: tuple[str, ...]  # requests of which nothing had been computed before
    outputs: list[RequestOutput]


@dataclass(frozen=True, slots=True)
class Died:
    """The engine has failed, with all that was in it."""

    time: float


Record = Added | Aborted | Stepped | Died


class TimedCore:
    """See the module. All methods belong to the engine thread, `records` also to their reader."""

    def __init__(self, core: EngineCore) -> None:
        self._core = core
        self._unscheduled: set[str] = set()  # requests that no step has computed yet
        self.tracer: TraceRecorder | None = None  # set while a trace is being recorded
        self.records: deque[Record] = deque(maxlen=MAX_RECORDS)

    def add_request(self, request: EngineRequest) -> None:
        try:
            self._core.add_request(request)
        except Exception:
            self.records.append(Added(request, monotonic(), is_refused=True))
            raise
        self._unscheduled.add(request.request_id)
        self.records.append(Added(request, monotonic()))

    def abort(self, request_id: str) -> bool:
        is_known = self._core.abort(request_id)
        if is_known:
            self._unscheduled.discard(request_id)
            self.records.append(Aborted(request_id, monotonic()))
        return is_known

    def has_work(self) -> bool:
        return self._core.has_work()

    def stats(self) -> EngineStats:
        return self._core.stats()

    def snapshot(self) -> EngineSnapshot:
        return self._core.snapshot()

    def step(self) -> list[RequestOutput]:
        try:
            outputs = self._core.step()
        except BaseException:
            self.records.append(Died(monotonic()))
            raise
        lap = self._core.lap
        scheduled = self._new_among(lap, outputs) if self._unscheduled else ()
        if lap is None:
            now = monotonic()
            self.records.append(Stepped(now, now, None, scheduled, outputs))
            return outputs
        self.records.append(Stepped(lap.begin, lap.end, lap.step.plan, scheduled, outputs))
        if self.tracer is not None:
            self.tracer.add(lap, outputs, self._core.stats())
        return outputs

    def _new_among(self, lap: Lap | None, outputs: list[RequestOutput]) -> tuple[str, ...]:
        """The requests that this step was the first to compute."""
        ids = {seq.job.request_id for seq in lap.step.seqs} if lap else set()
        new = ids & self._unscheduled
        self._unscheduled -= new
        self._unscheduled.difference_update([output.request_id for output in outputs])
        return tuple(new)
