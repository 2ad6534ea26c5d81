"""Builders for kernel tests: weights of every format, batches, and one operation run on its own.

An operation's inputs come out of an f32 embedding table, one row a token, which both back ends hand
over unchanged; so any values can be fed to any operation through the public interface.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinyserve.kernels.formats import F32, FloatWeight, Int8Weight, U4Weight, Weight, to_bf16
from tinyserve.kernels.native import NativeBackend
from tinyserve.kernels.ops import Backend, Batch, KVLayout
from tinyserve.kv.pool import KVPool

F64 = NDArray[np.float64]
FORMATS = (
    *("f32", "f16", "bf16", "bf16:x2"),
    *("int8:16", "int8:32", "int8:32:min", "int8:64:f32", "int8:512", "int8:16:min:f32"),
    *("u4", "u4:f32", "u4:min", "u4:min:f32"),
)


def make_weight(kind: str, n: int, k: int, rng: np.random.Generator) -> Weight:
    """Random weights of one of `FORMATS`: int8:GROUP, `min` has minima of its own, `f32` inexact
    scales. `x2` says how they are multiplied: see `suited`.
    """
    name, *options = kind.split(":")
    values = rng.standard_normal((n, k)).astype(np.float32)
    if name == "f32":
        return FloatWeight(values)
    if name == "f16":
        return FloatWeight(values.astype(np.float16))
    if name == "bf16":
        return FloatWeight(to_bf16(values))
    group = int(options[0]) if name == "int8" else 32
    scale = make_scales(rng, n, k // group, f16="f32" not in options) / np.float32(64)
    if name == "u4":
        minimum = scale * np.float32(-4 if "min" in options else -8)  # exact where the scale is
        q = rng.integers(0, 16, (n, k)).astype(np.uint8)
        return U4Weight(q, scale, minimum)
    q = rng.integers(-128, 128, (n, k)).astype(np.int8)
    minimum = scale * np.float32(4) if "min" in options else None
    return Int8Weight(q, scale, minimum, group)


def suited(backend: NativeBackend, kind: str) -> NativeBackend:
    """The back end as weights of one of `FORMATS` ask for it."""
    return NativeBackend(backend.threads, backend.variant, bf16x2=kind.endswith(":x2"))


def make_scales(rng: np.random.Generator, n: int, groups: int, *, f16: bool) -> F32:
    """Positive scales, exact in f16 or surely not."""
    scale = rng.uniform(0.5, 1.5, (n, groups)).astype(np.float16).astype(np.float32)
    return scale if f16 else scale * np.float32(1.0001)


def make_pool(
    dtype: str = "f32",
    *,
    block_size: int = 16,
    num_blocks: int = 4,
    num_layers: int = 1,
    num_kv_heads: int = 1,
    head_dim: int = 16,
) -> KVPool:
    layout = KVLayout(num_blocks, block_size, num_layers, num_kv_heads, head_dim, dtype)
    return KVPool(layout, num_swap_blocks=0)


def spans_batch(
    spans: Sequence[tuple[int, int]], pool: KVPool, rng: np.random.Generator, spare: int = 0
) -> Batch:
    """One sequence per span of positions [start, stop), its blocks dealt at random.

    Token t of the batch has id t. `spare` blocks of each table lie beyond its last position.
    """
    size = pool.layout.block_size
    counts = [-(-stop // size) + spare for _, stop in spans]
    deck = rng.permutation(pool.layout.num_blocks).astype(np.int32)
    assert sum(counts) <= len(deck), "the pool is too small for the test"
    starts = np.cumsum([0, *counts]).astype(np.int32)
    positions = [np.arange(start, stop, dtype=np.int32) for start, stop in spans]
    slots = [deck[starts[s] + p // size] * size + p % size for s, p in enumerate(positions)]
    rows = np.cumsum([0, *(len(p) for p in positions)]).astype(np.int32)
    tokens = np.arange(rows[-1], dtype=np.int32)
    return Batch(
        token_ids=tokens,
        positions=np.concatenate(positions),
        slots=np.concatenate(slots).astype(np.int32),
        seq_starts=rows,
        block_ids=deck[: starts[-1]].copy(),
        block_starts=starts,
        logit_rows=tokens,
    )


def rows_batch(count: int, logit_rows: Sequence[int] | None = None) -> Batch:
    """`count` tokens with ids 0, 1, ...; for operations that look at no cache."""
    tokens = np.arange(count, dtype=np.int32)
    return Batch(
        token_ids=tokens,
        positions=tokens,
        slots=tokens,
        seq_starts=np.array([0, count], np.int32),
        block_ids=np.zeros(1, np.int32),
        block_starts=np.array([0, 1], np.int32),
        logit_rows=tokens if logit_rows is None else np.array(logit_rows, np.int32),
    )


def apply(
    backend: Backend,
    function: Callable[..., Any],
    *inputs: F32,
    batch: Batch | None = None,
    pool: KVPool | None = None,
) -> F32:
    """`function(ops, *inputs)` in one step; a copy of the result. Inputs are [tokens, features]."""
    return bind(backend, function, *inputs, pool=pool)(batch or rows_batch(len(inputs[0])))


def bind(
    backend: Backend, function: Callable[..., Any], *inputs: F32, pool: KVPool | None = None
) -> Callable[[Batch], F32]:
    """The same, to be run on several batches."""
    tables = [backend.linear([FloatWeight(np.ascontiguousarray(x))]) for x in inputs]
    compiled = backend.compile(
        lambda ops: function(ops, *[ops.embed(table) for table in tables]),
        pool or make_pool(),
        max_rows=len(inputs[0]),
    )
    return lambda batch: np.array(compiled.run(batch))


def quantized_product(x: F32, weight: Int8Weight | U4Weight) -> F64:
    """x @ weight.T with the kernels' quantized activations, in float64 from there on.

    Activations: int16 per group for int8 weights, int8 per group of 32 for u4 weights.
    """
    limit = np.float32(127 if isinstance(weight, U4Weight) else 32767)
    grouped = x.reshape(len(x), -1, weight.group)
    top = np.abs(grouped).max(axis=2)
    inverse = np.divide(limit, top, out=np.zeros_like(top), where=top > 0)
    q = np.rint(grouped * inverse[:, :, None]).astype(np.float64)  # [rows, groups, group]
    scale = (top / limit).astype(np.float64)
    wq = weight.q.reshape(weight.q.shape[0], -1, weight.group).astype(np.float64)
    sums = np.einsum("rgi,ngi->rng", q, wq, optimize=True)
    out = np.einsum("rng,ng,rg->rn", sums, weight.scale.astype(np.float64), scale, optimize=True)
    if weight.minimum is not None:
        out += np.einsum("rg,ng->rn", q.sum(axis=2) * scale, weight.minimum.astype(np.float64))
    return np.asarray(out)


def rounding_bound(x: F32, weight: Int8Weight | U4Weight) -> F64:
    """How far rounding the activations can take x @ weight.T: half a step in every input."""
    limit = 127 if isinstance(weight, U4Weight) else 32767
    grouped = np.abs(x.astype(np.float64)).reshape(len(x), -1, weight.group)
    w = np.abs(weight.dequantize().astype(np.float64)).reshape(weight.q.shape[0], -1, weight.group)
    return np.asarray(grouped.max(axis=2) / (2 * limit) @ w.sum(axis=2).T)


def same_bits(a: NDArray[Any], b: NDArray[Any]) -> bool:
    """Equal to the last bit; NaN equals NaN of the same bits."""
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()
