"""A pace for `SpeakingRunner`: put one in place of its gate, and a test can look at a running engine
before it is done.
"""

from __future__ import annotations

import threading
import time


class SlowGate(threading.Event):
    """A gate that holds each step for some milliseconds."""

    def wait(self, timeout: float | None = None) -> bool:
        time.sleep(0.005)
        return True
