"""What `--quantization` makes of a float matrix: the format, and how many weights share a scale."""

from __future__ import annotations

import numpy as np
import pytest

from tinyserve.kernels.formats import FloatWeight, Int8Weight, U4Weight
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
