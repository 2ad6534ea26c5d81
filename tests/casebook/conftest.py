"""Servers over the synthetic model, which really computes: one with room, one with hardly any."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from casebook_servers import serve_synthetic
from helpers.live_server import Live


@pytest.fixture(scope="package")
def roomy() -> Iterator[Live]:
    with serve_synthetic(cache={"num_blocks": 512}) as served:
        yield served


@pytest.fixture(scope="package")
def tight() -> Iterator[Live]:
    """Requests preempt each other, by swapping and by recomputing; drafts are verified."""
    with serve_synthetic(
        cache={"num_blocks": 48, "block_size": 4, "num_swap_blocks": 12},
        scheduler={"max_num_seqs": 8, "max_num_batched_tokens": 24, "max_model_len": 192},
        spec={"enabled": True, "adaptive": False, "prompt_lookup_min": 1},
    ) as served:
        yield served
