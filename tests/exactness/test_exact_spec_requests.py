"""Hundreds of mixed requests with drafts through a pool far too small, each as if it ran alone
without any: from the configuration to the text, stop strings, priorities, preemption and all.

SPEC-01, SPEC-02, SPEC-04, SPEC-05, SPEC-07, SPEC-08, PFX-07.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from serving import differences, serve
from test_exact_requests import make_requests, roomy, tight

from tinyserve.engine.request import EngineStats

pytestmark = pytest.mark.usefixtures("native_kernels")


def check(
    model: dict[str, Any], spec: dict[str, Any], *, count: int, longest: int, num_blocks: int
) -> EngineStats:
    """Serve `count` requests together in the tight pool, and each alone in the roomy one."""
    engine = tight(model, num_blocks, num_blocks, "priority", spec=spec)
    truth_engine = roomy(model)
    requests = make_requests(engine, count, longest, random.Random(6))
    again = make_requests(engine, count, longest, random.Random(6))
    for request in requests[::10]:
        request.speculative = False
    results = serve(engine.core, requests, random.Random(6))
    truth = {}
    for request in again:
        truth.update(serve(truth_engine.core, [request]))
    assert differences(results, truth) == []
    stats = engine.core.stats()
    assert stats.num_free_blocks + stats.num_cached_blocks == stats.num_total_blocks
    assert stats.num_preemptions_swap + stats.num_preemptions_recompute > 40
    assert stats.num_preemptions_recompute > 0
    assert stats.num_accepted_tokens > 0
    return stats


@pytest.mark.parametrize(
    "spec",
    [
        {"method": "ngram", "adaptive": False, "prompt_lookup_min": 1},
        {"method": "suffix", "adaptive": True},
        {"draft_model": "synthetic", "adaptive": False, "num_speculative_tokens": 3},
    ],
    ids=["ngram", "suffix", "draft_model"],
)
def test_two_hundred_requests_with_drafts_in_a_tiny_pool(spec: dict[str, Any]) -> None:
    model = {"name": "synthetic", "quantization": "int4", "kv_cache_dtype": "int8"}
    check(model, spec, count=210, longest=80, num_blocks=80)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "spec",
    [
        {"method": "ngram", "adaptive": False},
        {"method": "suffix", "adaptive": False, "num_speculative_tokens": 8},
        {"draft_model": "default", "adaptive": False},
    ],
    ids=["ngram", "suffix", "draft_model"],
)
def test_the_default_model_with_drafts_in_a_tiny_pool(spec: dict[str, Any]) -> None:
    stats = check({"name": "default"}, spec, count=220, longest=40, num_blocks=40)
    if "draft_model" in spec:
        assert stats.num_accepted_tokens > 0.9 * stats.num_draft_tokens
