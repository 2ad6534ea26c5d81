"""What `--quantization` makes of a float matrix: the format, and how many weights share a scale."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from tinyserve.kernels.formats import FloatWeight, Int8Weight, U4Weight, to_bf16
from tinyserve.models import weights
from tinyserve.models.layout import EMBEDDING, LM_HEAD
from tinyserve.models.weights import Conversion


def matrix(features: int, rng: np.random.Generator) -> FloatWeight:
    return FloatWeight(rng.standard_normal((4, features)).astype(np.float32))


@pytest.mark.parametrize(
    ("features", "group"),
    [(576, 192), (1536, 192), (896, 128), (2048, 128), (4864, 128), (320, 64), (96, 32)],
)
def test_int8_shares_a_scale_among_as_many_weights_as_divide_a_row(
    features: int, group: int, rng: np.random.Generator
) -> None:
    packed = Conversion("auto", "int8")("layer", matrix(features, rng))
    assert isinstance(packed, Int8Weight)
    assert packed.group == group


@pytest.mark.parametrize("name", [EMBEDDING, LM_HEAD])
def test_int4_keeps_embedding_and_head_in_int8(name: str, rng: np.random.Generator) -> None:
    convert = Conversion("auto", "int4")
    assert isinstance(convert(name, matrix(576, rng)), Int8Weight)
    assert isinstance(convert("layer", matrix(576, rng)), U4Weight)


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_rows_that_groups_do_not_divide_stay_float(
    quantization: str, rng: np.random.Generator
) -> None:
    odd = matrix(100, rng)
    assert Conversion("auto", quantization)("layer", odd) is odd


@pytest.mark.parametrize("quantization", ["int8", "int4"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.uint16])
def test_some_rows_at_a_time_give_what_all_give(
    quantization: str, dtype: type, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = (rng.standard_normal((37, 96)) * 3).astype(np.float32)
    stored = FloatWeight(to_bf16(values) if dtype is np.uint16 else values.astype(dtype))
    convert = Conversion("auto", quantization)
    whole = convert("layer", stored)
    monkeypatch.setattr(weights, "AT_ONCE", 96 * 5)
    pieces = convert("layer", stored)
    assert type(pieces) is type(whole)
    assert pieces.dequantize().tobytes() == whole.dequantize().tobytes()


def test_quantizing_takes_little_more_memory_than_its_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """MEM-01: what a large embedding needs on the way decides whether a model loads at all."""
    monkeypatch.setattr(weights, "AT_ONCE", 1 << 16)
    embedding = FloatWeight(np.ones((1 << 12, 256), np.float16))
    tracemalloc.start()
    try:
        Conversion("auto", "int8")(EMBEDDING, embedding)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 5 * embedding.data.size
