"""A real checkpoint against transformers, on the values that it holds, dequantized to f32.

`TINYSERVE_REAL_MODEL=<folder, .gguf, hub id> pytest -m slow` names one; else the default model.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from helpers.plans import Sequences, run_chunks
from hf_from_checkpoint import dequantized, reference_of
from hf_reference import F32, Reference

from tinyserve.config import CacheConfig, ModelOptions, SchedulerConfig
from tinyserve.engine.runner import ModelRunner
from tinyserve.models.checkpoint import Checkpoint, load_checkpoint
from tinyserve.models.hub import download, parse_hub_id
from tinyserve.text.tokenizer import Tokenizer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

NAME = os.environ.get("TINYSERVE_REAL_MODEL", "default")
TEXT = Path(__file__).parent / "data" / "walk.txt"
PROMPTS = (
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):\n",
    "Water boils at a temperature of",
)
NEW_TOKENS = 32
BLOCK_SIZE, NUM_BLOCKS, CHUNK = 16, 128, 128


@cache
def checkpoint() -> Checkpoint:
    return load_checkpoint(NAME)


@cache
def f32_checkpoint() -> Checkpoint:
    return dequantized(checkpoint())


@cache
def reference() -> Reference:
    """From the model's own folder where transformers can read it, else on what we read."""
    hub_id = parse_hub_id(NAME)
    folder = Path(NAME)
    if not folder.exists() and hub_id is not None:
        folder = download(hub_id)
    if (folder / "config.json").is_file():
        return Reference.from_folder(folder)
    return reference_of(f32_checkpoint())


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer.from_spec(checkpoint().tokenizer_spec())


@cache
def text_ids() -> list[int]:
    return tokenizer().encode(TEXT.read_text())[:1000]


def create(model: Checkpoint, **options: str) -> ModelRunner:
    return ModelRunner.create(
        model,
        ModelOptions(name=NAME, **options),
        CacheConfig(block_size=BLOCK_SIZE, num_blocks=NUM_BLOCKS, num_swap_blocks=0),
        SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=CHUNK, max_model_len=1024),
    )


@cache
def f32_runner() -> ModelRunner:
    return create(f32_checkpoint(), dtype="f32", kv_cache_dtype="f32")


def logits_of(runner: ModelRunner, token_ids: list[int]) -> F32:
    """`[len(token_ids), vocab]`, in chunks."""
    sequences = Sequences(block_size=BLOCK_SIZE, num_blocks=NUM_BLOCKS)
    parts = [
        run_chunks(runner, [sequences.chunk(0, token_ids[first : first + CHUNK])])[0]
        for first in range(0, len(token_ids), CHUNK)
    ]
    return np.concatenate(parts)


def greedy(runner: ModelRunner, prompts: dict[int, list[int]], count: int) -> dict[int, list[int]]:
    """The most likely tokens of all prompts together, by decoding."""
    sequences = Sequences(block_size=BLOCK_SIZE, num_blocks=NUM_BLOCKS)
    chosen: dict[int, list[int]] = {seq_id: [] for seq_id in prompts}
    ahead = prompts
    for _ in range(count):
        chunks = [sequences.chunk(seq_id, ids, num_logits=1) for seq_id, ids in ahead.items()]
        for seq_id, rows in run_chunks(runner, chunks).items():
            chosen[seq_id].append(int(rows[0].argmax()))
        ahead = {seq_id: ids[-1:] for seq_id, ids in chosen.items()}
    return chosen


def perplexity(logits: F32, token_ids: list[int]) -> float:
    """exp of the mean negative log-likelihood of each token but the first."""
    rows = logits[:-1].astype(np.float64)
    peak = rows.max(axis=1, keepdims=True)
    norm = np.log(np.exp(rows - peak).sum(axis=1)) + peak[:, 0]
    return float(np.exp((norm - rows[np.arange(len(rows)), token_ids[1:]]).mean()))


def test_f32_logits_match() -> None:
    """Within 1e-4 of the logits' own scale: deeper and larger than the tiny models, same rule."""
    token_ids = text_ids()[:256]
    ours, theirs = logits_of(f32_runner(), token_ids), reference().logits(token_ids)
    assert np.abs(ours - theirs).max() < 1e-4 * max(1.0, float(np.abs(theirs).max()))


def test_f32_greedy_tokens_match() -> None:
    prompts = {index: tokenizer().encode(prompt) for index, prompt in enumerate(PROMPTS)}
    ours = greedy(f32_runner(), prompts, NEW_TOKENS)
    for index, token_ids in prompts.items():
        assert ours[index] == reference().greedy(token_ids, NEW_TOKENS), PROMPTS[index]


@pytest.mark.parametrize("kv_cache_dtype", ["f32", "f16", "int8"])
def test_perplexity_of_integer_kernels(kv_cache_dtype: str) -> None:
    """The stored weights by their own kernels: within 0.5 % of the f32 run of the same values."""
    exact = perplexity(logits_of(f32_runner(), text_ids()), text_ids())
    runner = create(checkpoint(), kv_cache_dtype=kv_cache_dtype)
    ours = perplexity(logits_of(runner, text_ids()), text_ids())
    print(f"perplexity: {ours:.4f} with {kv_cache_dtype} KV, {exact:.4f} in f32")
    assert abs(ours / exact - 1) < 0.005
