"""`Chronicle`: from the records of a `TimedCore` to the life of each choice.

Runs wherever the records are taken out, on one thread. Every choice that was handed to the engine
ends exactly once. A choice that is preempted keeps its times: what it loses shows between its
tokens.

    arrival ── queued ── scheduled ───────── first token ── ... ── last token ── finished
       tokenising   queue        prefill                     decode

All times are of `time.monotonic`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from tinyserve.engine.request import EngineRequest, FinishReason, RequestOutput
from tinyserve.engine.timing import Aborted, Added, Record, Stepped


@dataclass(slots=True, eq=False)
class Life:
    """What happened to one choice."""

    request: EngineRequest
    choice: int
    scheduled: float | None = None  # the beginning of the first step that computed for it
    first_token: float | None = None
    last_token: float | None = None
    finished: float = 0.0
    reason: FinishReason | None = None
    num_output_tokens: int = 0
    num_cached_tokens: int = 0

    @property
    def e2e_s(self) -> float:
        return self.finished - self.request.arrival

    @property
    def ttft_s(self) -> float | None:
        return None if self.first_token is None else self.first_token - self.request.arrival

    @property
    def queue_s(self) -> float:
        """Seconds from entering the queue until it was scheduled, or gave up waiting."""
        return (self.finished if self.scheduled is None else self.scheduled) - self.request.queued

    @property
    def prefill_s(self) -> float | None:
        """Seconds from being scheduled to its first token, or to its end if it makes none."""
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
class TimedStep:
    """One step in numbers. `gaps`: (seconds since a choice's previous token, tokens it brought)."""

    time: float
    seconds: float
    num_tokens: int
    first_tokens: list[float] = field(default_factory=list)  # seconds since arrival
    gaps: list[tuple[float, int]] = field(default_factory=list)


class Reader(Protocol):
    """Receives steps and finished lives as they become known."""

    def add_step(self, step: TimedStep) -> None: ...

    def add_life(self, life: Life) -> None:
        """A choice has ended; nothing of it changes any more."""
        ...


class Chronicle:
    """Takes records in the order they were written, and tells a reader."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._lives: dict[str, list[Life]] = {}  # per request, while any choice is unfinished

    def take(self, record: Record) -> None:
        if isinstance(record, Stepped):
            self._step(record)
        elif isinstance(record, Added):
            request = record.request
            lives = [Life(request, choice) for choice in range(request.params.n)]
            self._lives[request.request_id] = lives
            if record.is_refused:
                self._end_all(request.request_id, "error", record.time)
        elif isinstance(record, Aborted):
            self._end_all(record.request_id, "abort", record.time)
        else:
            for request_id in list(self._lives):
                self._end_all(request_id, "error", record.time)

    def drop(self, requests: Iterable[EngineRequest], reason: FinishReason, time: float) -> None:
        """Forget requests that ended before the engine saw them."""
        for request in requests:
            for choice in range(request.params.n):
                self._end(Life(request, choice), reason, time)

    def _step(self, record: Stepped) -> None:
        for request_id in record.scheduled:
            for life in self._lives.get(request_id, ()):
                life.scheduled = record.begin
        plan = record.plan
        num_tokens = plan.num_tokens if plan is not None else 0
        times = TimedStep(record.end, record.end - record.begin, num_tokens)
        for output in record.outputs:
            lives = self._lives.get(output.request_id)
            if lives is not None:  # its records may have been lost
                self._output(lives[output.index], output, times)
        if plan is not None:
            self._reader.add_step(times)

    def _output(self, life: Life, output: RequestOutput, times: TimedStep) -> None:
        num_tokens = len(output.new_token_ids)
        life.num_output_tokens += num_tokens
        if life.last_token is None:
            life.num_cached_tokens = output.num_cached_tokens
            if num_tokens:
                life.first_token = life.last_token = times.time
                times.first_tokens.append(times.time - life.request.arrival)
                num_tokens -= 1  # the others came with it
        if num_tokens and life.last_token is not None:
            times.gaps.append((times.time - life.last_token, num_tokens))
            life.last_token = times.time
        if output.finish_reason is not None:
            self._end(life, output.finish_reason, times.time)
            request_id = output.request_id
            if all(other.reason is not None for other in self._lives[request_id]):
                del self._lives[request_id]

    def _end_all(self, request_id: str, reason: FinishReason, time: float) -> None:
        for life in self._lives.pop(request_id, ()):
            if life.reason is None:
                self._end(life, reason, time)

    def _end(self, life: Life, reason: FinishReason, time: float) -> None:
        life.reason = reason
        life.finished = time
        self._reader.add_life(life)
