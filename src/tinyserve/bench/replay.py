"""Replays a workload on an engine: open loop, in real time or in the time of a simulation.

Requests enter at their times however busy the engine is. There is no HTTP here: what is measured is
the scheduler and the model.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from tinyserve.bench.latency import Record
from tinyserve.bench.workload import Arrival
from tinyserve.engine.core import EngineCore
from tinyserve.engine.request import EngineRequest, RequestOutput
from tinyserve.engine.sampling import SamplingParams


class Clock(Protocol):
    """Seconds that only go forward."""

    def now(self) -> float: ...

    def wait_until(self, when: float) -> None: ...


class WallClock:
    """Real time."""

    def now(self) -> float:
        return time.perf_counter()

    def wait_until(self, when: float) -> None:
        time.sleep(max(0.0, when - self.now()))


class VirtualClock:
    """Time that passes only as a simulation says."""

    def __init__(self) -> None:
        self._now = 0.0

    def now(self) -> float:
        return self._now

    def wait_until(self, when: float) -> None:
        self._now = max(self._now, when)

    def advance(self, seconds: float) -> None:
        self._now += seconds


class Replay:
    """One engine, the requests it was given, and what became of them."""

    def __init__(self, core: EngineCore, clock: Clock) -> None:
        self.core = core
        self.clock = clock
        self._records: dict[str, Record] = {}
        self.num_open = 0  # requests that have entered and not finished

    @property
    def records(self) -> list[Record]:
        """A record of each request, in order of entry."""
        return list(self._records.values())

    def enter(self, arrival: Arrival, at: float) -> str:
        """Hand a request to the engine; `at` is when it arrived, on the clock."""
        request_id = str(len(self._records))
        params = SamplingParams(temperature=0, max_tokens=arrival.max_tokens, ignore_eos=True)
        self.core.add_request(
            EngineRequest(
                request_id=request_id,
                prompt_token_ids=arrival.prompt_ids,
                params=params,
                priority=arrival.priority,
                arrival=at,
                client=arrival.client,
            )
        )
        self._records[request_id] = Record(at, len(arrival.prompt_ids), client=arrival.client)
        self.num_open += 1
        return request_id

    def step(self) -> list[RequestOutput]:
        """One step of the engine; its tokens are stamped with the time at its end."""
        outputs = self.core.step()
        now = self.clock.now()
        for output in outputs:
            record = self._records[output.request_id]
            record.token_times += [now] * len(output.new_token_ids)
            record.cached_tokens = output.num_cached_tokens
            if output.finish_reason is not None:
                self.num_open -= 1
        return outputs


def replay(
    core: EngineCore, workload: Sequence[Arrival], clock: Clock | None = None
) -> list[Record]:
    """Run `workload` (in order of arrival) to its end."""
    clock = clock or WallClock()
    run = Replay(core, clock)
    pending = deque(workload)
    begin = clock.now()
    while pending or core.has_work():
        now = clock.now() - begin
        while pending and pending[0].at <= now:
            arrival = pending.popleft()
            run.enter(arrival, begin + arrival.at)
        if not core.has_work():
            clock.wait_until(begin + pending[0].at)
            continue
        run.step()
    return run.records


def replay_conversations(
    core: EngineCore, conversations: Sequence[Sequence[Arrival]], clock: Clock | None = None
) -> list[Record]:
    """Run conversations side by side: each turn follows its pause after the previous answer."""
    clock = clock or WallClock()
    run = Replay(core, clock)
    begin = clock.now()
    due = [(begin + chat[0].at, number, 0) for number, chat in enumerate(conversations)]
    turns: dict[str, tuple[int, int]] = {}
    while due or core.has_work():
        due.sort()
        while due and due[0][0] <= clock.now():
            at, number, turn = due.pop(0)
            turns[run.enter(conversations[number][turn], at)] = (number, turn)
        if not core.has_work():
            clock.wait_until(due[0][0])
            continue
        for output in run.step():
            if output.finish_reason is None:
                continue
            number, turn = turns[output.request_id]
            if turn + 1 < len(conversations[number]):
                due.append((clock.now() + conversations[number][turn + 1].at, number, turn + 1))
    return run.records
