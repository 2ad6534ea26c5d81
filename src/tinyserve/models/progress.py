"""Progress on the terminal, for downloads and for loading; silent in logs and pipes.

A bar appears only for what takes longer than a moment, and `rich` is imported only then, so that a
fast start stays fast.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tinyserve.models.checkpoint import Progress

MOMENT_S = 1.0


@contextmanager
def shown(progress: Progress | None) -> Iterator[Progress]:
    """`progress` itself, else one that draws on stderr if that is a terminal (silent if not)."""
    if progress is not None:
        yield progress
    elif not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield _silent
    else:
        bars = _Bars()
        try:
            yield bars
        finally:
            bars.close()


def _silent(label: str, done: int, total: int, *, unit: str = "bytes") -> None:
    """Shows nothing: for logs and pipes, where a bar would be noise."""


class _Bars:
    """One bar for each label; the first is drawn after a moment."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._rich: Any = None
        self._tasks: dict[str, Any] = {}

    def __call__(self, label: str, done: int, total: int, *, unit: str = "bytes") -> None:
        if self._rich is None:
            if time.monotonic() - self._began < MOMENT_S:
                return
            self._rich = _draw()
        if label not in self._tasks:
            self._tasks[label] = self._rich.add_task(label, amount="")
        self._rich.update(
            self._tasks[label],
            completed=done,
            total=total or None,
            amount=_amount(done, total, unit),
        )

    def close(self) -> None:
        if self._rich is not None:
            self._rich.stop()


def _amount(done: int, total: int, unit: str) -> str:
    if unit != "bytes":
        return f"{done} of {total} {unit}" if total else f"{done} {unit}"
    return f"{done / 1e6:.0f} of {total / 1e6:.0f} MB" if total else f"{done / 1e6:.0f} MB"


def _draw() -> Any:
    """An empty display of bars on stderr, which vanishes when it is stopped."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[amount]}"),
        TimeRemainingColumn(),
    )
    display = Progress(*columns, console=Console(stderr=True), transient=True)
    display.start()
    return display
