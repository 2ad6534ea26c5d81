"""What a sequence that just goes on keeps from step to step never shows: batches, draws, texts."""

from __future__ import annotations

import itertools

import numpy as np
from helpers.fake_engine import FakeEngine
from hypothesis import given
from hypothesis import strategies as st

from tinyserve.engine.batch import BatchBuilder
from tinyserve.engine.kernel_draws import draws_of, extended
from tinyserve.engine.plan import Chunk
from tinyserve.engine.sampling import SampleRow, SamplingParams
from tinyserve.kernels.ops import Batch, KVLayout
from tinyserve.kv.pool import KVPool

SIZE = 4
POOL = KVPool(KVLayout(64, SIZE, 1, 1, 16, "f32"), num_swap_blocks=0)

chunks_of_a_step = st.lists(
    st.tuples(st.integers(0, 9), st.integers(1, 5), st.integers(0, 5), st.randoms()),
    min_size=1,
    max_size=5,
)


def chunk(seq_id: int, start: int, length: int, num_logits: int, blocks: list[int]) -> Chunk:
    ids = tuple(blocks[: -(-(start + length) // SIZE)])
    return Chunk(seq_id, start, tuple(range(length)), ids, min(num_logits, length))


def check(batch: Batch, chunks: list[Chunk]) -> None:
    """Row by row, as `Batch` is documented."""
    row, logit_rows = 0, []
    for index, part in enumerate(chunks):
        begin, end = batch.block_starts[index : index + 2]
        assert tuple(batch.block_ids[begin:end][: len(part.block_ids)]) == part.block_ids
        assert batch.seq_starts[index] == row
        for offset, token in enumerate(part.token_ids):
            position = part.start + offset
            assert (batch.token_ids[row], batch.positions[row]) == (token, position)
            block = part.block_ids[position // SIZE]
            assert batch.slots[row] == block * SIZE + position % SIZE
            row += 1
        logit_rows += range(row - part.num_logits, row)
    assert batch.seq_starts[-1] == row == len(batch.token_ids)
    assert batch.logit_rows.tolist() == logit_rows


@given(st.lists(chunks_of_a_step, min_size=1, max_size=6), st.randoms())
def test_a_batch_is_its_chunks(
    steps: list[list[tuple[int, int, int, object]]], order: object
) -> None:
    """Whatever the steps before it: the same sequences with other blocks, more, fewer, in another
    order.
    """
    builder = BatchBuilder(POOL)
    for step in steps:
        chunks = []
        seq_ids = list(range(6))
        order.shuffle(seq_ids)  # type: ignore[attr-defined]
        for seq_id, (start, length, num_logits, random) in zip(seq_ids, step, strict=False):
            blocks = list(range(8))
            random.shuffle(blocks)  # type: ignore[attr-defined]
            chunks.append(chunk(seq_id, start, length, num_logits, blocks))
        check(builder.of(chunks), chunks)


def test_decodes_of_the_same_sequences_are_one_batch_with_other_numbers() -> None:
    builder = BatchBuilder(POOL)
    first = builder.of([Chunk(0, 4, (1,), (5, 3), 1), Chunk(1, 0, (1,), (7,), 1)])
    first.prepared = "by the back end"
    for chunks in (
        [Chunk(0, 5, (2,), (5, 3), 1), Chunk(1, 1, (3,), (7,), 1)],
        [Chunk(0, 8, (2,), (5, 3, 9), 1), Chunk(1, 2, (2,), (7,), 1)],
        [Chunk(0, 9, (4,), (5, 4, 9), 1), Chunk(1, 3, (2,), (6,), 1)],
    ):
        batch = builder.of(chunks)
        check(batch, chunks)
        assert batch is first


def test_what_is_not_a_decode_of_the_same_sequences_is_a_batch_of_its_own() -> None:
    builder = BatchBuilder(POOL)
    decodes = [Chunk(0, 4, (1,), (5, 3), 1), Chunk(1, 0, (1,), (7,), 1)]
    drafted = [Chunk(0, 4, (1, 2), (5, 3), 2), Chunk(1, 0, (1,), (7,), 1)]
    silent = [Chunk(0, 4, (1,), (5, 3), 0), Chunk(1, 0, (1,), (7,), 1)]
    crowded = [Chunk(0, 4, (1,), (5, 3), 1), Chunk(1, 72, (1,), tuple(range(8, 27)), 1)]
    batches = []
    for chunks in (decodes, drafted, decodes, silent, decodes, decodes[::-1], decodes[1:], crowded):
        batches.append(builder.of(chunks))
        check(batches[-1], chunks)
    assert len(set(map(id, batches))) == len(batches)


def test_a_sequence_that_stays_when_another_leaves_goes_on_in_its_block() -> None:
    builder = BatchBuilder(POOL)
    blocks = (7, 2)
    both = [Chunk(0, 4, (1,), (5, 3), 1), Chunk(1, 4, (1,), blocks, 1)]
    check(builder.of(both), both)
    for start in (5, 6, 7):  # the second of these is the batch of the first with other numbers
        alone = [Chunk(1, start, (2,), blocks, 1)]
        check(builder.of(alone), alone)


def test_a_row_after_drafts_counts_them_among_its_outputs() -> None:
    params = SamplingParams(temperature=0.5, presence_penalty=1.0)
    row = SampleRow(0, params, 7, 0, 6, (1, 2), [3, 4], drafted_ids=[5, 6])
    (draw,) = draws_of([row], 0, 100)
    assert draw.output_ids is not None
    assert draw.output_ids.tolist() == [3, 4, 5, 6]
    (again,) = draws_of([row], 0, 100)
    assert again.output_ids is not None
    assert again.output_ids.tolist() == [3, 4, 5, 6]


@given(st.lists(st.integers(0, 1000), max_size=80), st.lists(st.integers(0, 80), max_size=8))
def test_extended_arrays_hold_the_ids(ids: list[int], cuts: list[int]) -> None:
    known = np.array([], np.int32)
    for end in [*sorted(min(cut, len(ids)) for cut in cuts), len(ids)]:
        known = extended(known, ids[:end])
        assert known.tolist() == ids[:end]


def test_a_row_that_comes_again_brings_its_draw_up_to_date() -> None:
    params = SamplingParams(temperature=0.5, presence_penalty=1.0, repetition_penalty=1.5)
    outputs: list[int] = []
    row = SampleRow(3, params, 7, 0, 2, (1, 2), outputs)
    (draw,) = draws_of([row], 1, 100)
    assert draw.output_ids is not None
    assert (draw.row, draw.position, draw.output_ids.tolist()) == (2, 2, [])
    for count in range(1, 40):
        outputs.append(count)
        row.row, row.position = count % 5, 2 + count
        (again,) = draws_of([row], 0, 100)
        assert again is draw
        assert (draw.row, draw.position) == (count % 5, 2 + count)
        assert draw.output_ids.tolist() == outputs


def test_only_a_sequence_that_just_goes_on_hands_in_the_same_row() -> None:
    engine = FakeEngine(eos_token_ids=(100,))
    plain = engine.add([1, 2, 3], max_tokens=8)
    banned = engine.add([1, 2, 4], max_tokens=8, min_tokens=4)
    ignoring = engine.add([1, 2, 5], max_tokens=8, ignore_eos=True)
    rows: dict[str, list[SampleRow]] = {plain: [], banned: [], ignoring: []}
    draw = engine.core._draw

    def spy(logits: object, step: list[SampleRow]) -> object:
        for name, row in zip(rows, step, strict=True):
            rows[name].append(row)
        return draw(logits, step)  # type: ignore[arg-type]

    engine.core._draw = spy  # type: ignore[assignment]
    engine.run()
    for name, is_kept in ((plain, True), (banned, False), (ignoring, True)):
        pairs = itertools.pairwise(rows[name][1:])  # the first is of the prompt
        assert len(rows[name]) == 8
        assert all((a is b) == is_kept for a, b in pairs), name
