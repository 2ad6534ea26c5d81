"""Embeddings against transformers: the last hidden state after the final norm, pooled."""

from __future__ import annotations

import numpy as np
import pytest
from hf_reference import F32, quiet
from hf_tiny_models import MODELS, TinyModel
from parity_cases import CACHE, TOLERANCE, Case, Cases, prompts

from tinyserve.config import SchedulerConfig
from tinyserve.engine.core import EngineCore
from tinyserve.engine.request import EngineRequest, Pooling
from tinyserve.engine.sampling import SamplingParams
from tinyserve.kv.manager import KVManager

FAMILIES = [m for m in MODELS if m.name in ("llama", "qwen2", "qwen3", "mistral-window")]


def reference_states(case: Case, token_ids: list[int]) -> F32:
    """`[len(token_ids), hidden]`"""
    import torch

    with torch.no_grad(), quiet():
        output = case.reference.model.model(torch.tensor([token_ids]), use_cache=False)
    array: F32 = output.last_hidden_state[0].float().numpy()
    return array


def our_embeddings(case: Case, backend: str, pooling: Pooling) -> dict[int, F32]:
    """All of `prompts()` in one engine, in chunks."""
    core = EngineCore(
        case.runner(backend),
        KVManager.from_config(CACHE),
        SchedulerConfig(max_num_batched_tokens=37, max_num_seqs=8),
    )
    for seq_id, token_ids in prompts().items():
        core.add_request(
            EngineRequest(
                request_id=str(seq_id),
                prompt_token_ids=token_ids,
                params=SamplingParams(max_tokens=0),
                pooling=pooling,
            )
        )
    found: dict[int, F32] = {}
    while core.has_work():
        for output in core.step():
            assert output.embedding is not None
            found[int(output.request_id)] = output.embedding
    return found


@pytest.mark.parametrize("pooling", ["last", "mean"])
@pytest.mark.parametrize("model", FAMILIES, ids=str)
def test_embeddings_match(cases: Cases, model: TinyModel, backend: str, pooling: Pooling) -> None:
    case = cases[model]
    ours = our_embeddings(case, backend, pooling)
    assert set(ours) == set(prompts())
    for seq_id, token_ids in prompts().items():
        states = reference_states(case, token_ids)
        want = states[-1] if pooling == "last" else states.mean(axis=0)
        assert float(np.abs(ours[seq_id] - want).max()) < TOLERANCE


def test_families_are_all_there() -> None:
    assert len(FAMILIES) == 4
