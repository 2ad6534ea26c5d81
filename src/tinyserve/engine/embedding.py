"""From a pooled hidden state to what users get: unit length, unless they want it as it is."""

from __future__ import annotations

import math

import numpy as np

from tinyserve.kernels.formats import F32


def unit(vector: F32) -> F32:
    """`vector` at length 1 (a zero vector stays zero). The sum of squares is exact before it is
    rounded, so that no library's order of addition shows.
    """
    wide = vector.astype(np.float64)
    length = math.sqrt(math.fsum((wide * wide).tolist()))
    return (wide / length).astype(np.float32) if length else vector
