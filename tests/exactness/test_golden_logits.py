"""The bits of each weight format are pinned: they change only together with NUMERICS_VERSION."""

from __future__ import annotations

import pytest
from golden_model import FORMATS, GOLDEN, golden_hash, read_golden
from helpers.native import exact_variants

from tinyserve.kernels.ops import NUMERICS_VERSION

pytestmark = pytest.mark.usefixtures("native_kernels")


@pytest.mark.parametrize("name", FORMATS)
def test_logits_have_their_golden_hash(name: str) -> None:
    """On every instruction set with a fused multiply-add, on any machine, on any threads."""
    known = read_golden().get(str(NUMERICS_VERSION))
    assert known is not None, (
        f"NUMERICS_VERSION {NUMERICS_VERSION} has no golden hashes yet; run golden_model.py, which "
        f"adds them to {GOLDEN.name}"
    )
    for variant in exact_variants():
        for threads in (1, 3):
            assert golden_hash(name, variant, threads) == known[name], (
                f"{variant}: the logits of {name} weights have changed. If that is meant, raise "
                "NUMERICS_VERSION in kernels/ops.py and run golden_model.py"
            )


def test_formats_differ() -> None:
    """A hash that all formats shared would guard nothing."""
    known = read_golden()[str(NUMERICS_VERSION)]
    assert set(known) == set(FORMATS)
    assert len(set(known.values())) == len(FORMATS)
