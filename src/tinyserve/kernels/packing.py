"""The packed weight layouts of the native kernels, and nothing else: plain formats in, bytes out.

A panel holds 16 output columns; panels follow each other, the last one padded with zeros.

    f32, f16  [k][16] values
    bf16      [k / 2][16][2] values, the last pair padded with zeros
    int8      per group: [group / 2][16][2] int8, then 16 scales (, 16 minima)
    u4        per group of 32: 8 runs of 32 bytes, then 16 scales (, 16 minima). Byte 4c + i of
              run j holds input feature 4j + i of column c in its low nibble, of column c + 8 in
              its high. Minima that are -8 scales, as GGUF's Q4_0 has them, are not stored

Scales and minima are f16 where every one of them is exact in f16, else f32.
"""

from __future__ import annotations

import contextlib
import mmap
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinyserve.kernels.formats import F32, FloatWeight, Int8Weight, U4Weight, Weight

PANEL = 16
PACKING_VERSION = 3  # changes with any layout above: packed weights on disk are then made anew
F32_FORMAT, F16_FORMAT, BF16_FORMAT, INT8_FORMAT, U4_FORMAT = range(5)
BF16X2_FORMAT = 5  # bf16 to a program that multiplies it by activations in two parts
FORMAT_NAMES = ("f32", "f16", "bf16", "int8", "u4")
FORMATS = {"f32": F32_FORMAT, "f16": F16_FORMAT, "bf16": BF16_FORMAT, "int8": INT8_FORMAT}
HUGE_PAGE = 2 << 20


@dataclass(frozen=True)
class PackedWeight:
    """One packed matrix. `data` is uint8, contiguous, 64-byte aligned; `group` is 0 for floats."""

    format: int
    n: int
    k: int
    group: int
    has_min: bool
    f16_scale: bool
    data: NDArray[np.uint8]

    @property
    def nbytes(self) -> int:
        return self.data.nbytes


def aligned_bytes(size: int, *, huge: bool = True) -> NDArray[np.uint8]:
    """Zeroed memory, untouched until used, aligned to 64 bytes.

    From 4 MiB on it is aligned to huge pages, which are asked for with `huge` (for memory that is
    used whole) and declined without (for memory that is used piece by piece).
    """
    if size < 2 * HUGE_PAGE:
        raw = np.zeros(size + 64, dtype=np.uint8)
        start = -raw.ctypes.data % 64
        return raw[start : start + size]
    area = _private(size + HUGE_PAGE)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel built without them
            area.madvise(mmap.MADV_HUGEPAGE if huge else mmap.MADV_NOHUGEPAGE)
    raw = np.frombuffer(area, dtype=np.uint8)
    start = -raw.ctypes.data % HUGE_PAGE
    return raw[start : start + size]


def _private(size: int) -> mmap.mmap:
    """Memory of this process alone: what is shared, Python's default, gets no huge pages."""
    if hasattr(mmap, "MAP_PRIVATE"):
        return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return mmap.mmap(-1, size)


def pack(weight: Weight) -> PackedWeight:
    """Pack one matrix. Integer formats need k to be a multiple of their group."""
    if isinstance(weight, FloatWeight):
        return _pack_float(weight)
    if isinstance(weight, Int8Weight):
        return _pack_groups(weight, INT8_FORMAT, _int8_runs(_panels(weight.q), weight.group))
    return _pack_groups(weight, U4_FORMAT, _u4_runs(_panels(weight.q)))


def interleave_panels(gate: Weight, up: Weight) -> Weight:
    """Rows of gate and up alternating, 16 at a time, so that one task meets both halves of
    silu(gate) * up.
    """
    if isinstance(gate, FloatWeight) and isinstance(up, FloatWeight):
        return FloatWeight(_interleave(gate.data, up.data))
    if isinstance(gate, U4Weight) and isinstance(up, U4Weight):
        return U4Weight(
            _interleave(gate.q, up.q),
            _interleave(gate.scale, up.scale),
            _interleave(gate.minimum, up.minimum),
        )
    assert isinstance(gate, Int8Weight)
    assert isinstance(up, Int8Weight)
    minimum = None
    if gate.minimum is not None or up.minimum is not None:
        minimum = _interleave(_minimum(gate), _minimum(up))
    return Int8Weight(
        _interleave(gate.q, up.q), _interleave(gate.scale, up.scale), minimum, gate.group
    )


def interleave_vector(gate: F32, up: F32) -> F32:
    """The same for a bias."""
    return _interleave(gate[:, None], up[:, None])[:, 0]


def _minimum(weight: Int8Weight) -> F32:
    return np.zeros_like(weight.scale) if weight.minimum is None else weight.minimum


def _interleave(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    pa, pb = _panels(a), _panels(b)
    return np.stack([pa, pb], axis=1).reshape(2 * pa.shape[0] * PANEL, *a.shape[1:])


def _panels(rows: NDArray[Any]) -> NDArray[Any]:
    """[n, ...] -> [panels, 16, ...], padded with zeros."""
    short = -rows.shape[0] % PANEL
    if short:
        rows = np.concatenate([rows, np.zeros((short, *rows.shape[1:]), rows.dtype)])
    return rows.reshape(-1, PANEL, *rows.shape[1:])


def _pack_float(weight: FloatWeight) -> PackedWeight:
    n, k = weight.shape
    panels = _panels(weight.data)
    pair = 2 if weight.dtype == "bf16" else 1
    data = aligned_bytes(panels.nbytes // k * (k + k % pair))
    runs = data.view(panels.dtype).reshape(len(panels), -1, PANEL, pair)
    for i in range(pair):
        runs[:, : len(range(i, k, pair)), :, i] = panels[:, :, i::pair].transpose(0, 2, 1)
    return PackedWeight(FORMATS[weight.dtype], n, k, 0, False, False, data)


def _int8_runs(panels: NDArray[np.int8], group: int) -> NDArray[np.uint8]:
    """[panels, 16, k] -> [panels, groups, bytes]"""
    p, _, k = panels.shape
    runs = panels.reshape(p, PANEL, k // group, group // 2, 2).transpose(0, 2, 3, 1, 4)
    return np.ascontiguousarray(runs).view(np.uint8).reshape(p, k // group, group * PANEL)


def _u4_runs(panels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    p, _, k = panels.shape
    columns = panels.reshape(p, 2, 8, k // 32, 8, 4)  # [panel, half, column, group, run, feature]
    both = columns[:, 0] | (columns[:, 1] << 4)
    return np.ascontiguousarray(both.transpose(0, 2, 3, 1, 4)).reshape(p, k // 32, 256)


def _pack_groups(
    weight: Int8Weight | U4Weight, format_id: int, runs: NDArray[np.uint8]
) -> PackedWeight:
    n, k = weight.shape
    sides = [weight.scale]
    if weight.minimum is not None and not _follows_from_scale(weight):
        sides.append(weight.minimum)
    f16 = all(_exact_in_f16(side) for side in sides)
    dtype = np.float16 if f16 else np.float32
    pieces = [runs]
    for side in sides:
        columns = _panels(side.astype(dtype)).transpose(0, 2, 1)  # [panel, group, 16]
        pieces.append(np.ascontiguousarray(columns).view(np.uint8).reshape(*runs.shape[:2], -1))
    width = sum(piece.shape[2] for piece in pieces)
    data = aligned_bytes(runs.shape[0] * runs.shape[1] * width)
    np.concatenate(pieces, axis=2, out=data.reshape(*runs.shape[:2], width))
    return PackedWeight(format_id, n, k, weight.group, len(sides) == 2, f16, data)


def _follows_from_scale(weight: Int8Weight | U4Weight) -> bool:
    """Are four-bit minima what the kernels take them to be where none are stored?"""
    if not isinstance(weight, U4Weight):
        return False
    expected = weight.scale * np.float32(-8)
    return np.array_equal(expected.view(np.uint32), weight.minimum.view(np.uint32))


def _exact_in_f16(values: F32) -> bool:
    with np.errstate(over="ignore"):
        return bool(np.array_equal(values.astype(np.float16).astype(np.float32), values))
