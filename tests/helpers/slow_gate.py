"""Gates that take the place of `SpeakingRunner.gate`: they let a test look at a busy engine."""

from __future__ import annotations

import threading
import time


class SlowGate(threading.Event):
    """A gate that holds each step for some milliseconds."""

    def wait(self, timeout: float | None = None) -> bool:
        time.sleep(0.005)
        return True


class LateGate(threading.Event):
    """A gate that lets the first steps pass, and holds the next until it is set."""

    def __init__(self, num_passing: int) -> None:
        super().__init__()
        self._num_passing = num_passing

    def wait(self, timeout: float | None = None) -> bool:
        if self._num_passing > 0:
            self._num_passing -= 1
            return True
        return super().wait(timeout)
