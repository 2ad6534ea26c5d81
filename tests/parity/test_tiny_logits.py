"""Logits within 1e-4 of transformers' f32, through ragged batches, chunked prefill and decode."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.plans import Sequences, run_schedule
from hf_tiny_models import MODELS, TinyModel
from parity_cases import CACHE, TOLERANCE, Case, Cases, prompts

DECODED = ("llama-mqa-biases", "llama-rope-yarn", "qwen2-windows", "qwen3", "mistral-window")
SCHEDULES = ("whole", "chunks:7", "ragged")


@pytest.fixture(params=MODELS, ids=str)
def case(request: pytest.FixtureRequest, cases: Cases) -> Case:
    return cases[request.param]


def difference(case: Case, backend: str, schedule: str) -> float:
    """The largest difference of any logit from the reference."""
    sequences = Sequences(block_size=CACHE.block_size, num_blocks=CACHE.num_blocks)
    ours = run_schedule(case.runner(backend), sequences, prompts(), schedule)
    return max(float(np.abs(ours[s] - case.logits[s]).max()) for s in case.logits)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_logits_match(case: Case, backend: str, schedule: str) -> None:
    assert difference(case, backend, schedule) < TOLERANCE


@pytest.mark.parametrize("model", [m for m in MODELS if m.name in DECODED], ids=str)
def test_logits_match_token_by_token(cases: Cases, model: TinyModel, backend: str) -> None:
    assert difference(cases[model], backend, "decode") < TOLERANCE
