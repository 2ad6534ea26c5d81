"""Types of command-line arguments: what could not work is refused before anything is measured."""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from tinyserve.bench.latency import SLO
from tinyserve.bench.workload import ARRIVALS, BURST_SIZE, LENGTHS, Span
from tinyserve.errors import reason_of

T = TypeVar("T")


def argument(parse: Callable[[str], T], wanted: str) -> Callable[[str], T]:
    """What `parse` makes of a text; of a ValueError, what was wanted."""

    def checked(text: str) -> T:
        try:
            return parse(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not {wanted}") from None

    return checked


_int = argument(int, "a whole number")
_float = argument(float, "a number")


def positive_int(text: str) -> int:
    """A whole number from 1 on."""
    number = _int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {text}")
    return number


def positive_float(text: str) -> float:
    """A number above 0."""
    number = _float(text)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"must be above 0, got {text}")
    return number


def floats(text: str) -> list[float]:
    """ "0,0.8" as numbers."""
    return [_float(part) for part in text.split(",")]


def rates(text: str) -> list[float]:
    """ "1,2,4" as numbers above 0."""
    return [positive_float(part) for part in text.split(",")]


def ints(text: str) -> list[int]:
    """ "1,2,4" as whole numbers from 1 on."""
    return [positive_int(part) for part in text.split(",")]


def names_of(known: Iterable[str], kind: str) -> Callable[[str], str]:
    """ "a,b" as it is, if all of them are known."""
    known = list(known)

    def check(text: str) -> str:
        for name in text.split(","):
            if name not in known:
                raise argparse.ArgumentTypeError(f"there is no {kind} {name!r}: {', '.join(known)}")
        return text

    return check


def output_file(text: str) -> str:
    """A file that can be written."""
    path = Path(text)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"cannot write {text}: {reason_of(error)}") from None
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"cannot write {text}: it is a folder")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"cannot write {text}: no permission")
    return text


def plot_file(text: str) -> str:
    """A file that a plot can be drawn into."""
    if importlib.util.find_spec("matplotlib") is None:
        raise argparse.ArgumentTypeError("plots need matplotlib: pip install 'tinyserve[bench]'")
    from matplotlib.backend_bases import FigureCanvasBase

    kinds = FigureCanvasBase.filetypes
    kind = Path(text).suffix.removeprefix(".").lower()
    if kind and kind not in kinds:
        raise argparse.ArgumentTypeError(f"{kind!r} is no kind of plot: {', '.join(sorted(kinds))}")
    return output_file(text)


def add_workload(parser: argparse.ArgumentParser) -> None:
    """The options that say how requests come, how long they are, and what counts as good."""
    add = parser.add_argument
    span = argument(Span.parse, "a span of lengths such as 16-96")
    add(
        "--arrivals",
        choices=ARRIVALS,
        default="poisson",
        help=f"poisson: at random; burst: {BURST_SIZE} at once; steady: evenly; together: all now",
    )
    add(
        "--lengths",
        choices=LENGTHS,
        default="uniform",
        help="uniform, or chat: mostly short, a few very long",
    )
    add("--prompt", type=span, default=Span(16, 96), help="prompt tokens, such as 16-96")
    add("--output", type=span, default=Span(16, 64), help="output tokens, such as 16-64")
    add(
        "--slo",
        type=argument(SLO.parse, "an objective such as 2,0.2"),
        default=SLO(),
        help="what still counts as good: seconds to the first token, between tokens "
        "(default: 2,0.2)",
    )
