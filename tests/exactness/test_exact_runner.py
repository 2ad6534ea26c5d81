"""The exactness matrix: logits bit for bit, whatever shares the batch and however it is scheduled.

Every weight format with every KV type, on every instruction set with a fused multiply-add, with
random threads, block sizes and schedules, against each sequence alone in one chunk on one thread.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest
from exact_models import KV_DTYPES, SHAPES, WEIGHTS, decoder_of, make_runner, truth_of
from helpers.native import exact_variants
from random_walk import Walk, make_sequences

pytestmark = pytest.mark.usefixtures("native_kernels")

# Every weight format with every KV type; the models take turns.
CELLS = [
    (weights, kv_dtype, list(SHAPES)[(i + j) % 2])
    for i, weights in enumerate(WEIGHTS)
    for j, kv_dtype in enumerate(KV_DTYPES)
]


def walk(weights: str, kv_dtype: str, shape: str, variant: str, seed: str) -> Counter[str]:
    """One random schedule over 48 sequences in a pool that holds about half of them."""
    rand = random.Random(seed)
    sequences = make_sequences(rand, 48, num_long=3)
    block_size = rand.choice((4, 8, 16, 16, 32))
    num_blocks = 1600 // block_size
    runner = make_runner(
        decoder_of(weights, shape),
        kv_dtype,
        threads=rand.randint(1, 4),
        variant=variant,
        bf16x2=weights == "bf16x2",
        num_blocks=num_blocks,
        block_size=block_size,
        num_swap_blocks=num_blocks // 2,
        max_tokens=256,
    )
    return Walk(runner, truth_of(weights, shape, kv_dtype), sequences, rand).run()


@pytest.mark.parametrize(("weights", "kv_dtype", "shape"), CELLS)
def test_every_schedule_gives_the_same_bits(weights: str, kv_dtype: str, shape: str) -> None:
    total: Counter[str] = Counter()
    for variant in exact_variants():
        total += walk(weights, kv_dtype, shape, variant, f"{weights} {kv_dtype} {shape} {variant}")
    assert total["rows"] > 700
    for event in ("swaps", "recomputed", "prefix hits", "forks", "drafts", "co-batch of 33"):
        assert total[event] > 0, f"the schedules had no {event}: {total}"
