"""GGML's tensor types: how blocks of bytes become the three plain weight formats.

Every mapping is exact: `unpack(...).dequantize()` gives the bits of `gguf.quants.dequantize`, since
each scale and minimum is the same f32 product and the last multiply-add has the same operands (Q4_0
aside, where 8 x scale is added back; with a scale of f16 both forms are exact, and only the sign of
a zero may differ).

Layouts: block structures of ggml-common.h. K-quants hold 256 weights in a block, the others 32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinyserve.kernels.formats import F32, FloatWeight, Int8Weight, U4Weight, Weight

U8 = NDArray[np.uint8]

_Q4_0 = np.dtype([("d", "<f2"), ("q", "u1", 16)])
_Q4_1 = np.dtype([("d", "<f2"), ("m", "<f2"), ("q", "u1", 16)])
_Q5_0 = np.dtype([("d", "<f2"), ("high", "u1", 4), ("q", "u1", 16)])
_Q5_1 = np.dtype([("d", "<f2"), ("m", "<f2"), ("high", "u1", 4), ("q", "u1", 16)])
_Q8_0 = np.dtype([("d", "<f2"), ("q", "i1", 32)])
_Q4_K = np.dtype([("d", "<f2"), ("m", "<f2"), ("scales", "u1", 12), ("q", "u1", 128)])
_Q5_K = np.dtype(
    [("d", "<f2"), ("m", "<f2"), ("scales", "u1", 12), ("high", "u1", 32), ("q", "u1", 128)]
)
_Q6_K = np.dtype([("q", "u1", 128), ("high", "u1", 64), ("scales", "i1", 16), ("d", "<f2")])


@dataclass(frozen=True)
class GGMLType:
    """A supported type."""

    name: str
    block: int  # weights in a block
    block_bytes: int
    unpack: Callable[[U8], Weight]  # takes rows [n, row_bytes]


def unpack_floats(dtype: str) -> Callable[[U8], FloatWeight]:
    """What unpacks a plain float type; bf16 is held as uint16."""
    return lambda rows: FloatWeight(rows.view(dtype))


def unpack_q8_0(rows: U8) -> Int8Weight:
    blocks = rows.view(_Q8_0)  # [n, k / 32]
    return Int8Weight(_flat(np.ascontiguousarray(blocks["q"])), _f32(blocks["d"]), None, 32)


def unpack_q4_0(rows: U8) -> U4Weight:
    blocks = rows.view(_Q4_0)
    scale = _f32(blocks["d"])
    return U4Weight(_flat(_nibbles(blocks["q"])), scale, scale * np.float32(-8.0))


def unpack_q4_1(rows: U8) -> U4Weight:
    blocks = rows.view(_Q4_1)
    q = _flat(_nibbles(blocks["q"]))
    return U4Weight(q, _f32(blocks["d"]), _f32(blocks["m"]))


def unpack_q5_0(rows: U8) -> Int8Weight:
    blocks = rows.view(_Q5_0)
    q = _fifth_bit(_nibbles(blocks["q"]), blocks["high"])
    q -= 16
    return Int8Weight(_flat(q), _f32(blocks["d"]), None, 32)


def unpack_q5_1(rows: U8) -> Int8Weight:
    blocks = rows.view(_Q5_1)
    q = _fifth_bit(_nibbles(blocks["q"]), blocks["high"])
    return Int8Weight(_flat(q), _f32(blocks["d"]), _f32(blocks["m"]), 32)


def unpack_q4_k(rows: U8) -> U4Weight:
    blocks = rows.view(_Q4_K)  # [n, k / 256]
    scale, minimum = _k_scales(blocks)
    q = _nibbles(_split(blocks["q"], 4))  # four chunks: 32 low nibbles, then the 32 high ones
    return U4Weight(_flat(q), scale, minimum)


def unpack_q5_k(rows: U8) -> Int8Weight:
    blocks = rows.view(_Q5_K)
    scale, minimum = _k_scales(blocks)
    q = _nibbles(_split(blocks["q"], 4))  # [n, b, 4, 64]
    q = q.reshape(*q.shape[:2], 8, 32)
    for group in range(8):  # bit g of high[i] belongs to weight i of group g
        q[:, :, group] |= ((blocks["high"] >> group) & 1) << 4
    return Int8Weight(_flat(q).view(np.int8), scale, minimum, 32)


def unpack_q6_k(rows: U8) -> Int8Weight:
    blocks = rows.view(_Q6_K)
    low = _nibbles(_split(blocks["q"], 2))  # [n, b, 2, 128]: per half, 64 low nibbles, 64 high ones
    q = low.reshape(*low.shape[:3], 4, 32)
    high = _split(blocks["high"], 2)  # [n, b, 2, 32]
    for quarter in range(4):  # two bits a weight, one pair for each quarter of a half
        q[:, :, :, quarter] |= ((high >> (2 * quarter)) & 3) << 4
    signed = _flat(q).view(np.int8)
    signed -= 32
    scale = _f32(blocks["d"])[:, :, None] * blocks["scales"].astype(np.float32)
    return Int8Weight(signed, _flat(scale), None, 16)


def _k_scales(blocks: NDArray[Any]) -> tuple[F32, F32]:
    """f32 scales and minima `[n, k / 32]` of K-quants, from six-bit fields in twelve bytes."""
    packed = blocks["scales"]
    first, second, third = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    scale = np.concatenate([first & 63, (third & 15) | ((first >> 2) & 48)], axis=-1)
    minimum = np.concatenate([second & 63, (third >> 4) | ((second >> 2) & 48)], axis=-1)
    d, m = _f32(blocks["d"])[..., None], _f32(blocks["m"])[..., None]
    return _flat(d * scale.astype(np.float32)), _flat(-(m * minimum.astype(np.float32)))


def _nibbles(packed: U8) -> U8:
    """`[..., h]` bytes to `[..., 2h]` values: all low nibbles, then all high ones."""
    out = np.empty((*packed.shape[:-1], 2, packed.shape[-1]), np.uint8)
    np.bitwise_and(packed, 15, out=out[..., 0, :])
    np.right_shift(packed, 4, out=out[..., 1, :])
    return out.reshape(*packed.shape[:-1], 2 * packed.shape[-1])


def _fifth_bit(q: U8, high: U8) -> NDArray[np.int8]:
    """Bit i of a block's 32-bit word `high` (as four bytes) becomes bit 4 of weight i."""
    bits = np.unpackbits(high, axis=-1, bitorder="little")
    bits <<= 4
    bits |= q
    return bits.view(np.int8)


def _split(array: U8, parts: int) -> U8:
    return array.reshape(*array.shape[:-1], parts, -1)


def _flat(array: NDArray[Any]) -> NDArray[Any]:
    return array.reshape(array.shape[0], -1)


def _f32(array: NDArray[Any]) -> F32:
    return array.astype(np.float32)


SUPPORTED: dict[int, GGMLType] = {
    0: GGMLType("F32", 1, 4, unpack_floats("<f4")),
    1: GGMLType("F16", 1, 2, unpack_floats("<f2")),
    30: GGMLType("BF16", 1, 2, unpack_floats("<u2")),
    2: GGMLType("Q4_0", 32, _Q4_0.itemsize, unpack_q4_0),
    3: GGMLType("Q4_1", 32, _Q4_1.itemsize, unpack_q4_1),
    6: GGMLType("Q5_0", 32, _Q5_0.itemsize, unpack_q5_0),
    7: GGMLType("Q5_1", 32, _Q5_1.itemsize, unpack_q5_1),
    8: GGMLType("Q8_0", 32, _Q8_0.itemsize, unpack_q8_0),
    12: GGMLType("Q4_K", 256, _Q4_K.itemsize, unpack_q4_k),
    13: GGMLType("Q5_K", 256, _Q5_K.itemsize, unpack_q5_k),
    14: GGMLType("Q6_K", 256, _Q6_K.itemsize, unpack_q6_k),
}

_OTHER_NAMES = {
    9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS",
    19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16",
    26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4",
    40: "NVFP4", 41: "Q1_0",
}  # fmt: skip


def type_name(type_id: int) -> str:
    """GGML's name of a type, supported or not."""
    if type_id in SUPPORTED:
        return SUPPORTED[type_id].name
    return _OTHER_NAMES.get(type_id, f"number {type_id}")
