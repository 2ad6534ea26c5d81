"""Weight formats: conversions, quantization, and joining rows without changing a value."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_tools import FORMATS, make_weight, same_bits

from tinyserve.kernels.formats import (
    FloatWeight,
    U4Weight,
    Weight,
    concat_rows,
    quantize_int4,
    quantize_int8,
    to_bf16,
    widen,
)


def test_bf16_round_trip() -> None:
    patterns = np.arange(65536, dtype=np.uint32).astype(np.uint16)
    wide = widen(patterns)
    back = to_bf16(wide)
    numbers = ~np.isnan(wide)
    assert same_bits(back[numbers], patterns[numbers])
    assert np.isnan(widen(back[~numbers])).all()


def test_dequantize_is_scale_times_q_plus_minimum() -> None:
    q = np.arange(64, dtype=np.uint8).reshape(1, 64) % 16
    scale, minimum = np.array([[0.5, 2.0]], np.float32), np.array([[-4.0, 1.0]], np.float32)
    want = np.concatenate([q[0, :32] * 0.5 - 4, q[0, 32:] * 2.0 + 1])
    assert U4Weight(q, scale, minimum).dequantize()[0].tolist() == want.tolist()


@pytest.mark.parametrize("group", [16, 32, 128])
def test_int8_is_within_half_a_step(group: int, rng: np.random.Generator) -> None:
    weight = rng.standard_normal((9, 256)).astype(np.float32)
    weight[0, :group] = 0
    packed = quantize_int8(weight, group)
    step = np.repeat(packed.scale, group, axis=1)
    assert (np.abs(packed.dequantize() - weight) <= step * 0.5001).all()
    assert (packed.q[0, :group] == 0).all()


def test_int4_is_within_half_a_step(rng: np.random.Generator) -> None:
    weight = rng.standard_normal((9, 256)).astype(np.float32)
    weight[0, :32] = 0
    weight[1, :32] = np.abs(weight[1, :32]) + 3  # all of one sign: zero stays representable
    packed = quantize_int4(weight)
    step = np.repeat(packed.scale, 32, axis=1)
    rounding = np.abs(weight).max() * 2.0**-10  # scale and minimum are rounded to f16
    assert (np.abs(packed.dequantize() - weight) <= step * 0.5 + rounding).all()
    assert (packed.dequantize()[0, :32] == 0).all()
    assert packed.q.max() <= 15
    for side in (packed.scale, packed.minimum):
        assert same_bits(side.astype(np.float16).astype(np.float32), side)


@pytest.mark.parametrize("kind", [kind for kind in FORMATS if kind.startswith("u4")])
def test_four_bits_as_int8_are_the_same_values(kind: str, rng: np.random.Generator) -> None:
    weight = make_weight(kind, 20, 64, rng)
    assert isinstance(weight, U4Weight)
    assert same_bits(weight.to_int8().dequantize(), weight.dequantize())


JOINED = [
    *((kind, kind) for kind in FORMATS),
    *(("int8:32", "int8:32:min"), ("int8:32:min", "int8:32"), ("u4", "u4:f32")),
]


@pytest.mark.parametrize("kinds", JOINED, ids=",".join)
def test_joined_rows_keep_their_values(kinds: tuple[str, str], rng: np.random.Generator) -> None:
    parts: list[Weight] = [make_weight(kind, 20, 512, rng) for kind in kinds]
    joined = concat_rows(parts)
    assert joined is not None
    assert same_bits(joined.dequantize(), np.concatenate([part.dequantize() for part in parts]))


@pytest.mark.parametrize(
    "kinds",
    [("f32", "f16"), ("bf16", "u4"), ("u4", "int8:32"), ("int8:32", "int8:16")],
    ids=",".join,
)
def test_different_formats_do_not_join(kinds: tuple[str, str], rng: np.random.Generator) -> None:
    assert concat_rows([make_weight(kind, 16, 64, rng) for kind in kinds]) is None


def test_float_dtypes() -> None:
    data = np.zeros((2, 3))
    assert FloatWeight(data.astype(np.float32)).dtype == "f32"
    assert FloatWeight(data.astype(np.float16)).dtype == "f16"
    assert FloatWeight(data.astype(np.uint16)).dtype == "bf16"
