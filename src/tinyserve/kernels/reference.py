"""The numpy back end: every operation in a few lines, the executable specification of the kernels.

Weights are dequantized to f32. It promises tolerance, not bits; it is also what runs where no
compiler was found. Sampling is in `reference_sampling.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tinyserve.kernels.formats import F32, Weight, to_bf16, widen
from tinyserve.kernels.ops import Array, AttentionSpec, Batch, Draw, KVSlabs, Ops, SampledToken
from tinyserve.kernels.reference_sampling import sample_row


class ReferenceLinear:
    """A dequantized matrix, [n, k] f32."""

    def __init__(self, matrix: F32, bias: F32 | None, silu_mul: bool) -> None:
        self.matrix = matrix
        self.bias = bias
        self.silu_mul = silu_mul
        self.n, self.k = matrix.shape

    @property
    def nbytes(self) -> int:
        return self.matrix.nbytes

    @property
    def formats(self) -> tuple[str, ...]:
        return ("f32",)


class ReferenceOps:
    """`Ops` that run at once, on the batch of the current step."""

    def __init__(self, kv: KVSlabs) -> None:
        self.kv = kv
        self.batch: Batch

    def embed(self, table: ReferenceLinear) -> Array:
        return table.matrix[self.batch.token_ids]

    def rms_norm(self, x: F32, weight: F32, eps: float) -> Array:
        return _rms_norm(x, weight, eps)

    def linear(self, x: F32, weight: ReferenceLinear, *, residual: F32 | None = None) -> Array:
        y = x @ weight.matrix.T
        if weight.bias is not None:
            y += weight.bias
        if weight.silu_mul:
            gate, up = np.split(y, 2, axis=1)
            with np.errstate(over="ignore"):
                y = gate / (1 + np.exp(-gate)) * up
        return y if residual is None else residual + y

    def rope_and_cache(self, qkv: F32, attention: AttentionSpec) -> None:
        a, positions = attention, self.batch.positions
        q, k, v = _split_heads(qkv, a)
        if a.q_norm is not None:
            q[:] = _rms_norm(q, a.q_norm, a.norm_eps)
        if a.k_norm is not None:
            k[:] = _rms_norm(k, a.k_norm, a.norm_eps)
        cos, sin = a.cos[positions][:, None], a.sin[positions][:, None]
        q[:] = _rotate(q, cos, sin) * np.float32(a.head_dim**-0.5)
        k[:] = _rotate(k, cos, sin)
        block, slot = np.divmod(self.batch.slots, self.kv.layout.block_size)
        _store(self.kv.k[:, a.layer], self.kv.k_scale, k, (block, slot), a, transposed=True)
        _store(self.kv.v[:, a.layer], self.kv.v_scale, v, (block, slot), a, transposed=False)

    def paged_attention(self, qkv: F32, attention: AttentionSpec) -> Array:
        a, b = attention, self.batch
        q, _, _ = _split_heads(qkv, a)
        group = a.num_heads // a.num_kv_heads
        out = np.empty((len(q), a.num_heads * a.head_dim), np.float32)
        for s in range(len(b.seq_starts) - 1):
            rows = slice(b.seq_starts[s], b.seq_starts[s + 1])
            positions = b.positions[rows]
            length = int(positions[-1]) + 1
            keys, values = self._read(
                a, b.block_ids[b.block_starts[s] : b.block_starts[s + 1]], length
            )
            queries = q[rows].reshape(-1, a.num_kv_heads, group, a.head_dim)
            scores = np.einsum("tngd,lnd->tngl", queries, keys, optimize=True)
            seen = np.arange(length)[None, :] <= positions[:, None]
            if a.window is not None:
                seen &= np.arange(length)[None, :] > positions[:, None] - a.window
            scores = np.where(seen[:, None, None, :], scores, -np.inf)
            weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
            weights /= weights.sum(axis=-1, keepdims=True)
            result = np.einsum("tngl,lnd->tngd", weights, values, optimize=True)
            out[rows] = result.reshape(len(result), -1)
        return out

    def gather_rows(self, x: F32) -> Array:
        return x[self.batch.logit_rows]

    def _read(self, a: AttentionSpec, blocks: Any, length: int) -> tuple[F32, F32]:
        """The first `length` keys and values of a sequence: [length, kv_heads, head_dim] each."""
        count = -(-length // self.kv.layout.block_size)
        taken = blocks[:count]
        k = widen_kv(self.kv.k[taken, a.layer]).transpose(0, 3, 1, 2)  # [block, slot, head, dim]
        v = widen_kv(self.kv.v[taken, a.layer]).transpose(0, 2, 1, 3)[..., : a.head_dim]
        if self.kv.k_scale is not None and self.kv.v_scale is not None:
            k = k * self.kv.k_scale[taken, a.layer].transpose(0, 2, 1)[..., None]
            v = v * self.kv.v_scale[taken, a.layer].transpose(0, 2, 1)[..., None]
        shape = (-1, a.num_kv_heads, a.head_dim)
        return k.reshape(shape)[:length], v.reshape(shape)[:length]


class Eager:
    """A forward function that runs anew in each step."""

    nbytes = 0

    def __init__(self, function: Callable[[Ops], Array], kv: KVSlabs) -> None:
        self.output: Array = None
        self._function = function
        self._ops = ReferenceOps(kv)

    def run(self, batch: Batch) -> F32:
        self._ops.batch = batch
        self.output = self._function(self._ops)
        result: F32 = self.output
        return result


class ReferenceBackend:
    """numpy, on as many threads as its BLAS takes."""

    name = "numpy"
    variant = "numpy"
    exact = False

    def __init__(self, threads: int = 1) -> None:
        self.threads = threads

    def linear(
        self, parts: Sequence[Weight], bias: F32 | None = None, *, silu_mul: bool = False
    ) -> ReferenceLinear:
        matrix = np.concatenate([part.dequantize() for part in parts])
        return ReferenceLinear(matrix, bias, silu_mul)

    def compile(
        self, function: Callable[[Ops], Array], kv: KVSlabs, *, max_rows: int, logits: bool = False
    ) -> Eager:
        return Eager(function, kv)

    def sample(self, logits: F32, draws: Sequence[Draw]) -> list[SampledToken]:
        return [sample_row(logits[draw.row], draw) for draw in draws]


def widen_kv(data: Any) -> F32:
    """Cached values as f32, before their scale."""
    return data.astype(np.float32) if data.dtype == np.int8 else widen(data)


def _rms_norm(x: F32, weight: F32, eps: float) -> F32:
    inverse = 1.0 / np.sqrt(np.mean(np.square(x), axis=-1, keepdims=True) + np.float32(eps))
    result: F32 = x * inverse * weight
    return result


def _split_heads(qkv: F32, a: AttentionSpec) -> tuple[F32, F32, F32]:
    """Views of the queries, keys and values: [T, heads, head_dim] each."""
    heads = qkv.reshape(len(qkv), -1, a.head_dim)
    first, second = a.num_heads, a.num_heads + a.num_kv_heads
    return heads[:, :first], heads[:, first:second], heads[:, second:]


def _rotate(x: F32, cos: F32, sin: F32) -> F32:
    """Rotary embedding (Su et al. 2021) of the pairs (i, i + head_dim / 2)."""
    a, b = np.split(x, 2, axis=-1)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def _store(
    slab: Any, scales: F32 | None, x: F32, where: Any, a: AttentionSpec, *, transposed: bool
) -> None:
    """Write [T, heads, head_dim] into slots of one layer's slab, rounded to its dtype; f16
    saturates.
    """
    block, slot = where
    if slab.dtype == np.int8:
        assert scales is not None
        top = np.abs(x).max(axis=-1)
        scales[block, a.layer, :, slot] = top / np.float32(127)
        x = np.rint(x * np.divide(127, top, out=np.zeros_like(top), where=top > 0)[..., None])
    elif slab.dtype == np.float16:
        x = x.clip(-65504, 65504)
    elif slab.dtype == np.uint16:
        x = to_bf16(x)  # type: ignore[assignment]
    if transposed:
        slab[block, :, :, slot] = x
    else:
        slab[block, :, slot, : a.head_dim] = x
