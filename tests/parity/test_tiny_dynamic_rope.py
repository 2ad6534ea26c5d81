"""Dynamic rotary scaling is resolved once, from `max_model_len`.

transformers lets the base follow the current length, so the two agree where that length is ours:
on a prompt of exactly `max_model_len` tokens, beyond the original context and within it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.plans import Sequences, run_schedule
from hf_reference import Reference
from hf_tiny_models import TinyModel, rope, save
from parity_cases import CACHE, TOLERANCE, create_runner

DYNAMIC = TinyModel(
    "llama-rope-dynamic",
    "Llama",
    {**rope("dynamic", factor=2.0), "max_position_embeddings": 64},
)


@pytest.mark.parametrize("length", [48, 120])
def test_logits_match_at_the_longest_length(tmp_path: Path, backend: str, length: int) -> None:
    folder = save(DYNAMIC, tmp_path)
    prompt = {0: [(7 * i) % 331 for i in range(length)]}
    runner = create_runner(folder, backend, max_model_len=length)
    sequences = Sequences(block_size=CACHE.block_size, num_blocks=CACHE.num_blocks)
    ours = run_schedule(runner, sequences, prompt, "chunks:16")[0]
    reference = Reference.from_folder(folder).logits(prompt[0])
    assert np.abs(ours - reference).max() < TOLERANCE
