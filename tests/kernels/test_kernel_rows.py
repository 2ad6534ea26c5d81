"""Row-wise operations: embedding, RMS norm, gathering, rotary embedding and the cache write."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kernel_tools import (
    FORMATS,
    apply,
    make_pool,
    make_weight,
    rows_batch,
    same_bits,
    spans_batch,
)

from tinyserve.errors import ModelLoadError
from tinyserve.kernels.formats import F32, FloatWeight, to_bf16
from tinyserve.kernels.native import NativeBackend
from tinyserve.kernels.ops import AttentionSpec, Backend, Batch
from tinyserve.kernels.reference import ReferenceBackend
from tinyserve.kv.pool import KVPool
from tinyserve.models.config import RopeConfig
from tinyserve.models.rope import rope_table

HEAD_DIMS = [8, 24, 40, 64, 80, 128, 256, 512]


@pytest.mark.parametrize("kind", FORMATS)
def test_embedding_is_exact(backend: Backend, kind: str, rng: np.random.Generator) -> None:
    """Rows of a packed table are those of `dequantize()`, bit for bit."""
    table = make_weight(kind, 37, 512, rng)
    ids = np.array([0, 36, 1, 15, 16, 17, 31, 32, 5, 0], np.int32)
    weight = backend.linear([table])
    compiled = backend.compile(lambda ops: ops.embed(weight), make_pool(), max_rows=10)
    batch = Batch(ids, *[getattr(rows_batch(10), name) for name in _AFTER_TOKENS])
    assert same_bits(np.array(compiled.run(batch)), table.dequantize()[ids])


_AFTER_TOKENS = (
    *("positions", "slots", "seq_starts", "block_ids", "block_starts"),
    "logit_rows",
)


@pytest.mark.parametrize("width", [1, 8, 40, 64, 576])
def test_rms_norm(variant: NativeBackend, width: int, rng: np.random.Generator) -> None:
    x = rng.standard_normal((9, width)).astype(np.float32)
    x[3] = 0
    weight = rng.standard_normal(width).astype(np.float32)
    got = apply(variant, lambda ops, a: ops.rms_norm(a, weight, 1e-5), x)
    wide = x.astype(np.float64)
    want = wide / np.sqrt((wide**2).mean(axis=1, keepdims=True) + 1e-5) * weight
    np.testing.assert_allclose(got, want, rtol=2e-6)
    reference = apply(ReferenceBackend(), lambda ops, a: ops.rms_norm(a, weight, 1e-5), x)
    np.testing.assert_allclose(reference, want, rtol=2e-6)


@pytest.mark.parametrize("rows", [[0], [39], [7, 7, 0, 39, 3], list(range(40))])
def test_gather_rows(backend: Backend, rows: list[int], rng: np.random.Generator) -> None:
    """Rows of one program's output, in any order, in another program."""
    x = rng.standard_normal((40, 24)).astype(np.float32)
    table = backend.linear([FloatWeight(x)])
    body = backend.compile(lambda ops: ops.embed(table), make_pool(), max_rows=40)
    body.run(rows_batch(40))
    head = backend.compile(
        lambda ops: ops.gather_rows(body.output), make_pool(), max_rows=40, logits=True
    )
    assert same_bits(np.array(head.run(rows_batch(40, rows))), x[rows])


@pytest.mark.parametrize("width", [40, 48])
def test_damage_does_not_outlive_its_step(
    backend: Backend, width: int, rng: np.random.Generator
) -> None:
    """A NaN row leaves nothing behind in the buffers, not even in their padding."""
    x = rng.standard_normal((6, width)).astype(np.float32)
    x[4] = np.nan
    one = np.ones(width, np.float32)
    table = backend.linear([FloatWeight(x)])
    square = backend.linear([FloatWeight(np.eye(width, dtype=np.float32))])

    def forward(ops: Any) -> Any:
        a = ops.embed(table)  # nothing else holds it: a later result may take its buffer
        for _ in range(3):
            a = ops.linear(ops.rms_norm(a, one, 1e-5), square, residual=a)
        return ops.rms_norm(a, one, 1e-5)

    compiled = backend.compile(forward, make_pool(), max_rows=6)

    def run(batch: Batch) -> F32:
        return np.array(compiled.run(batch))

    clean = run(rows_batch(4))
    assert np.isnan(run(rows_batch(6))[4]).all()
    batch = rows_batch(6)
    batch.token_ids[:] = [0, 1, 2, 3, 0, 0]  # row 4 was the damaged one
    after = run(batch)
    assert same_bits(after[:4], clean)
    assert same_bits(after[4], clean[0])


# ---- rotary embedding and the cache write ----


def spec_of(
    head_dim: int, rng: np.random.Generator, *, heads: int = 3, kv_heads: int = 2, norms: bool
) -> AttentionSpec:
    cos, sin = rope_table(RopeConfig(theta=10000.0), head_dim, 600)
    norm = [rng.uniform(0.5, 2, head_dim).astype(np.float32) for _ in "qk"]
    return AttentionSpec(
        *(1, heads, kv_heads, head_dim, None, cos, sin),
        *(norm if norms else (None, None)),
        norm_eps=1e-6,
    )


def rope(backend: Backend, qkv: F32, spec: AttentionSpec, batch: Batch, pool: KVPool) -> F32:
    def forward(ops: Any, a: Any) -> Any:
        ops.rope_and_cache(a, spec)
        return a

    return apply(backend, forward, qkv, batch=batch, pool=pool)


def pool_for(spec: AttentionSpec, dtype: str, block_size: int = 16) -> KVPool:
    return make_pool(
        dtype,
        block_size=block_size,
        num_blocks=120 // block_size + 8,
        num_layers=3,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
    )


SPANS = [(0, 21), (33, 34), (50, 66)]


@pytest.mark.parametrize("norms", [False, True])
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_rotary_embedding(
    variant: NativeBackend, head_dim: int, norms: bool, rng: np.random.Generator
) -> None:
    """Against float64; queries carry the factor, values stay as they are."""
    spec = spec_of(head_dim, rng, norms=norms)
    pool = pool_for(spec, "f32")
    batch = spans_batch(SPANS, pool, rng)
    qkv = rng.standard_normal((len(batch.token_ids), 7 * head_dim)).astype(np.float32)
    got = rope(variant, qkv, spec, batch, pool).reshape(-1, 7, head_dim)
    heads = qkv.reshape(-1, 7, head_dim).astype(np.float64)
    if norms:
        for part, weight in ((heads[:, :3], spec.q_norm), (heads[:, 3:5], spec.k_norm)):
            part /= np.sqrt((part**2).mean(axis=-1, keepdims=True) + 1e-6)
            part *= weight
    cos, sin = (t.astype(np.float64)[batch.positions][:, None] for t in (spec.cos, spec.sin))
    a, b = np.split(heads[:, :5], 2, axis=-1)
    want = np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
    want[:, :3] *= head_dim**-0.5
    np.testing.assert_allclose(got[:, :5], want, atol=3e-6)
    assert same_bits(got[:, 5:], qkv.reshape(-1, 7, head_dim)[:, 5:])
    numpy_pool = pool_for(spec, "f32")
    reference = rope(ReferenceBackend(), qkv, spec, batch, numpy_pool)
    np.testing.assert_allclose(reference.reshape(-1, 7, head_dim)[:, :5], want, atol=3e-6)
    np.testing.assert_allclose(numpy_pool.k, pool.k, atol=3e-6)
    assert same_bits(numpy_pool.v, pool.v)


def stored(pool: KVPool, batch: Batch, spec: AttentionSpec) -> tuple[np.ndarray, np.ndarray]:
    """What the batch's slots hold: keys and values, [tokens, kv_heads, head_dim]."""
    block, slot = np.divmod(batch.slots, pool.layout.block_size)
    keys = pool.k[block, spec.layer, :, :, slot]
    values = pool.v[block, spec.layer, :, slot, : spec.head_dim]
    return keys, values


@pytest.mark.parametrize("block_size", [1, 2, 8, 16, 64])
@pytest.mark.parametrize("head_dim", [24, 64])
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "int8"])
def test_cache_write(
    backend: Backend, dtype: str, head_dim: int, block_size: int, rng: np.random.Generator
) -> None:
    """Keys and values land in their slots, rounded as the cache's type says; nothing else moves."""
    spec = spec_of(head_dim, rng, norms=False)
    pool = pool_for(spec, dtype, block_size)
    for array in pool._device.arrays():
        array[...] = 7
    batch = spans_batch(SPANS, pool, rng)
    x = rng.standard_normal((len(batch.token_ids), 7 * head_dim)).astype(np.float32)
    x[0, -head_dim:] = 0
    heads = rope(backend, x, spec, batch, pool).reshape(-1, 7, head_dim)
    block, slot = np.divmod(batch.slots, block_size)
    keys, values = stored(pool, batch, spec)
    sides = ((heads[:, 3:5], keys, pool.k_scale), (heads[:, 5:], values, pool.v_scale))
    for data, got, scale in sides:
        if dtype == "int8":
            top = np.abs(data).max(axis=-1)
            inverse = np.divide(np.float32(127), top, out=np.zeros_like(top), where=top > 0)
            assert scale is not None
            assert same_bits(scale[block, 1, :, slot], top / np.float32(127))
            data = np.rint(data * inverse[..., None]).astype(np.int8)
        elif dtype == "f16":
            data = data.astype(np.float16)
        elif dtype == "bf16":
            data = to_bf16(data)
        assert same_bits(np.ascontiguousarray(got), np.ascontiguousarray(data))
    untouched = np.ones((pool.layout.num_blocks, block_size), bool)
    untouched[block, slot] = False
    keys = pool.k.transpose(0, 4, 1, 2, 3)
    values = pool.v[..., :head_dim].transpose(0, 3, 1, 2, 4)
    for slots in (keys, values):
        assert (slots[untouched] == 7).all()
        assert (slots[:, :, [0, 2]] == 7).all(), "another layer was written"


def written_values(backend: Backend, values: F32, dtype: str) -> np.ndarray:
    """`values` (a multiple of 4,096) as the value cache keeps them; values are not rotated."""
    rows = values.reshape(-1, 16 * 256)
    pool = make_pool(dtype, num_blocks=-(-len(rows) // 16), num_kv_heads=16, head_dim=256)
    cos, sin = rope_table(RopeConfig(theta=10000.0), 256, len(rows))
    spec = AttentionSpec(0, 16, 16, 256, None, cos, sin)
    qk = np.zeros((len(rows), 2 * 16 * 256), np.float32)
    batch = spans_batch([(0, len(rows))], pool, np.random.default_rng(0))
    with np.errstate(invalid="ignore"):
        rope(backend, np.concatenate([qk, rows], axis=1), spec, batch, pool)
    return stored(pool, batch, spec)[1].reshape(-1)


def neighbours(exact: F32) -> F32:
    """Every value, the middle between it and the next, and both sides of that middle."""
    exact = np.sort(exact)
    middle = ((exact[:-1].astype(np.float64) + exact[1:]) / 2).astype(np.float32)
    around = [
        middle,
        np.nextafter(middle, np.float32(np.inf)),
        np.nextafter(middle, -np.float32(np.inf)),
    ]
    return np.concatenate([exact, *around])


def padded(values: F32) -> F32:
    return np.concatenate([values, np.zeros(-len(values) % 4096, np.float32)])


def test_every_f16_is_stored_rounded_to_even(backend: Backend) -> None:
    """All f16 numbers, all ties between them, and the numbers next to the ties; then saturation."""
    patterns = np.arange(65536, dtype=np.uint32).astype(np.uint16).view(np.float16)
    values = padded(neighbours(patterns[np.isfinite(patterns)].astype(np.float32)))
    got = written_values(backend, values, "f16")
    assert same_bits(got, values.astype(np.float16))
    beyond = [65504, 65519, 65520, 65536, 1e9, 3e38, np.inf, -65520, -1e30, -np.inf]
    limits = written_values(backend, padded(np.array(beyond, np.float32)), "f16")[: len(beyond)]
    assert limits.tolist() == [65504.0] * 7 + [-65504.0] * 3
    assert np.isnan(written_values(backend, padded(np.array([np.nan], np.float32)), "f16")[0])


def test_every_bf16_is_stored_rounded_to_even(backend: Backend) -> None:
    patterns = np.arange(65536, dtype=np.uint32)
    finite = patterns[(patterns & 0x7F80) != 0x7F80]
    near = np.concatenate([(finite << 16) + low for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)])
    values = padded(near.astype(np.uint32).view(np.float32))
    bits = values.view(np.uint32).astype(np.uint64)
    odd = (bits >> 16) & 1
    want = ((bits + 0x7FFF + odd) >> 16).astype(np.uint16)
    assert same_bits(written_values(backend, values, "bf16"), want)
    special = padded(np.array([np.nan, np.inf, -np.inf], np.float32))
    got = written_values(backend, special, "bf16")[:3]
    assert got[1:].tolist() == [0x7F80, 0xFF80]
    assert (got[0] & 0x7F80) == 0x7F80
    assert (got[0] & 0x7F) != 0


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_every_pattern_is_widened_exactly(variant: NativeBackend, kind: str) -> None:
    """All 65,536 patterns as weights: read by the linear kernels, and by the embedding."""
    patterns = np.arange(65536, dtype=np.uint32).astype(np.uint16)
    data = patterns.view(np.float16) if kind == "f16" else patterns
    with np.errstate(invalid="ignore"):  # signalling NaN, where the processor says so
        wide = FloatWeight(data[:, None]).dequantize()[:, 0]
    weight = variant.linear([FloatWeight(data[:, None])])
    got = apply(variant, lambda ops, x: ops.linear(x, weight), np.ones((1, 1), np.float32))[0]
    np.testing.assert_array_equal(got, wide)  # NaN equals NaN, and 0 equals -0 here
    table = variant.linear([FloatWeight(data.reshape(4096, 16))])
    compiled = variant.compile(lambda ops: ops.embed(table), make_pool(), max_rows=4096)
    rows = np.array(compiled.run(rows_batch(4096))).reshape(-1)
    numbers = ~np.isnan(wide)
    assert same_bits(rows[numbers], wide[numbers])
    assert np.isnan(rows[~numbers]).all()


def test_too_large_heads_are_refused(native: NativeBackend, rng: np.random.Generator) -> None:
    spec = spec_of(514, rng, norms=False)
    pool = pool_for(spec, "f32")
    batch = spans_batch([(0, 1)], pool, rng)
    with pytest.raises(ModelLoadError, match="514"):
        rope(native, np.zeros((1, 7 * 514), np.float32), spec, batch, pool)
