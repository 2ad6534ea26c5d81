"""The simulator: the real scheduler over a runner that only knows how long a step takes.

`StepModel` says how long that is, from measurements: by the tokens in it (interpolated between
measured sizes), the rows that are drawn, and the context that they attend to (slopes).
`SimulatedRunner` moves a virtual clock by it. `Fleet` runs many replicas behind a router in one
virtual time, so that policies can be studied at thousands of requests a second.

Left out: the time of the engine's own Python, and whatever depends on the tokens' values.
"""

from __future__ import annotations

import bisect
import heapq
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tinyserve.bench.latency import Record
from tinyserve.bench.replay import Replay, VirtualClock
from tinyserve.bench.workload import Arrival
from tinyserve.config import CacheConfig, SchedulerConfig
from tinyserve.engine.core import EngineCore
from tinyserve.engine.plan import Chunk, Runner, StepPlan
from tinyserve.engine.sampling import SampledToken, SampleRow, SamplingParams
from tinyserve.errors import ConfigError, reason_of
from tinyserve.kv.manager import KVManager

SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
LONG_CONTEXT = 1024
TOKEN = 7  # all that a simulated model ever says
PREFIX = 64  # tokens; see `by_prefix`


@dataclass(frozen=True)
class StepModel:
    """Seconds of a step: by its tokens with one of them drawn, more for every further row that is
    drawn, and for every token of context that a row attends to.
    """

    sizes: tuple[int, ...]
    seconds: tuple[float, ...]
    per_draw: float
    per_context: float

    def of(self, plan: StepPlan) -> float:
        """The time of one step."""
        if not plan.chunks:
            return 0.0
        attended = sum(len(c.token_ids) * (c.start + len(c.token_ids) / 2) for c in plan.chunks)
        draws = sum(c.num_logits for c in plan.chunks)
        base = self._base(plan.num_tokens) + self.per_draw * (draws - 1)
        return max(base, 0.0) + self.per_context * attended

    def most_tok_s(self, seats: int, prompt: float, output: float, chunk: int) -> float:
        """Output tokens a second if every seat were taken in every step: what no scheduler exceeds.

        On average requests have `prompt` tokens, of which a step takes `chunk` beside the decodes,
        and `output` tokens.
        """
        rows = 1.0 * seats  # in a step in which everybody decodes
        step = self._base(seats) + self.per_draw * (seats - 1)
        step += self.per_context * rows * (prompt + output / 2)
        chunk_s = (
            self._base(seats + chunk) - self._base(seats) + self.per_context * chunk * prompt / 2
        )
        return output / (output * step / seats + prompt * chunk_s / chunk)

    def _base(self, tokens: int) -> float:
        right = min(bisect.bisect_left(self.sizes, tokens), len(self.sizes) - 1)
        left = max(right - 1, 0)
        if left == right:
            return self.seconds[right]
        slope = (self.seconds[right] - self.seconds[left]) / (self.sizes[right] - self.sizes[left])
        return self.seconds[left] + slope * (tokens - self.sizes[left])  # goes on past the last

    @classmethod
    def measure(
        cls, runner: Runner, block_size: int, num_blocks: int, repeat: int = 5
    ) -> StepModel:
        """Time the runner on chunks of growing size, and one row after a long context."""
        timer = StepTimer(runner, block_size, repeat)
        fits = [size for size in SIZES if -(-size // block_size) <= num_blocks]
        medians = [timer.seconds(0, size) for size in fits]
        draws = min(16, fits[-1])
        per_draw = (timer.seconds(0, draws, draws) - timer.seconds(0, draws)) / max(draws - 1, 1)
        start = min(LONG_CONTEXT, num_blocks * block_size - 1)
        timer.seconds(0, start)  # fills the slots that the row will read
        per_context = (timer.seconds(start, 1) - medians[0]) / start
        return cls(tuple(fits), tuple(medians), max(0.0, per_draw), max(0.0, per_context))

    @classmethod
    def load(cls, path: str | Path) -> StepModel:
        """What `save` wrote, or the result of a simulation has. Raises ConfigError."""
        try:
            values = json.loads(Path(path).read_text())
            values = values.get("step_times", values)
            return cls(
                tuple(values["sizes"]),
                tuple(values["seconds"]),
                values["per_draw"],
                values["per_context"],
            )
        except OSError as error:
            raise ConfigError(f"cannot read the step times {path}: {reason_of(error)}") from None
        except (ValueError, LookupError, TypeError, AttributeError):
            raise ConfigError(f"{path} has no step times") from None

    def save(self, path: str | Path, **about: Any) -> None:
        """Write it as JSON; `about` says what was measured."""
        Path(path).write_text(json.dumps({**about, **asdict(self)}, indent=1) + "\n")


@dataclass(frozen=True)
class StepTimer:
    """Times single steps of a runner."""

    runner: Runner
    block_size: int
    repeat: int

    def seconds(self, start: int, count: int, num_logits: int = 1) -> float:
        """The median time of a chunk of `count` tokens at `start`, its last rows drawn."""
        blocks = tuple(range(-(-(start + count) // self.block_size)))
        plan = StepPlan((Chunk(0, start, (TOKEN,) * count, blocks, num_logits),))
        rows = [SampleRow(i, SamplingParams(temperature=0)) for i in range(num_logits)]
        times = []
        for _ in range(self.repeat + 1):
            begin = time.perf_counter()
            self.runner.run(plan).sample(rows)
            times.append(time.perf_counter() - begin)
        return statistics.median(times[1:])


class SimulatedRunner:
    """A `Runner` for which only time passes; it says the same token in every row."""

    def __init__(self, times: StepModel, clock: VirtualClock) -> None:
        self._times = times
        self._clock = clock

    def run(self, plan: StepPlan) -> SimulatedRunner:
        self._clock.advance(self._times.of(plan))
        return self

    def sample(self, rows: list[SampleRow]) -> list[SampledToken]:
        return [SampledToken(TOKEN) for _ in rows]

    def memory_report(self) -> dict[str, Any]:
        return {}


def simulated_core(
    times: StepModel, clock: VirtualClock, scheduler: SchedulerConfig, cache: CacheConfig
) -> EngineCore:
    """A real engine over a simulated model."""
    scheduler = replace(scheduler, max_model_len=scheduler.max_model_len or 1 << 20)
    return EngineCore(SimulatedRunner(times, clock), KVManager.from_config(cache), scheduler)


Router = Callable[[Arrival, Sequence[Replay]], int]


def round_robin() -> Router:
    """Each replica in turn."""
    turn = iter(range(1 << 62))
    return lambda arrival, replicas: next(turn) % len(replicas)


def least_loaded(arrival: Arrival, replicas: Sequence[Replay]) -> int:
    """The replica with the fewest open requests."""
    return min(range(len(replicas)), key=lambda i: replicas[i].num_open)


def by_prefix(arrival: Arrival, replicas: Sequence[Replay]) -> int:
    """The replica that the first tokens hash to, so that its prefix cache has them."""
    return hash(arrival.prompt_ids[:PREFIX]) % len(replicas)


class Fleet:
    """Replicas, each with its own clock, behind one router, in one virtual time."""

    def __init__(self, make: Callable[[VirtualClock], EngineCore], count: int) -> None:
        clocks = [VirtualClock() for _ in range(count)]
        self.replicas = [Replay(make(clock), clock) for clock in clocks]

    def run(self, workload: Sequence[Arrival], route: Router) -> list[Record]:
        """Run `workload` (in order of arrival) to its end."""
        busy: list[tuple[float, int]] = []  # replicas with work, by their clocks
        for arrival in workload:
            self._step_until(busy, arrival.at)
            number = route(arrival, self.replicas)
            replica = self.replicas[number]
            is_idle = not replica.core.has_work()
            replica.enter(arrival, arrival.at)
            if is_idle:
                replica.clock.wait_until(arrival.at)
                heapq.heappush(busy, (replica.clock.now(), number))
        self._step_until(busy, float("inf"))
        return [record for replica in self.replicas for record in replica.records]

    def _step_until(self, busy: list[tuple[float, int]], when: float) -> None:
        """Let every step begin that begins before `when`."""
        while busy and busy[0][0] < when:
            _, number = heapq.heappop(busy)
            replica = self.replicas[number]
            replica.step()
            if replica.core.has_work():
                heapq.heappush(busy, (replica.clock.now(), number))
