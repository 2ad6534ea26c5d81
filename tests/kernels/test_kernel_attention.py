"""Paged attention: against numpy for every shape, and bit for bit against itself for every cut."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from attention_cases import Shape, bits, filled_pool, queries
from helpers.native import exact_variants
from kernel_tools import bind, same_bits, spans_batch

from tinyserve.kernels.formats import F32
from tinyserve.kernels.native import NativeBackend
from tinyserve.kernels.ops import Backend, Batch
from tinyserve.kernels.reference import ReferenceBackend
from tinyserve.kv.pool import KVPool


def attention(backend: Backend, shape: Shape, x: F32, pool: KVPool) -> Callable[[Batch], F32]:
    return bind(backend, lambda ops, qkv: ops.paged_attention(qkv, shape.spec), x, pool=pool)


def attend(backend: Backend, shape: Shape, x: F32, batch: Batch, pool: KVPool) -> F32:
    return attention(backend, shape, x, pool)(batch)


SHAPES = [
    *(Shape(group=group, kv_heads=1 + group % 2) for group in range(1, 9)),
    Shape(group=32, kv_heads=1, head_dim=32),
    Shape(group=25, kv_heads=1, head_dim=16, dtype="f16"),
    *(Shape(head_dim=d, dtype=t) for d, t in ((8, "f16"), (24, "int8"), (40, "bf16"))),
    *(Shape(head_dim=d, dtype=t) for d, t in ((80, "f32"), (128, "f16"), (256, "f32"))),
    *(Shape(window=w, dtype=t) for w, t in ((1, "f32"), (5, "f16"), (100, "int8"), (300, "f32"))),
    Shape(window=16, group=8, kv_heads=1),
    Shape(window=257, block_size=4, dtype="bf16"),
    *(Shape(block_size=b, dtype="f32") for b in (1, 2, 4, 8, 32, 64)),
    *(Shape(block_size=b, dtype="int8") for b in (1, 4, 8, 32, 64)),
    *(Shape(block_size=b, dtype="f16", head_dim=24) for b in (2, 64)),
    Shape(block_size=8, head_dim=256, group=32, kv_heads=1, spans=((0, 9), (270, 272))),
    Shape(block_size=1, head_dim=512, group=2, kv_heads=1, spans=((0, 9), (270, 272))),
    Shape(dtype="bf16", block_size=256),
]


def case(shape: Shape, rng: np.random.Generator) -> tuple[F32, Batch, KVPool]:
    """A step over a cache whose slots all hold numbers."""
    pool = filled_pool(shape, sum(stop for _, stop in shape.spans), rng)
    batch = spans_batch(shape.spans, pool, rng)
    return queries(shape, len(batch.token_ids), rng), batch, pool


def spoil(shape: Shape, batch: Batch, pool: KVPool, garbage: float) -> None:
    """Put garbage wherever no sequence of the batch has written."""
    dead = np.ones((pool.layout.num_blocks, shape.block_size), bool)
    for sequence, (_, stop) in enumerate(shape.spans):
        blocks = batch.block_ids[batch.block_starts[sequence] :]
        positions = np.arange(stop)
        dead[blocks[positions // shape.block_size], positions % shape.block_size] = False
    assert dead.any()
    pool.k.transpose(0, 4, 1, 2, 3)[dead] = bits(garbage, pool.k.dtype)
    pool.v.transpose(0, 3, 1, 2, 4)[dead] = bits(garbage, pool.v.dtype)
    for scale in (pool.k_scale, pool.v_scale):
        if scale is not None:
            scale.transpose(0, 3, 1, 2)[dead] = garbage


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_agrees_with_numpy(native: NativeBackend, shape: Shape, rng: np.random.Generator) -> None:
    x, batch, pool = case(shape, rng)
    got = attend(native, shape, x, batch, pool)
    want = attend(ReferenceBackend(), shape, x, batch, pool)
    np.testing.assert_allclose(got, want, atol=5e-6)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_cuts_threads_and_variants_change_no_bit(
    shape: Shape, native: NativeBackend, rng: np.random.Generator
) -> None:
    """A token's result is the same in its chunk, alone, in parts, and beside others."""
    x, batch, pool = case(shape, rng)
    spoil(shape, batch, pool, np.nan)
    want = attend(native, shape, x, batch, pool)
    for name in exact_variants():
        got = attend(NativeBackend(3, name), shape, x, batch, pool)
        assert same_bits(got, want), name
    run = attention(native, shape, x, pool)
    for sequence in range(len(shape.spans)):
        first, stop = batch.seq_starts[sequence : sequence + 2]
        for begin in range(first, stop, max(1, (stop - first) // 5)):
            for end in {begin + 1, min(begin + 7, stop)}:
                got = run(cut(batch, sequence, begin, end))
                assert same_bits(got, want[begin:end]), f"rows {begin} to {end}"


def cut(batch: Batch, sequence: int, begin: int, end: int) -> Batch:
    """The batch's token rows begin .. end - 1, all of `sequence`, as a step of their own."""
    table = slice(*batch.block_starts[sequence : sequence + 2])
    blocks = batch.block_ids[table].copy()
    return Batch(
        token_ids=batch.token_ids[begin:end].copy(),
        positions=batch.positions[begin:end].copy(),
        slots=batch.slots[begin:end].copy(),
        seq_starts=np.array([0, end - begin], np.int32),
        block_ids=blocks,
        block_starts=np.array([0, len(blocks)], np.int32),
        logit_rows=np.arange(end - begin, dtype=np.int32),
    )


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_slots_beyond_a_position_are_never_seen(
    native: NativeBackend, shape: Shape, rng: np.random.Generator
) -> None:
    """Whatever lies behind a sequence's last position, or in free blocks, changes no bit."""
    x, batch, pool = case(shape, rng)
    clean = attend(native, shape, x, batch, pool)
    for garbage in (3e4, np.inf, np.nan):
        spoil(shape, batch, pool, garbage)
        assert same_bits(attend(native, shape, x, batch, pool), clean)


@pytest.mark.parametrize("dtype", ["f32", "int8"])
@pytest.mark.parametrize("block_size", [4, 16])
def test_damaged_keys_hurt_their_own_sequence_alone(
    native: NativeBackend, dtype: str, block_size: int, rng: np.random.Generator
) -> None:
    shape = Shape(dtype=dtype, block_size=block_size)
    x, batch, pool = case(shape, rng)
    clean = attend(native, shape, x, batch, pool)
    block = batch.block_ids[batch.block_starts[3]]
    if dtype == "int8":
        assert pool.v_scale is not None
        pool.v_scale[block, ..., 0] = np.nan
    else:
        pool.v[block, :, :, 0] = np.nan
    hurt = attend(native, shape, x, batch, pool)
    rows = slice(*batch.seq_starts[3:5])
    assert np.isnan(hurt[rows]).all()
    others = np.ones(len(hurt), bool)
    others[rows] = False
    assert same_bits(hurt[others], clean[others])


def test_one_key_is_copied(variant: NativeBackend, rng: np.random.Generator) -> None:
    """At position 0 the only key has weight 1, however large or small its score."""
    shape = Shape(head_dim=16, group=1, kv_heads=1)
    for size in (0.0, 1e-30, 1.0, 1e15):
        pool = filled_pool(shape, 16, rng)
        batch = spans_batch([(0, 1)], pool, rng)
        x = queries(shape, 1, rng) * np.float32(size)
        got = attend(variant, shape, x, batch, pool)
        assert same_bits(got[0], pool.v[batch.block_ids[0], 1, 0, 0, :16])


@pytest.mark.parametrize("spread", [0.0, 30.0, 200.0])
def test_extreme_scores(variant: NativeBackend, spread: float, rng: np.random.Generator) -> None:
    """Equal scores, and scores whose weights underflow, in several partitions."""
    shape = Shape(head_dim=16)
    pool = filled_pool(shape, 900, rng)
    batch = spans_batch([(0, 3), (797, 800)], pool, rng)
    x = queries(shape, 6, rng) * np.float32(spread)
    want = attend(ReferenceBackend(), shape, x, batch, pool)
    np.testing.assert_allclose(attend(variant, shape, x, batch, pool), want, atol=4e-5)
