"""A progress bar for batches; `rich` is imported only when one is shown."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def counted(total: int, wanted: bool | None) -> Iterator[Callable[[], None]]:
    """A function to call for each of `total` requests that is done.

    `wanted` None shows a bar for more than one request on a terminal, True shows it anyway.
    """
    if wanted is False or (wanted is None and (total < 2 or not sys.stderr.isatty())):
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("generating", total=total)
        yield lambda: bar.advance(task)
