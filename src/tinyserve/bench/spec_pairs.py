"""Plain decoding and drafts side by side, in slices: a comparison that noise leaves alone.

Two engines over one runner, each with blocks of its own, have the same requests at the same time
and take turns of SLICE steps, A B B A, so that whatever slows the machine for longer than that
slows both. A pair is PAIR steps of each, which is long enough for the controller's probes to be in
it. Its ratio is that of tokens a second, by the wall clock and by processor time of all threads.
Medians over many pairs come with a confidence interval that supposes nothing of the noise.

Threads of the kernel pool that wait spin for up to 50 microseconds at a time, hundreds of times a
step, and processor time counts that: where others use the machine it grows, too, for both sides
alike (`--threads 1` never spins).

Texts go on past their end, so that every stream takes part in every step that counts. A batch that
ends in mid-pair gives the pair up.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tinyserve.bench.spec_runs import had_drafts
from tinyserve.config import CacheConfig
from tinyserve.engine.core import EngineCore
from tinyserve.engine.request import EngineRequest
from tinyserve.kv.block_table import BlockTable
from tinyserve.kv.manager import KVManager

SLICE = 2  # steps of one engine before it is the other's turn
PAIR = 32  # steps of each engine
DOUBT = 0.05  # chance that an interval misses


class Cost(NamedTuple):
    """What some steps gave and took."""

    tokens: int = 0
    wall_s: float = 0.0
    cpu_s: float = 0.0

    def plus(self, other: Cost) -> Cost:
        return Cost(
            self.tokens + other.tokens, self.wall_s + other.wall_s, self.cpu_s + other.cpu_s
        )


class Pair(NamedTuple):
    """The same number of steps without drafts and with them."""

    plain: Cost
    drafted: Cost

    @property
    def wall(self) -> float:
        """Tokens a second with drafts, over those without."""
        a, b = self.plain, self.drafted
        return (b.tokens / b.wall_s) / (a.tokens / a.wall_s)

    @property
    def cpu(self) -> float:
        """`wall`, but with processor time."""
        a, b = self.plain, self.drafted
        return (b.tokens / b.cpu_s) / (a.tokens / a.cpu_s)


class Side:
    """One of the engines: what it has said, and when its steps had drafts."""

    def __init__(self, core: EngineCore) -> None:
        self.core = core
        self.said: dict[str, list[int]] = {}  # the present batch's tokens, per request
        self.total = Cost()  # whole slices only
        self.num_steps = 0
        self.drafting: list[tuple[float, bool]] = []  # (seconds, whether it had drafts) of steps

    def enter(self, requests: Sequence[EngineRequest]) -> None:
        """Leave the old batch and bring a new one to the first token of each request."""
        for request_id in self.said:
            self.core.abort(request_id)
        self.said = {request.request_id: [] for request in requests}
        for request in requests:
            self.core.add_request(request)
        while not all(self.said.values()):
            self._step()

    def run(self, steps: int) -> Cost | None:
        """Some steps; None where a stream did not take part in all of them."""
        before = sum(map(len, self.said.values()))
        cpu, wall = time.process_time(), time.perf_counter()
        for _ in range(steps):
            if not self._step():
                return None
            seconds = self.total.wall_s + time.perf_counter() - wall
            self.drafting.append((seconds, had_drafts(self.core)))
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        found = Cost(sum(map(len, self.said.values())) - before, wall, cpu)
        self.total = self.total.plus(found)
        self.num_steps += steps
        return found

    def _step(self) -> bool:
        """One step; whether every stream took part and none has ended."""
        outputs = self.core.step()
        for output in outputs:
            self.said[output.request_id] += output.new_token_ids
        return len(outputs) == len(self.said) and not any(o.finish_reason for o in outputs)


@dataclass(frozen=True)
class Paired:
    """The pairs of a case, and both sides as they were left."""

    pairs: list[Pair]
    plain: Side
    drafted: Side
    is_identical: bool


def halves(cache: CacheConfig) -> tuple[KVManager, KVManager]:
    """Two owners of blocks: of the first half of a pool, and of the second."""
    assert cache.num_blocks is not None
    half, size = cache.num_blocks // 2, cache.block_size
    first = KVManager(half, size, enable_prefix_caching=False)
    second = KVManager(2 * half, size, enable_prefix_caching=False)
    second.open(BlockTable(), [0] * (half * size))  # never released: those are the other half's
    return first, second


def measure(
    plain: EngineCore,
    drafted: EngineCore,
    batches: Iterator[Sequence[EngineRequest]],
    count: int,
) -> Paired:
    """`count` pairs of two engines over as many batches as that takes.

    Raises ValueError where a batch is too short for a single pair.
    """
    sides = Side(plain), Side(drafted)
    pairs: list[Pair] = []
    is_identical = True
    while len(pairs) < count:
        requests = next(batches)
        for side in sides:
            side.enter(requests)
        num_before = len(pairs)
        while len(pairs) < count and (pair := _pair(*sides)) is not None:
            pairs.append(pair)
        if len(pairs) == num_before:
            raise ValueError(f"the texts are too short for {PAIR} steps of each engine")
        is_identical = is_identical and agree(*sides)
    return Paired(pairs, *sides, is_identical)


def _pair(plain: Side, drafted: Side) -> Pair | None:
    """One pair; None where a text ended meanwhile."""
    costs = {plain: Cost(), drafted: Cost()}
    for turn in range(PAIR // SLICE):
        for side in (plain, drafted) if turn % 2 == 0 else (drafted, plain):
            cost = side.run(SLICE)
            if cost is None:
                return None
            costs[side] = costs[side].plus(cost)
    return Pair(costs[plain], costs[drafted])


def agree(plain: Side, drafted: Side) -> bool:
    """Whether both have said the same, as far as both have come."""
    return all(
        a == b
        for request_id, tokens in plain.said.items()
        for a, b in zip(tokens, drafted.said[request_id], strict=False)
    )


def summary(pairs: Sequence[Pair]) -> dict[str, Any]:
    """Median ratios with their intervals, and ratios over everything, by both clocks."""
    plain, drafted = Cost(), Cost()
    for pair in pairs:
        plain, drafted = plain.plus(pair.plain), drafted.plus(pair.drafted)
    total = Pair(plain, drafted)
    wall, cpu = [pair.wall for pair in pairs], [pair.cpu for pair in pairs]
    return {
        "speedup": statistics.median(wall),
        "interval": median_interval(wall),
        "total": total.wall,
        "cpu": {
            "speedup": statistics.median(cpu),
            "interval": median_interval(cpu),
            "total": total.cpu,
        },
        "speedups": wall,
        "plain_tok_s": plain.tokens / plain.wall_s,
        "tok_s": drafted.tokens / drafted.wall_s,
    }


def median_interval(values: Sequence[float]) -> list[float] | None:
    """Between which two of the values the median of their distribution lies, with 1 - DOUBT.

    By order statistics: the number of values below the median is binomial, whatever the
    distribution. None where there are too few of them to say.
    """
    ordered = sorted(values)
    n = len(ordered)
    below, rank = 0.0, 0  # the chance that at most `rank` - 1 values lie below the median
    while rank < n // 2:
        below += math.comb(n, rank) / 2**n
        if 2 * below > DOUBT:
            break
        rank += 1
    return [ordered[rank - 1], ordered[n - rank]] if rank else None
