"""What the machine could do at best: read bandwidth and multiply rates, by native probes; and how
programs are timed against that.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np

from tinyserve.kernels.abi import load_library
from tinyserve.kernels.ops import Batch, Compiled
from tinyserve.kernels.packing import aligned_bytes

READ, FMA, INT16, U4S8, BF16X2 = range(5)
RATES = {
    "f32_gmac_s": FMA,
    "int16_gmac_s": INT16,
    "u4s8_gmac_s": U4S8,
    "bf16x2_gmac_s": BF16X2,
}
READ_BYTES = 128 << 20
PROBES = 3  # after one that is left out; the median counts
CACHES = 96 << 20  # bytes that no cache holds
LONG_S = 3.0  # a case that took this long gets no further round
REST_S = 0.005  # between runs of two engines: idle threads stay awake for a while


def read_bandwidth(variant: str, threads: int) -> float:
    """Bytes per second of a sum over 128 MiB."""
    data = aligned_bytes(READ_BYTES)
    data[:] = 1
    times = [_seconds(variant, threads, READ, data)[0] for _ in range(PROBES + 1)]
    return READ_BYTES / statistics.median(times[1:])


def multiply_rate(variant: str, threads: int, kind: int) -> float:
    """Multiply-adds per second in registers: FMA, INT16 (int16 x int16), U4S8 (u4 x int8), BF16X2
    (bf16 x activations in two parts).
    """
    data = aligned_bytes(4096 * threads)
    runs = [_seconds(variant, threads, kind, data) for _ in range(PROBES + 1)]
    return statistics.median(done / seconds for seconds, done in runs[1:])


def _seconds(variant: str, threads: int, kind: int, data: np.ndarray) -> tuple[float, int]:
    begin = time.perf_counter()
    done = load_library().ts_probe(variant.encode(), threads, kind, data.ctypes.data, data.nbytes)
    return time.perf_counter() - begin, int(done)


class Ceilings:
    """What the machine reaches at best, measured again and again between the cases."""

    def __init__(self, variant: str, threads: int) -> None:
        self._variant = variant
        self._threads = threads
        self._found: dict[str, list[float]] = {}
        self.measure()

    def measure(self) -> None:
        variant, threads = self._variant, self._threads
        self._note("read_gb_s", read_bandwidth(variant, threads))
        for name, kind in RATES.items():
            self._note(name, multiply_rate(variant, threads, kind))

    def latest(self) -> dict[str, float]:
        return {name: values[-1] for name, values in self._found.items()}

    def medians(self) -> dict[str, float]:
        return {name: statistics.median(values) for name, values in self._found.items()}

    def _note(self, name: str, per_second: float) -> None:
        self._found.setdefault(name, []).append(per_second / 1e9)


def rounds_of(runs: Sequence[Callable[[], float]], repeat: int) -> list[tuple[float, ...]]:
    """Seconds of each run, in turns, round by round, the first one left out. Where rounds are long
    there are fewer of them, but one at least.
    """
    rest_s = REST_S if len(runs) > 1 else 0.0
    rounds: list[tuple[float, ...]] = []
    begin = time.perf_counter()
    while len(rounds) <= repeat:
        found = []
        for run in runs:
            time.sleep(rest_s)
            found.append(run())
        rounds.append(tuple(found))
        if len(rounds) > 1 and time.perf_counter() - begin > LONG_S:
            break
    return rounds[1:]


def step_seconds(program: Compiled, batch: Batch) -> float:
    """The time of one step."""
    begin = time.perf_counter()
    program.run(batch)
    return time.perf_counter() - begin
