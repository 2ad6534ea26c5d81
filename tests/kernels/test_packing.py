"""Packed weights: the documented layout, read byte by byte, gives the weight back."""

from __future__ import annotations

import mmap

import numpy as np
import pytest
from kernel_tools import FORMATS, make_weight, same_bits

from tinyserve.kernels.formats import F32, Int8Weight, U4Weight
from tinyserve.kernels.packing import (
    BF16_FORMAT,
    F16_FORMAT,
    F32_FORMAT,
    U4_FORMAT,
    PackedWeight,
    aligned_bytes,
    interleave_panels,
    interleave_vector,
    pack,
)


def unpack(packed: PackedWeight) -> F32:
    """[panels * 16, k] f32, by the words of packing.py's docstring and nothing faster."""
    panels = -(-packed.n // 16)
    if packed.format in (F32_FORMAT, F16_FORMAT, BF16_FORMAT):
        dtype = {F32_FORMAT: np.float32, F16_FORMAT: np.float16, BF16_FORMAT: np.uint16}
        values = packed.data.view(dtype[packed.format])
        if packed.format == BF16_FORMAT:
            pairs = values.reshape(panels, -1, 16, 2).transpose(0, 1, 3, 2)
            values = (pairs.astype(np.uint32) << 16).view(np.float32).reshape(panels, -1, 16)
        values = values.reshape(panels, -1, 16)[:, : packed.k]
        return values.transpose(0, 2, 1).reshape(panels * 16, packed.k).astype(np.float32)
    return np.concatenate([_unpack_panel(packed, panel) for panel in range(panels)])


def _unpack_panel(packed: PackedWeight, panel: int) -> F32:
    group, out = packed.group, np.zeros((16, packed.k), np.float32)
    size = packed.data.nbytes // -(-packed.n // 16)
    data = packed.data[panel * size : (panel + 1) * size]
    per_group = size // (packed.k // group)
    side = np.dtype(np.float16 if packed.f16_scale else np.float32)
    for g in range(packed.k // group):
        chunk = data[g * per_group : (g + 1) * per_group]
        num_values = group * 8 if packed.format == U4_FORMAT else group * 16
        sides = chunk[num_values:].view(side).astype(np.float32).reshape(-1, 16)
        assert len(sides) == 1 + packed.has_min
        for i in range(group):
            for column in range(16):
                if packed.format == U4_FORMAT:
                    byte = chunk[32 * (i // 4) + 4 * (column % 8) + i % 4]
                    q = np.float32(byte >> 4 if column >= 8 else byte & 15)
                else:
                    q = np.float32(chunk.view(np.int8)[32 * (i // 2) + 2 * column + i % 2])
                implied = sides[0, column] * np.float32(-8 if packed.format == U4_FORMAT else 0)
                low = sides[1, column] if packed.has_min else implied
                out[column, g * group + i] = q * sides[0, column] + low
    return out


@pytest.mark.parametrize("n", [16, 21])
@pytest.mark.parametrize("kind", [kind for kind in FORMATS if kind != "int8:512"])
def test_packed_bytes_hold_the_weight(kind: str, n: int, rng: np.random.Generator) -> None:
    weight = make_weight(kind, n, 128, rng)
    packed = pack(weight)
    values = unpack(packed)
    assert same_bits(values[:n], weight.dequantize())
    assert not values[n:].any(), "padding is not zero"
    assert packed.data.ctypes.data % 64 == 0
    assert packed.nbytes == packed.data.nbytes


def test_scales_are_f16_only_where_that_is_exact(rng: np.random.Generator) -> None:
    """Decided by the values, whatever the loader claims; too large for f16 is inexact too."""
    assert pack(make_weight("u4", 16, 64, rng)).f16_scale
    assert not pack(make_weight("u4:f32", 16, 64, rng)).f16_scale
    weight = make_weight("int8:32", 16, 64, rng)
    assert isinstance(weight, Int8Weight)
    large = Int8Weight(weight.q, weight.scale * np.float32(2**23), None, 32)
    assert not pack(large).f16_scale
    u4 = make_weight("u4", 16, 64, rng)
    assert isinstance(u4, U4Weight)
    inexact_minimum = U4Weight(u4.q, u4.scale, u4.minimum * np.float32(1.0001))
    assert not pack(inexact_minimum).f16_scale


def test_minima_that_follow_from_the_scales_are_not_stored(rng: np.random.Generator) -> None:
    """Q4_0's: 18 bytes a group and column, as in the file."""
    weight = make_weight("u4", 16, 64, rng)
    assert isinstance(weight, U4Weight)
    assert pack(weight).nbytes == 16 * 2 * 18
    weight.minimum[3, 1] += np.float32(1)
    packed = pack(weight)
    assert packed.has_min
    assert same_bits(unpack(packed), weight.dequantize())


@pytest.mark.parametrize("n", [16, 24])
def test_gate_and_up_alternate(n: int, rng: np.random.Generator) -> None:
    gate, up = (make_weight("u4", n, 64, rng) for _ in range(2))
    both = interleave_panels(gate, up).dequantize().reshape(-1, 2, 16, 64)
    assert same_bits(both[:, 0].reshape(-1, 64)[:n], gate.dequantize())
    assert same_bits(both[:, 1].reshape(-1, 64)[:n], up.dequantize())
    vector = interleave_vector(np.arange(n, dtype=np.float32), np.ones(n, np.float32))
    assert same_bits(
        vector.reshape(-1, 2, 16)[:, 0].reshape(-1)[:n], np.arange(n, dtype=np.float32)
    )


@pytest.mark.parametrize("size", [0, 1, 100, 4 << 20, (4 << 20) + 5])
@pytest.mark.parametrize("huge", [False, True])
def test_memory_is_aligned_zeroed_and_of_its_size(size: int, huge: bool) -> None:
    memory = aligned_bytes(size, huge=huge)
    assert memory.nbytes == size
    if size:
        assert memory.ctypes.data % (64 if size < 4 << 20 else 2 << 20) == 0
    assert not memory[:4096].any()
    memory[-1:] = 1


def test_a_kernel_without_huge_pages_is_asked_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mmap, "MADV_HUGEPAGE", 12345, raising=False)  # EINVAL
    memory = aligned_bytes(4 << 20)
    assert memory.nbytes == 4 << 20
    assert memory.ctypes.data % (2 << 20) == 0
