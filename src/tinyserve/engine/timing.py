"""`TimedCore`: an engine that remembers when things happened to each choice.

Stands where `EngineCore` stands and passes every call on. On the engine thread it appends plain
numbers to two queues, nothing more; whoever keeps statistics takes them out on another thread,
in batches (`collections.deque` is safe for one to append and one to pop). Knows no metric.

    arrival ── queued ── scheduled ───────── first token ── ... ── last token ── finished
       tokenising   queue        prefill                     decode

All times are of `time.monotonic`. A choice that is preempted keeps its times: what it loses shows
between its tokens. Every choice that was handed to `add_request` ends exactly once.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from time import monotonic
from typing import Protocol

from tinyserve.engine.request import EngineRequest, EngineStats, FinishReason, RequestOutput
from tinyserve.engine.snapshot import EngineSnapshot
from tinyserve.engine.work import Lap

MAX_RECORDS = 1 << 16  # kept until somebody takes them; then the oldest are lost


@dataclass(slots=True, eq=False)
class Life:
    """What happened to one choice. Not changed any more once `reason` is set."""

    request: EngineRequest
    choice: int
    scheduled: float | None = None  # the beginning of the first step that computed for it
    first_token: float | None = None
    last_token: float | None = None
    finished: float = 0.0
    reason: FinishReason | None = None
    num_output_tokens: int = 0
    num_cached_tokens: int = 0

    def end(self, reason: FinishReason, time: float) -> None:
        self.reason = reason
        self.finished = time

    @property
    def e2e_s(self) -> float:
        return self.finished - self.request.arrival

    @property
    def ttft_s(self) -> float | None:
        return None if self.first_token is None else self.first_token - self.request.arrival

    @property
    def queue_s(self) -> float:
        """From its entry into the queue until it was scheduled, or gave up waiting."""
        return (self.finished if self.scheduled is None else self.scheduled) - self.request.queued

    @property
    def prefill_s(self) -> float | None:
        """From its scheduling to its first token; to its end, where it makes none."""
        if self.scheduled is None:
            return None
        return (self.finished if self.first_token is None else self.first_token) - self.scheduled

    @property
    def decode_s(self) -> float | None:
        if self.first_token is None or self.last_token is None:
            return None
        return self.last_token - self.first_token

    @property
    def inference_s(self) -> float | None:
        return None if self.scheduled is None else self.finished - self.scheduled

    @property
    def time_per_output_token_s(self) -> float | None:
        """Mean time between its tokens; None for fewer than two."""
        if self.decode_s is None or self.num_output_tokens < 2:
            return None
        return self.decode_s / (self.num_output_tokens - 1)


@dataclass(slots=True)
class StepRecord:
    """One step in numbers. `gaps`: (seconds since a choice's previous token, tokens it brought)."""

    time: float
    seconds: float
    num_tokens: int
    first_tokens: list[float] = field(default_factory=list)  # seconds since arrival
    gaps: list[tuple[float, int]] = field(default_factory=list)


class Core(Protocol):
    """What is timed: `EngineCore`."""

    lap: Lap | None

    def add_request(self, request: EngineRequest) -> None: ...
    def abort(self, request_id: str) -> bool: ...
    def step(self) -> list[RequestOutput]: ...
    def has_work(self) -> bool: ...
    def stats(self) -> EngineStats: ...
    def snapshot(self) -> EngineSnapshot: ...


class Tracer(Protocol):
    """Who wants to see each step in full; on the engine thread."""

    def add(self, lap: Lap, outputs: list[RequestOutput], stats: EngineStats) -> None: ...


class TimedCore:
    """See the module. All methods belong to the engine thread; `steps`, `ended` to their reader."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._lives: dict[str, list[Life]] = {}  # by request, while any choice is unfinished
        self._unscheduled: dict[str, list[Life]] = {}
        self.tracer: Tracer | None = None
        self.steps: deque[StepRecord] = deque(maxlen=MAX_RECORDS)
        self.ended: deque[Life] = deque(maxlen=MAX_RECORDS)

    def add_request(self, request: EngineRequest) -> None:
        lives = [Life(request, choice) for choice in range(request.params.n)]
        try:
            self._core.add_request(request)
        except Exception:
            self._end(lives, "error")
            raise
        self._lives[request.request_id] = self._unscheduled[request.request_id] = lives

    def abort(self, request_id: str) -> bool:
        is_known = self._core.abort(request_id)
        self._unscheduled.pop(request_id, None)
        self._end(self._lives.pop(request_id, ()), "abort")
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
            for lives in self._lives.values():
                self._end(lives, "error")
            self._lives.clear()
            raise
        lap = self._core.lap
        if lap is None:
            self._note(outputs, StepRecord(monotonic(), 0.0, 0))
            return outputs
        if self._unscheduled:
            self._note_scheduled(lap)
        record = StepRecord(lap.end, lap.end - lap.begin, lap.step.plan.num_tokens)
        self._note(outputs, record)
        self.steps.append(record)
        if self.tracer is not None:
            self.tracer.add(lap, outputs, self._core.stats())
        return outputs

    def _note_scheduled(self, lap: Lap) -> None:
        for work in lap.step.work:
            for life in self._unscheduled.pop(work.seq.job.request.request_id, ()):
                life.scheduled = lap.begin

    def _note(self, outputs: list[RequestOutput], record: StepRecord) -> None:
        now = record.time
        for output in outputs:
            life = self._lives[output.request_id][output.index]
            num_new = len(output.new_token_ids)
            if num_new:
                if life.last_token is None:
                    life.first_token = now
                    life.num_cached_tokens = output.num_cached_tokens
                    record.first_tokens.append(now - life.request.arrival)
                    num_new -= 1
                if num_new:
                    since = now if life.last_token is None else life.last_token
                    record.gaps.append((now - since, num_new))
                life.last_token = now
                life.num_output_tokens += len(output.new_token_ids)
            if output.finish_reason is not None:
                life.num_cached_tokens = output.num_cached_tokens
                self._finish(life, output.finish_reason, now)

    def _finish(self, life: Life, reason: FinishReason, time: float) -> None:
        life.end(reason, time)
        self.ended.append(life)
        request_id = life.request.request_id
        if all(other.reason is not None for other in self._lives[request_id]):
            del self._lives[request_id]
            self._unscheduled.pop(request_id, None)

    def _end(self, lives: list[Life] | tuple[()], reason: FinishReason) -> None:
        """End those that have not ended yet."""
        now = monotonic()
        for life in lives:
            if life.reason is None:
                life.end(reason, now)
                self.ended.append(life)
