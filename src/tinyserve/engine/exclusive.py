"""`Exclusive`: a fair lock whose holder is not interrupted half-way.

For the engine that an `LLM` runs on its callers' threads: two steps at once, or a step that a
KeyboardInterrupt has cut in two, would leave its bookkeeping in pieces. So would half a step that a
child process inherits: a fork waits for its end.
"""

from __future__ import annotations

import os
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_put_off: dict[int, Callable[..., Any]] = {}  # signal: its handler that waits; main thread only


class Exclusive:
    """A lock that threads hold in turns: one that has just released it cannot overtake one that
    waits, so none starves even if all use it without pause. Not reentrant.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next = threading.Lock()  # held by the thread that is next in line
        _all.add(self)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait for the lock, and hold it until the block ends."""
        with interrupts_put_off():
            with self._next:
                self._lock.acquire()
            try:
                yield
            finally:
                self._lock.release()

    @contextmanager
    def turn_if_free(self) -> Iterator[bool]:
        """Hold the lock if it is free, and tell whether it was. The thread that holds it may ask,
        too.
        """
        with interrupts_put_off():
            is_mine = self._lock.acquire(blocking=False)
            try:
                yield is_mine
            finally:
                if is_mine:
                    self._lock.release()

    def take(self) -> None:
        """Hold the lock until `leave`."""
        self._next.acquire()
        self._lock.acquire()

    def leave(self) -> None:
        self._lock.release()
        self._next.release()


_all: weakref.WeakSet[Exclusive] = weakref.WeakSet()
_taken: list[Exclusive] = []  # those that the forking thread holds


def _before_fork() -> None:
    with interrupts_put_off():
        for exclusive in sorted(_all, key=id):
            exclusive.take()
            _taken.append(exclusive)


def _after_fork() -> None:
    while _taken:
        _taken.pop().leave()


def _after_fork_in_child() -> None:
    """Only the thread that forked is left: no other will return to restore the handlers."""
    _after_fork()
    for number, handler in _put_off.items():
        signal.signal(number, handler)
    _put_off.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child
    )


@contextmanager
def interrupts_put_off() -> Iterator[list[int]]:
    """Signals whose handlers tend to raise, Ctrl-C and time limits by SIGALRM, are handled when the
    block is done. The list has those that came, unless another such block is around this one.
    """
    came: list[int] = []
    if _put_off or threading.current_thread() is not threading.main_thread():
        yield came  # handlers run in the main thread
        return
    with _deferred(signal.SIGINT, came), _deferred(getattr(signal, "SIGALRM", None), came):
        yield came


@contextmanager
def _deferred(number: int | None, came: list[int]) -> Iterator[None]:
    """Note a signal in `came` instead of handling it, and handle it when the block is done."""
    handler = signal.getsignal(number) if number is not None else None
    if number is None or not callable(handler):
        yield
        return
    frames: list[FrameType | None] = []

    def note(number: int, frame: FrameType | None) -> None:
        came.append(number)
        frames.append(frame)

    try:
        _put_off[number] = handler
        signal.signal(number, note)
        yield
    finally:
        _put_off.pop(number, None)
        signal.signal(number, handler)
        if frames:
            handler(number, frames[-1])
