"""Weight matrices as loaders hand them over: three plain formats that hold every checkpoint type
exactly.

All are row-major `[n, k]` (`n` output features, `k` input features) and know nothing of how a back
end packs them. `dequantize()` is the definition of what each one means.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]


@dataclass(frozen=True)
class FloatWeight:
    """f32, f16, or bf16 (stored as uint16 bit patterns) weights, `[n, k]`."""

    data: NDArray[np.float32] | NDArray[np.float16] | NDArray[np.uint16]

    @property
    def shape(self) -> tuple[int, int]:
        return self.data.shape[0], self.data.shape[1]

    @property
    def dtype(self) -> str:
        """f32 | f16 | bf16"""
        return {"float32": "f32", "float16": "f16", "uint16": "bf16"}[self.data.dtype.name]

    def dequantize(self) -> F32:
        return widen(self.data)


@dataclass(frozen=True)
class Int8Weight:
    """`w[n, k] = q[n, k] * scale[n, k // group] + minimum[n, k // group]`, q in -128..127.

    `minimum` is None where it is zero everywhere. `group` is 16, 32, ... up to 512 and divides k.
    """

    q: NDArray[np.int8]
    scale: F32
    minimum: F32 | None
    group: int

    @property
    def shape(self) -> tuple[int, int]:
        return self.q.shape[0], self.q.shape[1]

    def dequantize(self) -> F32:
        return _dequantize(self.q, self.scale, self.minimum, self.group)


@dataclass(frozen=True)
class U4Weight:
    """`w[n, k] = q[n, k] * scale[n, k // 32] + minimum[n, k // 32]`, q in 0..15, one nibble a byte
    here.
    """

    q: NDArray[np.uint8]
    scale: F32
    minimum: F32
    group: ClassVar[int] = 32

    @property
    def shape(self) -> tuple[int, int]:
        return self.q.shape[0], self.q.shape[1]

    def dequantize(self) -> F32:
        return _dequantize(self.q, self.scale, self.minimum, self.group)

    def to_int8(self) -> Int8Weight:
        """The same values in the int8 format (exact: 0..15 fits)."""
        return Int8Weight(self.q.astype(np.int8), self.scale, self.minimum, self.group)


Weight = FloatWeight | Int8Weight | U4Weight


def widen(data: np.ndarray) -> F32:
    """f32 from f32, f16, or bf16 bit patterns (uint16)."""
    if data.dtype == np.uint16:
        return (data.astype(np.uint32) << 16).view(np.float32)
    return np.ascontiguousarray(data, dtype=np.float32)


def to_bf16(data: F32) -> NDArray[np.uint16]:
    """Round to nearest even to bf16 bit patterns."""
    bits = np.ascontiguousarray(data, dtype=np.float32).view(np.uint32)
    rounded = bits + 0x7FFF + ((bits >> 16) & 1)
    out = (rounded >> 16).astype(np.uint16)
    out[np.isnan(data)] = 0x7FC0
    return out


def quantize_int8(weight: F32, group: int = 32) -> Int8Weight:
    """Symmetric int8 per group: scale = max|w| / 127."""
    n, k = weight.shape
    grouped = weight.reshape(n, k // group, group)
    scale = (np.abs(grouped).max(axis=2) / 127.0).astype(np.float32)
    inverse = np.divide(1.0, scale, out=np.zeros_like(scale), where=scale > 0)
    q = np.rint(grouped * inverse[:, :, None]).clip(-127, 127).astype(np.int8)
    return Int8Weight(q.reshape(n, k), scale, None, group)


def quantize_int4(weight: F32) -> U4Weight:
    """Asymmetric four bits per group of 32, scale and minimum rounded to f16."""
    n, k = weight.shape
    grouped = weight.reshape(n, k // 32, 32)
    low = np.minimum(grouped.min(axis=2), 0.0).astype(np.float16).astype(np.float32)
    high = np.maximum(grouped.max(axis=2), 0.0)
    scale = ((high - low) / 15.0).astype(np.float16).astype(np.float32)
    inverse = np.divide(1.0, scale, out=np.zeros_like(scale), where=scale > 0)
    q = np.rint((grouped - low[:, :, None]) * inverse[:, :, None]).clip(0, 15).astype(np.uint8)
    return U4Weight(q.reshape(n, k), scale, low)


def concat_rows(parts: Sequence[Weight]) -> Weight | None:
    """One weight with the rows of all parts, or None where their formats differ."""
    first = parts[0]
    if isinstance(first, FloatWeight):
        if all(isinstance(p, FloatWeight) and p.dtype == first.dtype for p in parts):
            return FloatWeight(np.concatenate([p.data for p in parts]))  # type: ignore[union-attr]
        return None
    if isinstance(first, U4Weight):
        u4 = [p for p in parts if isinstance(p, U4Weight)]
        if len(u4) != len(parts):
            return None
        return U4Weight(
            np.concatenate([p.q for p in u4]),
            np.concatenate([p.scale for p in u4]),
            np.concatenate([p.minimum for p in u4]),
        )
    int8 = [p for p in parts if isinstance(p, Int8Weight) and p.group == first.group]
    if len(int8) != len(parts):
        return None
    minimum = None
    if any(p.minimum is not None for p in int8):
        minimum = np.concatenate(
            [np.zeros_like(p.scale) if p.minimum is None else p.minimum for p in int8]
        )
    return Int8Weight(
        np.concatenate([p.q for p in int8]),
        np.concatenate([p.scale for p in int8]),
        minimum,
        first.group,
    )


def _dequantize(q: np.ndarray, scale: F32, minimum: F32 | None, group: int) -> F32:
    n, k = q.shape
    out = q.reshape(n, k // group, group).astype(np.float32) * scale[:, :, None]
    if minimum is not None:
        out += minimum[:, :, None]
    return out.reshape(n, k)
