"""Counts of values: `Histogram` since the start, `Window` over the last minute.

Plain Python numbers without locks: the event loop's alone. Both are of fixed size, whatever comes.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Sequence


class Histogram:
    """Counts by upper bound, as Prometheus has them; what is above the last bound is counted too.

    `bounds` ascend. A value equal to a bound belongs to it.
    """

    __slots__ = ("_counts", "bounds", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self._counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """Count `value`, `count` times."""
        self._counts[bisect_left(self.bounds, value)] += count
        self.sum += value * count

    def cumulative(self) -> list[tuple[float, int]]:
        """(bound, how many values are at most that), the last bound being infinity."""
        total = 0
        rows = []
        for bound, count in zip((*self.bounds, math.inf), self._counts, strict=True):
            total += count
            rows.append((bound, total))
        return rows


class Window:
    """Percentiles of the values of the last `seconds`, to within 2 %.

    Values fall into steps of 4 % on a logarithmic scale, kept second by second: what leaves the
    window leaves within a second.
    """

    STEP = math.log(1.04)
    SMALLEST = 1e-6

    def __init__(self, seconds: int = 60) -> None:
        self._seconds = seconds
        self._slots: deque[tuple[int, Counter[int]]] = deque()

    def observe(self, now: float, value: float, count: int = 1) -> None:
        """`now` is of a monotonic clock; a value may come late, but then counts as of now."""
        second = int(now)
        if not self._slots or self._slots[-1][0] < second:
            self._slots.append((second, Counter()))
            self._forget(second)
        level = round(math.log(max(value, self.SMALLEST)) / self.STEP)
        self._slots[-1][1][level] += count

    def percentiles(self, now: float, shares: Sequence[float]) -> tuple[int, list[float | None]]:
        """How many values there are, and the value that each share of them does not exceed."""
        self._forget(int(now))
        levels: Counter[int] = Counter()
        for _, slot in self._slots:
            levels.update(slot)
        total = levels.total()
        return total, [self._at(levels, math.ceil(share * total)) for share in shares]

    def _at(self, levels: Counter[int], rank: int) -> float | None:
        seen = 0
        for level in sorted(levels):
            seen += levels[level]
            if seen >= rank:
                return math.exp(level * self.STEP)
        return None

    def _forget(self, second: int) -> None:
        while self._slots and self._slots[0][0] <= second - self._seconds:
            self._slots.popleft()
