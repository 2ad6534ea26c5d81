"""Powers, logarithms, sines and cosines: right, and the same bits on every machine."""

from __future__ import annotations

import hashlib
import math
from decimal import Context, Decimal

import numpy as np
import pytest

from tinyserve.models.config import RopeConfig
from tinyserve.models.exact_math import MAX_ANGLE, cos_sin, log, power
from tinyserve.models.rope import rope_table

# As on AVX2 and on NEON (emulated): the tables of Llama 3's and Qwen 3's sizes.
GOLDEN = {
    (5e5, 32768): "7ca0cb1937e91c4518597076733fc953298078ddf7150ce5e2c21fc81dd4f9c2",
    (1e6, 40960): "27cc255cca3e621b742eb481cf384507f9b40fbb58dd96b924acd9665edad773",
}


@pytest.mark.parametrize(("theta", "length"), GOLDEN)
def test_rotary_tables_have_their_golden_hash(theta: float, length: int) -> None:
    """numpy's own cos, sin and power differ with AVX-512 here; hashes are of little-endian f32."""
    tables = rope_table(RopeConfig(theta=theta), 128, length)
    digest = hashlib.sha256(b"".join(table.astype("<f4").tobytes() for table in tables))
    assert digest.hexdigest() == GOLDEN[theta, length]


@pytest.mark.parametrize("base", [10000.0, 1e6, 1.5, 0.3])
@pytest.mark.parametrize("exponent", [0.0, 1 / 64, 0.984375, 1.0, 3.5])
def test_powers_are_rounded_once(base: float, exponent: float) -> None:
    exact = Context(prec=80).power(Decimal(base), Decimal(exponent))
    error = abs(Decimal(power(base, exponent)) - exact)
    assert error <= Decimal(math.ulp(float(exact))) / 2
    assert power(base, exponent) == pytest.approx(base**exponent, rel=1e-15)


@pytest.mark.parametrize("x", [1e-300, 0.5, 1.0, math.e, 40.0, 1e300])
def test_logarithms_are_rounded_once(x: float) -> None:
    exact = Context(prec=80).ln(Decimal(x))
    assert abs(Decimal(log(x)) - exact) <= Decimal(math.ulp(float(exact))) / 2


@pytest.mark.parametrize("x", [0.0, -1.0, math.inf, math.nan])
def test_what_has_no_logarithm_is_an_error(x: float) -> None:
    with pytest.raises(ValueError, match="no logarithm"):
        log(x)


@pytest.mark.parametrize(
    ("base", "exponent"), [(0.0, 0.0), (-2.0, 0.5), (1e300, 2.0), (0.0, -1.0), (math.nan, 1.0)]
)
def test_what_has_no_finite_power_is_an_error(base: float, exponent: float) -> None:
    with pytest.raises(ArithmeticError):
        power(base, exponent)


def test_cosines_and_sines_are_right_in_every_quarter() -> None:
    quarters = np.arange(-9, 10) * (math.pi / 2)
    near = (quarters[:, None] + np.array([-0.7853, -1e-9, 0.0, 1e-9, 0.3, 0.7853])).ravel()
    angles = np.concatenate([near, np.linspace(-MAX_ANGLE, MAX_ANGLE, 40_001)])
    cos, sin = cos_sin(angles)
    np.testing.assert_allclose(cos, [math.cos(angle) for angle in angles], rtol=0, atol=3e-16)
    np.testing.assert_allclose(sin, [math.sin(angle) for angle in angles], rtol=0, atol=3e-16)
    assert (cos_sin(np.zeros((2, 3)))[0] == 1.0).all()
    assert cos_sin(np.zeros((2, 3)))[1].shape == (2, 3)


@pytest.mark.parametrize("angle", [2 * MAX_ANGLE, math.inf, math.nan])
def test_angles_out_of_reach_are_an_error(angle: float) -> None:
    with pytest.raises(ValueError, match="angles beyond"):
        cos_sin(np.array([0.0, angle]))
