"""Random operations: every invariant holds after each, and every slot holds what its owner
computed.
"""

from __future__ import annotations

import random
from collections.abc import Hashable, Sequence

import pytest
from helpers.kv_model import KVModel, random_operation

NUM_OPERATIONS = 10_000


def colliding_hash(parent: Hashable, tokens: Sequence[int]) -> Hashable:
    """Three values for everything: nearly every lookup collides."""
    return hash((parent, sum(tokens))) % 3


@pytest.mark.parametrize(
    "model",
    [
        KVModel(num_blocks=12, num_swap_blocks=8),
        KVModel(num_blocks=40, num_swap_blocks=3),
        KVModel(num_blocks=9, block_size=1, num_swap_blocks=30),
        KVModel(num_blocks=12, num_swap_blocks=8, hash_block=colliding_hash),
        KVModel(num_blocks=12, num_swap_blocks=8, caching=False),
    ],
    ids=["tiny", "roomy", "block-of-one", "colliding-hash", "no-cache"],
)
def test_random_operations_keep_every_invariant(model: KVModel, rng: object) -> None:
    dice = random.Random(int(rng.integers(2**32)))  # type: ignore[attr-defined]
    for _ in range(NUM_OPERATIONS):
        random_operation(model, dice)
        model.kv.check()
    model.step_end()
    for owner in list(model.owners):
        model.free(owner)
    model.kv.clear_cache()
    model.kv.check()
    assert model.kv.num_free == model.kv.num_blocks
    assert model.kv.arena.num_free == model.kv.arena.num_slots
    counters = model.kv.counters
    assert counters.swapped_out_blocks
    assert counters.swapped_in_blocks
    assert counters.cow_copies or model.block_size == 1  # then no block is ever partly filled
