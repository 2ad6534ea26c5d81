"""Powers, logarithms, sines and cosines that are the same on every machine.

The C library's, and numpy's for some instruction sets, differ in the last bit from one machine to
another. What is here is made of IEEE 754's basic operations, which do not, and of `decimal`.
"""

from __future__ import annotations

import math
from decimal import Context, Decimal

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]

MAX_ANGLE = 2.0**23  # radians; beyond, the reduction would not be exact

_DIGITS = Context(prec=40)
# pi / 2 in three parts: 2^23 times one of the first two, of 30 bits each, is exact in float64.
_HALF_PI = (843314856 / 2.0**29, 571903011 / 2.0**59, 5.170182981794105e-19)
_CHUNK = 1 << 14  # angles at a time, which stay in the processor's cache
# Taylor's series up to pi / 4: what is left out is below 1e-16.
_SIN = [(-1) ** i / math.factorial(2 * i + 1) for i in range(8)]
_COS = [(-1) ** i / math.factorial(2 * i) for i in range(9)]


def power(base: float, exponent: float) -> float:
    """base ** exponent, rounded once. Raises ArithmeticError where that is no finite number."""
    result = float(_DIGITS.power(Decimal(base), Decimal(exponent)))
    if not math.isfinite(result):
        raise OverflowError(f"{base} ** {exponent} is too large")
    return result


def log(x: float) -> float:
    """The natural logarithm, rounded once. Raises ValueError where x is not positive and finite."""
    if not 0 < x < math.inf:
        raise ValueError(f"no logarithm of {x}")
    return float(_DIGITS.ln(Decimal(x)))


def cos_sin(angles: F64) -> tuple[F64, F64]:
    """Cosines and sines, good to about 1e-16. Raises ValueError beyond MAX_ANGLE."""
    if not (np.abs(angles) <= MAX_ANGLE).all():
        raise ValueError(f"angles beyond {MAX_ANGLE:.0f} radians")
    cos, sin = np.empty(angles.size), np.empty(angles.size)
    flat = angles.reshape(-1)
    for start in range(0, angles.size, _CHUNK):
        part = slice(start, start + _CHUNK)
        cos[part], sin[part] = _cos_sin(flat[part])
    return cos.reshape(angles.shape), sin.reshape(angles.shape)


def _cos_sin(angles: F64) -> tuple[F64, F64]:
    turns = np.rint(angles * (2 / math.pi))  # quarters
    rest = angles
    for part in _HALF_PI:
        rest = rest - turns * part
    square = rest * rest
    cos, sin = _polynomial(_COS, square), rest * _polynomial(_SIN, square)
    quarter = turns.astype(np.int32)
    is_odd = (quarter & 1).astype(bool)
    return (
        np.where(is_odd, sin, cos) * (1 - (quarter + 1 & 2)),
        np.where(is_odd, cos, sin) * (1 - (quarter & 2)),
    )


def _polynomial(coefficients: list[float], x: F64) -> F64:
    total = np.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total *= x
        total += coefficient
    return total
