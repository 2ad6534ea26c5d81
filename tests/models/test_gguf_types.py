"""Every GGUF type means exactly what the format's own library says."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from tinyserve.kernels.formats import FloatWeight, Int8Weight, U4Weight
from tinyserve.kernels.packing import pack
from tinyserve.models.gguf_types import SUPPORTED, type_name

FORMATS = {
    "F32": FloatWeight,
    "F16": FloatWeight,
    "BF16": FloatWeight,
    "Q4_0": U4Weight,
    "Q4_1": U4Weight,
    "Q4_K": U4Weight,
    "Q5_0": Int8Weight,
    "Q5_1": Int8Weight,
    "Q5_K": Int8Weight,
    "Q6_K": Int8Weight,
    "Q8_0": Int8Weight,
}


def random_rows(type_id: int, rng: np.random.Generator, num_rows: int = 8) -> np.ndarray:
    kind = SUPPORTED[type_id]
    row_bytes = kind.block_bytes * (768 // kind.block)
    return rng.integers(0, 256, (num_rows, row_bytes), dtype=np.uint8)


def test_every_listed_type_is_supported() -> None:
    assert {t.name for t in SUPPORTED.values()} == set(FORMATS)


@pytest.mark.parametrize("type_id", SUPPORTED, ids=lambda i: SUPPORTED[i].name)
def test_sizes_are_those_of_the_format(type_id: int) -> None:
    kind = SUPPORTED[type_id]
    assert gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind.name]] == (
        kind.block,
        kind.block_bytes,
    )
    assert int(gguf.GGMLQuantizationType[kind.name]) == type_id


@pytest.mark.parametrize("type_id", SUPPORTED, ids=lambda i: SUPPORTED[i].name)
def test_random_bytes_dequantize_to_the_librarys_values(
    type_id: int, rng: np.random.Generator
) -> None:
    rows = random_rows(type_id, rng)
    with np.errstate(all="ignore"):  # random scales include infinities and NaN
        expected = gguf.quants.dequantize(rows, gguf.GGMLQuantizationType(type_id))
        weight = SUPPORTED[type_id].unpack(rows)
        got = weight.dequantize()
    assert isinstance(weight, FORMATS[SUPPORTED[type_id].name])
    assert weight.shape == expected.shape == (8, 768)
    finite = np.isfinite(expected)
    assert finite.mean() > 0.5
    # Equal values, and equal bits but for the sign of a zero.
    np.testing.assert_array_equal(got[finite], expected[finite])


@pytest.mark.parametrize("name", ["Q4_1", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"])
def test_bits_are_equal_too(name: str, rng: np.random.Generator) -> None:
    kind = gguf.GGMLQuantizationType[name]
    rows = random_rows(int(kind), rng)
    with np.errstate(all="ignore"):
        expected = gguf.quants.dequantize(rows, kind)
        got = SUPPORTED[int(kind)].unpack(rows).dequantize()
    finite = np.isfinite(expected)
    assert (got.view(np.uint32)[finite] == expected.view(np.uint32)[finite]).all()


@pytest.mark.parametrize(
    ("name", "group"), [("Q8_0", 32), ("Q5_0", 32), ("Q5_1", 32), ("Q5_K", 32), ("Q6_K", 16)]
)
def test_groups_of_the_int8_types(name: str, group: int, rng: np.random.Generator) -> None:
    type_id = int(gguf.GGMLQuantizationType[name])
    with np.errstate(all="ignore"):
        weight = SUPPORTED[type_id].unpack(random_rows(type_id, rng))
    assert isinstance(weight, Int8Weight)
    assert weight.group == group
    assert weight.scale.shape == (8, 768 // group)
    assert (weight.minimum is None) == (name in ("Q8_0", "Q5_0", "Q6_K"))


def q4_0_rows(scale: float) -> np.ndarray:
    rows = np.zeros((1, 18), np.uint8)
    rows[0, :2] = np.array([scale], "<f2").view(np.uint8)
    return rows


@pytest.mark.parametrize("scale", [0.01, -8188.0, 9000.0])
def test_q4_0_is_packed_as_small_as_it_is(scale: float) -> None:
    """Eight times a large scale leaves the range of f16: minima are computed in f32, not stored."""
    weight = SUPPORTED[2].unpack(q4_0_rows(scale))
    assert isinstance(weight, U4Weight)
    packed = pack(weight)
    assert packed.f16_scale
    assert packed.nbytes == 16 * 18  # one row, and what fills its panel
    assert weight.minimum[0, 0] == -8 * np.float32(np.float16(scale))


def test_names_of_all_types_match_the_format() -> None:
    for kind in gguf.GGMLQuantizationType:
        assert type_name(int(kind)) == kind.name
    assert type_name(9999) == "number 9999"
