"""A recorded program has room for so many rows and no more."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_tools import bind, rows_batch

from tinyserve.kernels.native import NativeBackend


def test_a_step_that_is_too_large_is_a_bug_of_ours(native: NativeBackend) -> None:
    """It fails before anything is overwritten."""
    x = np.ones((4, 16), np.float32)
    run = bind(native, lambda ops, a: ops.rms_norm(a, x[0], 1e-5), x)
    run(rows_batch(4))
    with pytest.raises(AssertionError, match="more rows"):
        run(rows_batch(5))


def test_a_step_without_rows(native: NativeBackend) -> None:
    x = np.ones((4, 16), np.float32)
    run = bind(native, lambda ops, a: ops.rms_norm(a, x[0], 1e-5), x)
    assert run(rows_batch(0)).shape == (0, 16)
