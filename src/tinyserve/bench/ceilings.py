"""What the machine could do at best: read bandwidth and multiply rates, by native probes."""

from __future__ import annotations

import statistics
import time

import numpy as np

from tinyserve.kernels.abi import load_library
from tinyserve.kernels.packing import aligned_bytes

READ, FMA, INT16, U4S8 = range(4)
READ_BYTES = 128 << 20


def read_bandwidth(variant: str, threads: int, repeat: int = 5) -> float:
    """Bytes per second of a sum over 128 MiB, the median of `repeat`."""
    data = aligned_bytes(READ_BYTES)
    data[:] = 1
    times = [_seconds(variant, threads, READ, data)[0] for _ in range(repeat + 1)]
    return READ_BYTES / statistics.median(times[1:])


def multiply_rate(variant: str, threads: int, kind: int, repeat: int = 5) -> float:
    """Multiply-adds per second in registers: FMA, INT16 (int16 x int16), U4S8 (u4 x int8)."""
    data = aligned_bytes(4096 * threads)
    runs = [_seconds(variant, threads, kind, data) for _ in range(repeat + 1)]
    return statistics.median(done / seconds for seconds, done in runs[1:])


def _seconds(variant: str, threads: int, kind: int, data: np.ndarray) -> tuple[float, int]:
    begin = time.perf_counter()
    done = load_library().ts_probe(variant.encode(), threads, kind, data.ctypes.data, data.nbytes)
    return time.perf_counter() - begin, int(done)
