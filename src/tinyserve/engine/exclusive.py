"""`Exclusive`: one user of something at a time, and none of them stopped half-way.

For the engine that an `LLM` runs on its callers' threads: two steps at once, or a step that a
KeyboardInterrupt has cut in two, would leave its bookkeeping in pieces.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_put_off: set[int] = set()  # signals; only the main thread has any


class Exclusive:
    """Turns at something. Threads have them one after another: who waits is not overtaken by the
    one that had the last, so that all get on that use it all the time. Not reentrant.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next = threading.Lock()  # held by the one that comes next

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait for a turn and have it."""
        with interrupts_put_off():
            with self._next:
                self._lock.acquire()
            try:
                yield
            finally:
                self._lock.release()

    @contextmanager
    def turn_if_free(self) -> Iterator[bool]:
        """A turn if nobody has one, and whether it is; may be asked while one has it oneself."""
        with interrupts_put_off():
            is_mine = self._lock.acquire(blocking=False)
            try:
                yield is_mine
            finally:
                if is_mine:
                    self._lock.release()


@contextmanager
def interrupts_put_off() -> Iterator[list[int]]:
    """Signals whose handlers tend to raise, Ctrl-C and time limits by SIGALRM, are handled when the
    block is done. The list has those that came, unless another such block is around this one.
    """
    came: list[int] = []
    if _put_off or threading.current_thread() is not threading.main_thread():
        yield came  # handlers run in the main thread
        return
    with _off(signal.SIGINT, came), _off(getattr(signal, "SIGALRM", None), came):
        yield came


@contextmanager
def _off(number: int | None, came: list[int]) -> Iterator[None]:
    handler = signal.getsignal(number) if number is not None else None
    if number is None or not callable(handler):
        yield
        return
    frames: list[FrameType | None] = []

    def note(number: int, frame: FrameType | None) -> None:
        came.append(number)
        frames.append(frame)

    try:
        _put_off.add(number)
        signal.signal(number, note)
        yield
    finally:
        _put_off.discard(number)
        signal.signal(number, handler)
        if frames:
            handler(number, frames[-1])
