"""A progress bar on the terminal for downloads; `rich` is imported only when one is shown."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tinyserve.models.checkpoint import Progress


@contextmanager
def shown(progress: Progress | None) -> Iterator[Progress]:
    """`progress` itself, else one that draws on stderr if that is a terminal (silent if not)."""
    if progress is not None:
        yield progress
    elif not sys.stderr.isatty():
        yield _silent
    else:
        with _bar() as report:
            yield report


def _silent(label: str, done: int, total: int) -> None:
    """For logs and pipes, where a bar would be noise."""


@contextmanager
def _bar() -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TransferSpeedColumn
    from rich.progress import Progress as RichProgress

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    tasks: dict[str, int] = {}
    with RichProgress(*columns, console=Console(stderr=True), transient=True) as bar:

        def report(label: str, done: int, total: int) -> None:
            if label not in tasks:
                tasks[label] = bar.add_task(label)
            bar.update(tasks[label], completed=done, total=total or None)  # type: ignore[arg-type]

        yield report
