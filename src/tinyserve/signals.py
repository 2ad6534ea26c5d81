"""Handlers of SIGINT and SIGTERM that last for a block of code; and clean-up that must happen even
where the process ends while a thread is still at work.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import NoReturn

_undos: list[Callable[[], object]] = []


@contextlib.contextmanager
def handled(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Send both signals to `handler` until the block ends. Does nothing on other threads than the
    main one, which alone may set handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {s: signal.signal(s, handler) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


@contextlib.contextmanager
def undone_at_end(undo: Callable[[], object]) -> Iterator[None]:
    """`undo` is called if the process ends inside the block. The block's own `finally` would not
    run then: nobody waits for daemon threads.
    """
    _undos.append(undo)
    atexit.register(undo)
    try:
        yield
    finally:
        atexit.unregister(undo)
        _undos.remove(undo)


def end_at_once(status: int) -> NoReturn:
    """End the process without waiting for any thread, but leave nothing half done behind."""
    for undo in reversed(tuple(_undos)):
        with contextlib.suppress(Exception):
            undo()
    os._exit(status)
