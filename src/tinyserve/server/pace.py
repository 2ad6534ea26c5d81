"""`Pace`: how fast entries have been leaving lately, for a `Retry-After` that means something."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator

WINDOW = 64  # departures that count
LONGEST_S = 60.0


class Pace:
    """Remembers when the last entries left. One writer; any thread may ask.

    Its time stands still while nobody is served: an idle night says nothing of the pace.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._departures: deque[float] = deque(maxlen=WINDOW)
        self._rested = 0.0  # seconds
        self._rests_since: float | None = None

    def note(self) -> None:
        """An entry has left."""
        self._departures.append(self._now())

    @contextlib.contextmanager
    def at_rest(self) -> Iterator[None]:
        """There is nothing to do until the block ends."""
        self._rests_since = began = self._clock()
        yield
        self._rested += self._clock() - began
        self._rests_since = None

    def wait_s(self, num_waiting: int) -> float:
        """Seconds until half of `num_waiting` will have left at the present pace; 1 to 60.

        Half: a client that comes back then finds room, and not every refused client at once.
        """
        times = list(self._departures)
        if len(times) < 2:
            return 1.0
        interval = (self._now() - times[0]) / (len(times) - 1)
        return min(max(1.0, interval * num_waiting / 2), LONGEST_S)

    def _now(self) -> float:
        since = self._rests_since
        return (self._clock() if since is None else since) - self._rested
