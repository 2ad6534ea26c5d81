"""Shapes of attention layers, caches that hold something everywhere, and queries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from kernel_tools import make_pool

from tinyserve.kernels.formats import F32, to_bf16
from tinyserve.kernels.ops import AttentionSpec
from tinyserve.kv.pool import KVPool

# A step's sequences: first tokens, chunks, decodes and verifications, in up to five partitions
SPANS = ((0, 1), (0, 30), (290, 291), (510, 514), (1095, 1100), (40, 57), (255, 257))
NOTHING = np.zeros((1, 1), np.float32)  # attention itself reads no rotary tables


@dataclass(frozen=True)
class Shape:
    """One attention layer over one kind of cache."""

    group: int = 3
    kv_heads: int = 2
    head_dim: int = 64
    window: int | None = None
    block_size: int = 16
    dtype: str = "f32"
    spans: tuple[tuple[int, int], ...] = SPANS

    @property
    def heads(self) -> int:
        return self.group * self.kv_heads

    @property
    def spec(self) -> AttentionSpec:
        return AttentionSpec(
            *(1, self.heads, self.kv_heads, self.head_dim, self.window, NOTHING, NOTHING)
        )

    def __str__(self) -> str:
        window = "full" if self.window is None else f"w{self.window}"
        sizes = f"{self.group}x{self.kv_heads}x{self.head_dim}"
        return f"{self.dtype}-{sizes}-{window}-b{self.block_size}"


def filled_pool(shape: Shape, num_tokens: int, rng: np.random.Generator) -> KVPool:
    """Every slot holds something, as if written by sequences of the past."""
    pool = make_pool(
        shape.dtype,
        block_size=shape.block_size,
        num_blocks=num_tokens // shape.block_size + 12,
        num_layers=2,
        num_kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
    )
    for slab in (pool.k, pool.v):
        values = rng.standard_normal(slab.shape).astype(np.float32)
        if shape.dtype == "int8":
            slab[...] = rng.integers(-127, 128, slab.shape)
        else:
            slab[...] = to_bf16(values) if shape.dtype == "bf16" else values
    for scale in (pool.k_scale, pool.v_scale):
        if scale is not None:
            scale[...] = rng.uniform(0.005, 0.02, scale.shape)
    return pool


def queries(shape: Shape, tokens: int, rng: np.random.Generator) -> F32:
    """[tokens, (heads + 2 kv_heads) * head_dim], scaled as rope_and_cache leaves them."""
    width = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    return rng.standard_normal((tokens, width)).astype(np.float32) * shape.head_dim**-0.5 * 2


def bits(value: float, dtype: np.dtype[Any]) -> Any:
    if dtype == np.int8:
        return 127
    return to_bf16(np.array([value], np.float32))[0] if dtype == np.uint16 else dtype.type(value)
