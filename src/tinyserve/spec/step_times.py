"""How long a step of so many rows takes, as measured: the cost side of speculation.

The median of the latest times of each number of rows counts, so that a hiccup changes nothing.
Between measured numbers of rows the estimate is a straight line; beyond the largest it goes on with
the slope of the last two. What was not measured for long is forgotten: the machine may have become
slower or faster.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left, insort
from collections import deque

MEMORY = 7  # times kept for each number of rows
FORGET_AFTER = 2048  # measurements
TIDY_EVERY = 256  # measurements
TICK = 1e-9  # seconds; a step may take none on a coarse clock, and tokens per second are wanted


class StepTimes:
    """Seconds by number of rows."""

    def __init__(self) -> None:
        self._times: dict[int, deque[float]] = {}
        self._medians: dict[int, float] = {}
        self._sizes: list[int] = []  # the numbers of rows that were measured, in order
        self._measured: dict[int, int] = {}  # rows -> when last, by the count below
        self._count = 0

    @property
    def largest(self) -> int:
        """The most rows that have been measured; 0: none have."""
        return self._sizes[-1] if self._sizes else 0

    def add(self, rows: int, seconds: float) -> None:
        """A step of `rows` rows took `seconds`."""
        if rows not in self._times:
            self._times[rows] = deque(maxlen=MEMORY)
            insort(self._sizes, rows)
        self._times[rows].append(max(seconds, TICK))
        self._medians[rows] = statistics.median(self._times[rows])
        self._count += 1
        self._measured[rows] = self._count
        if self._count % TIDY_EVERY == 0:
            self._tidy()

    def age(self, rows: int) -> int | None:
        """How many measurements ago a step of `rows` rows was measured; None: never."""
        measured = self._measured.get(rows)
        return None if measured is None else self._count - measured

    def estimate(self, rows: int) -> float:
        """Seconds of a step of `rows` rows. Something has been measured."""
        known = self._medians.get(rows)
        if known is not None:
            return known
        sizes, medians = self._sizes, self._medians
        above = bisect_left(sizes, rows)
        if above == 0:
            return medians[sizes[0]]
        if above < len(sizes):
            return _line(rows, sizes[above - 1], sizes[above], medians)
        if len(sizes) == 1:
            return medians[sizes[0]]
        return max(_line(rows, sizes[-2], sizes[-1], medians), medians[sizes[-1]])

    def _tidy(self) -> None:
        for rows, measured in list(self._measured.items()):
            if self._count - measured > FORGET_AFTER:
                del self._times[rows], self._medians[rows], self._measured[rows]
        self._sizes = sorted(self._times)


def _line(rows: int, left: int, right: int, medians: dict[int, float]) -> float:
    slope = (medians[right] - medians[left]) / (right - left)
    return medians[left] + slope * (rows - left)
