"""`LLM` and transformers choose the same tokens: prompts together, in chunks, in a small pool."""

from __future__ import annotations

import pytest
from hf_tiny_models import MODELS, TinyModel
from parity_cases import NEW_TOKENS, Cases, prompts

from tinyserve import LLM, SamplingParams, TinyServeConfig

# One of each family, with what changes attention or the head; the rest is covered by the logits.
CHOSEN = (
    "llama",
    "llama-mqa-biases",
    "llama-rope-llama3",
    "qwen2-tied-sharded",
    "qwen2-windows",
    "qwen3",
    "mistral-window",
)
# Chunks of at most 32 tokens, and too few blocks for everybody: some sequences are preempted.
SETTINGS = {
    "model": {"dtype": "f32", "kv_cache_dtype": "f32"},
    "cache": {"block_size": 16, "num_blocks": 14, "num_swap_blocks": 4},
    "scheduler": {"max_num_seqs": 4, "max_num_batched_tokens": 32, "max_model_len": 160},
}


@pytest.mark.parametrize("model", [m for m in MODELS if m.name in CHOSEN], ids=str)
def test_greedy_tokens_match(
    cases: Cases, model: TinyModel, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINYSERVE_BACKEND", backend)
    case = cases[model]
    llm = LLM(model=str(case.folder), config=TinyServeConfig.from_dict(SETTINGS))
    params = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True)
    outputs = llm.generate(list(prompts().values()), params)
    assert {s: output.token_ids for s, output in enumerate(outputs)} == case.greedy
    assert {output.finish_reason for output in outputs} == {"length"}
    stats = llm.engine.core.stats()
    assert stats.num_preemptions_swap + stats.num_preemptions_recompute > 0


def test_chosen_names_exist() -> None:
    assert set(CHOSEN) <= {model.name for model in MODELS}
