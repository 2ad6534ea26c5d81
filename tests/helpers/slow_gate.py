"""A pace for `SpeakingRunner`: put in place of its gate, it lets a test look at a busy engine."""

from __future__ import annotations

import threading
import time


class SlowGate(threading.Event):
    """A gate that holds each step for some milliseconds."""

    def wait(self, timeout: float | None = None) -> bool:
        time.sleep(0.005)
        return True
