"""Tiny random models in every weight format, and the truth about them.

The truth of a sequence: its logits when it is alone, in one chunk, on one thread, on the best
instruction set of the machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from helpers.native import all_variants
from helpers.plans import F32, Sequences, run_chunks

from tinyserve.config import ModelOptions
from tinyserve.engine.runner import ModelRunner
from tinyserve.kernels.native import NativeBackend
from tinyserve.kernels.ops import KVLayout
from tinyserve.kv.pool import KVPool
from tinyserve.models.decoder import Decoder
from tinyserve.models.synthetic import synthetic_checkpoint
from tinyserve.models.weights import load_decoder

SEED = 11
MAX_LEN = 640
VOCAB = 300
KV_DTYPES = ("f32", "f16", "bf16", "int8")
WEIGHTS = {
    "f32": ModelOptions(dtype="f32"),
    "bf16": ModelOptions(dtype="bf16"),
    "bf16x2": ModelOptions(dtype="bf16", bf16_products="bf16x2"),
    "int8": ModelOptions(quantization="int8"),
    "u4": ModelOptions(quantization="int4"),
}
_SIZES: dict[str, Any] = {"vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 96}
SHAPES: dict[str, dict[str, Any]] = {
    # three heads share one of keys and values; widths that are no multiple of 64
    "grouped": {**_SIZES, "num_layers": 2, "num_heads": 6, "num_kv_heads": 2},
    # norms of queries and keys, odd heads, windows shorter and longer than a partition
    "windowed": {
        **_SIZES,
        "architecture": "Qwen3ForCausalLM",
        "num_layers": 3,
        "num_heads": 4,
        "num_kv_heads": 1,
        "head_dim": 24,
        "windows": (20, None, 300),
    },
}


@cache
def decoder_of(weights: str, shape: str) -> Decoder:
    """Packed weights are the same for every instruction set."""
    checkpoint = synthetic_checkpoint(SEED, **SHAPES[shape])
    return load_decoder(checkpoint, NativeBackend(1), WEIGHTS[weights], MAX_LEN)


def make_runner(
    decoder: Decoder,
    kv_dtype: str,
    *,
    threads: int = 1,
    variant: str = "",
    bf16x2: bool = False,
    num_blocks: int = MAX_LEN // 16,
    block_size: int = 16,
    num_swap_blocks: int = 0,
    max_tokens: int = MAX_LEN,
) -> ModelRunner:
    config = decoder.config
    layout = KVLayout(
        *(num_blocks, block_size, config.num_layers, config.num_kv_heads, config.head_dim),
        kv_dtype,
    )
    backend = NativeBackend(threads, variant or all_variants()[0], bf16x2=bf16x2)
    return ModelRunner(decoder, KVPool(layout, num_swap_blocks), backend, max_tokens)


class Truth:
    """The logits of any sequence of one model, [tokens, vocab]."""

    def __init__(self, weights: str, shape: str, kv_dtype: str) -> None:
        self._runner = make_runner(decoder_of(weights, shape), kv_dtype, bf16x2=weights == "bf16x2")
        self._known: dict[tuple[int, ...], F32] = {}

    def logits(self, tokens: Sequence[int]) -> F32:
        """Computed once and kept."""
        key = tuple(tokens)
        if key not in self._known:
            self._known[key] = self.compute(key)
        return self._known[key]

    def compute(self, tokens: Sequence[int]) -> F32:
        blocks = Sequences(block_size=16, num_blocks=MAX_LEN // 16)
        return run_chunks(self._runner, [blocks.chunk(0, tokens)])[0]


@cache
def truth_of(weights: str, shape: str, kv_dtype: str) -> Truth:
    return Truth(weights, shape, kv_dtype)
