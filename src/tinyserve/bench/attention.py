"""Decode attention against the bandwidth at which its keys and values could be read."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from tinyserve.bench.ceilings import CACHES, Ceilings, seconds_of
from tinyserve.bench.common import say
from tinyserve.kernels.formats import FloatWeight
from tinyserve.kernels.native import NativeBackend
from tinyserve.kernels.ops import AttentionSpec, Batch, KVLayout
from tinyserve.kv.pool import KVPool
from tinyserve.models.config import ModelConfig

BLOCK = 16


def attention(
    backend: NativeBackend,
    model: str,
    config: ModelConfig,
    args: argparse.Namespace,
    ceilings: Ceilings,
) -> list[dict[str, Any]]:
    """Decode attention of as many layers as overflow the caches, for streams and contexts."""
    lines = []
    for context in args.contexts:
        for streams in args.streams:
            measured = _attention(backend, config, context, streams, args, ceilings)
            lines.append({"model": model, "format": "f16 KV", "part": "attention", **measured})
    say(f"{model} attention done")
    return lines


def _attention(
    backend: NativeBackend,
    config: ModelConfig,
    context: int,
    streams: int,
    args: argparse.Namespace,
    ceilings: Ceilings,
) -> dict[str, Any]:
    per_token = 2 * 2 * config.num_kv_heads * config.head_dim  # bytes of K and V in f16, one layer
    layers = max(1, min(config.num_layers, -(-CACHES // (per_token * context * streams))))
    blocks = -(-context // BLOCK)
    layout = KVLayout(blocks * streams, BLOCK, layers, config.num_kv_heads, config.head_dim, "f16")
    pool = KVPool(layout, num_swap_blocks=0)
    pool.k[...] = np.float16(0.5).view(pool.k.dtype)
    pool.v[...] = np.float16(0.5).view(pool.v.dtype)
    half = config.head_dim // 2
    ones = np.ones((context, half), np.float32)
    width = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    rows = np.random.default_rng(args.seed).standard_normal((streams, width), np.float32)
    embedding = backend.linear([FloatWeight(rows)])
    specs = [
        AttentionSpec(
            layer, config.num_heads, config.num_kv_heads, config.head_dim, None, ones, ones
        )
        for layer in range(layers)
    ]

    def attend(ops: Any) -> Any:
        qkv = ops.embed(embedding)
        out = None
        for spec in specs:
            out = ops.paged_attention(qkv, spec)
        return out

    program = backend.compile(attend, pool, max_rows=streams)
    ceilings.measure()
    seconds = seconds_of(program, _decodes(streams, context), args.repeat)
    num_bytes = per_token * context * streams * layers
    rate = num_bytes / seconds / 1e9
    return {
        "rows": streams,
        "context": context,
        "ms": 1e3 * seconds / layers,
        "gb_s": rate,
        "of_bandwidth": rate / ceilings.latest()["read_gb_s"],
    }


def _decodes(streams: int, context: int) -> Batch:
    """One row a stream, at the end of its context, each with blocks of its own."""
    blocks = -(-context // BLOCK)
    last = np.arange(streams, dtype=np.int32) * blocks * BLOCK + context - 1
    return Batch(
        token_ids=np.arange(streams, dtype=np.int32),
        positions=np.full(streams, context - 1, np.int32),
        slots=last.astype(np.int32),
        seq_starts=np.arange(streams + 1, dtype=np.int32),
        block_ids=np.arange(streams * blocks, dtype=np.int32),
        block_starts=(np.arange(streams + 1) * blocks).astype(np.int32),
        logit_rows=np.arange(streams, dtype=np.int32),
    )
