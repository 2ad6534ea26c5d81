"""Sequences that begin with the same blocks attend to them together, and no bit tells."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from attention_cases import Shape, filled_pool, queries
from helpers.native import exact_variants
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_tools import same_bits

from tinyserve.kernels.formats import F32, FloatWeight
from tinyserve.kernels.native import NativeBackend
from tinyserve.kernels.ops import Batch
from tinyserve.kernels.recorder import Program
from tinyserve.kv.pool import KVPool


@dataclass(frozen=True)
class Branch:
    """A sequence of a step: it begins with `shared` blocks of an earlier one (`parent`, modulo
    their number), has `own` positions after those, and asks for its last `tokens`.
    """

    parent: int
    shared: int
    own: int
    tokens: int


def family_batch(branches: list[Branch], pool: KVPool, rng: np.random.Generator) -> Batch:
    """The step of these sequences; new blocks are dealt at random."""
    size = pool.layout.block_size
    deck = rng.permutation(pool.layout.num_blocks).tolist()
    tables: list[list[int]] = []
    lengths: list[int] = []
    for i, branch in enumerate(branches):
        # a parent's last block may be half full: nobody else's then
        full = lengths[branch.parent % i] // size if i else 0
        shared = tables[branch.parent % i][: min(branch.shared, full)] if i else []
        lengths.append(len(shared) * size + branch.own)
        count = -(-lengths[-1] // size) - len(shared)
        tables.append([*shared, *(deck.pop() for _ in range(count))])
    tokens = [min(b.tokens, b.own) for b in branches]
    ends = zip(tokens, lengths, strict=True)
    positions = np.concatenate([np.arange(stop - count, stop) for count, stop in ends])
    total = len(positions)
    return Batch(
        token_ids=np.arange(total, dtype=np.int32),
        positions=positions.astype(np.int32),
        slots=np.zeros(total, np.int32),
        seq_starts=np.cumsum([0, *tokens]).astype(np.int32),
        block_ids=np.concatenate(tables).astype(np.int32),
        block_starts=np.cumsum([0, *map(len, tables)]).astype(np.int32),
        logit_rows=np.arange(total, dtype=np.int32),
    )


def compiled(shape: Shape, x: F32, pool: KVPool, variant: str = "", threads: int = 2) -> Program:
    backend = NativeBackend(threads, variant)
    table = backend.linear([FloatWeight(x)])
    return backend.compile(
        lambda ops: ops.paged_attention(ops.embed(table), shape.spec), pool, max_rows=len(x)
    )


def attend(program: Program, batch: Batch, *, cascade: bool) -> F32:
    program.cascade = cascade
    return np.array(program.run(batch))


SHAPES = st.sampled_from(
    [
        *(Shape(dtype=dtype) for dtype in ("f32", "f16", "bf16", "int8")),
        Shape(group=1, kv_heads=2, head_dim=16),
        Shape(group=8, kv_heads=1, head_dim=24, dtype="int8"),
        Shape(group=25, kv_heads=1, head_dim=16),
        Shape(window=100, dtype="f16"),
        Shape(window=300, dtype="int8"),
        Shape(block_size=4, dtype="int8"),
        Shape(block_size=8, dtype="f16", head_dim=24),
        Shape(block_size=32, dtype="int8"),
        Shape(block_size=64),
    ]
)
BRANCHES = st.builds(
    Branch,
    parent=st.integers(0, 20),
    shared=st.integers(0, 40),
    own=st.one_of(st.integers(1, 40), st.integers(200, 700)),
    tokens=st.sampled_from((1, 1, 1, 2, 5, 30)),  # decodes, drafts to verify, a chunk
)


@settings(max_examples=60, deadline=None)
@given(SHAPES, st.lists(BRANCHES, min_size=2, max_size=14), st.integers(0, 2**32 - 1))
def test_grouping_changes_no_bit(shape: Shape, branches: list[Branch], seed: int) -> None:
    rng = np.random.default_rng(seed)
    most = sum(-(-branch.own // shape.block_size) for branch in branches) * shape.block_size
    pool = filled_pool(shape, most, rng)
    batch = family_batch(branches, pool, rng)
    x = queries(shape, len(batch.token_ids), rng)
    want = attend(compiled(shape, x, pool, threads=1), batch, cascade=False)
    for variant in exact_variants():
        program = compiled(shape, x, pool, variant)
        assert same_bits(attend(program, batch, cascade=True), want), variant


def shared_prefix(prefix_blocks: int, streams: int, own: int = 20) -> list[Branch]:
    """One sequence of `prefix_blocks` blocks, and `streams` that begin with all of it."""
    first = Branch(parent=0, shared=0, own=prefix_blocks * 16, tokens=1)
    return [first, *[Branch(0, prefix_blocks, own, 1)] * streams]


def keys_read(branches: list[Branch], shape: Shape, *, cascade: bool) -> int:
    rng = np.random.default_rng(0)
    pool = filled_pool(shape, sum(branch.own + 16 for branch in branches), rng)
    batch = family_batch(branches, pool, rng)
    program = compiled(shape, queries(shape, len(batch.token_ids), rng), pool)
    attend(program, batch, cascade=cascade)
    return program.keys_read


def test_shared_blocks_are_read_once_for_a_tile_of_rows(native: NativeBackend) -> None:
    """992 shared keys, eight sequences of three heads a tile: eight of them, then the ninth."""
    branches = shared_prefix(62, 7)
    assert keys_read(branches, Shape(), cascade=False) == 8 * 992 + 7 * 20
    assert keys_read(branches, Shape(), cascade=True) == 992 + 7 * 20
    assert keys_read(shared_prefix(62, 8), Shape(), cascade=True) == 2 * 992 + 8 * 20


def test_a_prefix_that_ends_inside_a_partition_is_shared_too(native: NativeBackend) -> None:
    """Also where the whole context is shorter than a partition."""
    assert keys_read(shared_prefix(8, 7), Shape(), cascade=True) == 128 + 7 * 20


def test_strangers_are_not_grouped(native: NativeBackend) -> None:
    strangers = [Branch(parent=0, shared=0, own=300, tokens=1)] * 5
    assert keys_read(strangers, Shape(), cascade=True) == 5 * 300


def test_two_families_are_two_groups(native: NativeBackend) -> None:
    """Both begin alike; each keeps what its own members share."""
    root = Branch(0, 0, own=4 * 16, tokens=1)
    heads = [Branch(0, 4, own=12 * 16, tokens=1), Branch(0, 4, own=12 * 16, tokens=1)]
    members = [Branch(1, 16, 10, 1)] * 2 + [Branch(2, 16, 10, 1)] * 2
    read = keys_read([root, *heads, *members], Shape(), cascade=True)
    assert read <= 64 + 2 * 256 + 4 * 10  # the root's keys once more for it alone, at most
