"""Logits within 1e-4 of transformers' f32, through ragged batches, chunked prefill and decode."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.plans import Sequences, run_schedule
from hf_tiny_models import MODELS, TinyModel
from parity_cases import CACHE, TOLERANCE, Case, Cases, prompts

# What a schedule could break: attention over chunks, windows, norms, biases, long positions.
MOST_DIFFERENT = [
    model
    for model in MODELS
    if model.name
    in ("llama-mqa-biases", "llama-rope-yarn", "qwen2-windows", "qwen3", "mistral-window")
]


def difference(case: Case, backend: str, schedule: str) -> float:
    """The largest difference of any logit from the reference."""
    sequences = Sequences(block_size=CACHE.block_size, num_blocks=CACHE.num_blocks)
    ours = run_schedule(case.runner(backend), sequences, prompts(), schedule)
    return max(float(np.abs(ours[s] - case.logits[s]).max()) for s in case.logits)


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_logits_match(cases: Cases, model: TinyModel, backend: str) -> None:
    assert difference(cases[model], backend, "ragged") < TOLERANCE


@pytest.mark.parametrize("schedule", ["whole", "chunks:7", "decode"])
@pytest.mark.parametrize("model", MOST_DIFFERENT, ids=str)
def test_logits_match_in_every_schedule(
    cases: Cases, model: TinyModel, backend: str, schedule: str
) -> None:
    assert difference(cases[model], backend, schedule) < TOLERANCE


def test_most_different_are_all_there() -> None:
    assert len(MOST_DIFFERENT) == 5
