"""torch's products of the same shapes, timed in turns with the kernels.

They run in a process of their own (`benchmarks/peer_matmul.py`), in whatever environment has torch:
this package does not know it. Rounds are pairs of seconds, ours first.
"""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

SCRIPT = Path("benchmarks/peer_matmul.py")  # from the root of a checkout
FORMATS = ("f32", "bf16")  # weight formats that torch multiplies, too
Shape = tuple[int, int]  # outputs, inputs


class MatmulPeer:
    """A process that holds matrices and multiplies by them when it is told to."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def seconds(self, rows: int) -> float:
        """The time of so many rows by each matrix, once. Raises RuntimeError where it has ended."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # then there is no answer, which says why
            self._process.stdin.write(f"{rows}\n")
            self._process.stdin.flush()
        return float(self.answer())

    def answer(self) -> str:
        """The next line that it prints. Raises RuntimeError with its last words instead."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line:
            return line
        assert self._process.stderr is not None
        raise RuntimeError(self._process.stderr.read()[-2000:].strip() or "it ended at once")


def python_of(against: str) -> str:
    """The interpreter of `torch` (this one) or `torch=PYTHON`. Raises ValueError otherwise."""
    name, _, python = against.partition("=")
    if name != "torch":
        raise ValueError(f"{against!r} is not torch or torch=PYTHON")
    return python or sys.executable


def check(against: str | None) -> None:
    """Raises ValueError, before anything is measured, where nothing runs by that name."""
    if against is not None:
        try:
            with _started(python_of(against), "f32", [(16, 16)], 1) as peer:
                peer.seconds(1)
        except (OSError, RuntimeError) as error:
            raise ValueError(str(error)) from error


@contextlib.contextmanager
def matmul_peer(
    against: str | None, kind: str, shapes: Sequence[Shape], threads: int
) -> Iterator[MatmulPeer | None]:
    """torch with a matrix of each shape, where it is asked for and knows the format."""
    if against is None or kind not in FORMATS:
        yield None
        return
    with _started(python_of(against), kind, shapes, threads) as peer:
        yield peer


@contextlib.contextmanager
def _started(python: str, kind: str, shapes: Sequence[Shape], threads: int) -> Iterator[MatmulPeer]:
    spelled = ",".join(f"{n}x{k}" for n, k in shapes)
    command = [python, str(SCRIPT), "--format", kind, "--shapes", spelled]
    with subprocess.Popen(
        [*command, "--threads", str(threads)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            peer = MatmulPeer(process)
            peer.answer()
            yield peer
        finally:
            process.kill()
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # it may end without having read everything
                process.stdin.close()


def compared(rounds: Sequence[tuple[float, ...]]) -> dict[str, float]:
    """torch's time, and our speed over its: the median over the rounds' pairs."""
    return {
        "torch_ms": 1e3 * statistics.median(theirs for _, theirs in rounds),
        "over_torch": statistics.median(theirs / own for own, theirs in rounds),
    }
