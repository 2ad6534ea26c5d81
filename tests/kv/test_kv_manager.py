"""KVManager: all or nothing, copy-on-write, swapping, and the order of transfers within a step."""

from __future__ import annotations

import pytest
from helpers.kv_model import KVModel, snapshot

from tinyserve.config import CacheConfig
from tinyserve.kv.manager import KVManager


def test_config_sizes_the_manager() -> None:
    kv = KVManager.from_config(CacheConfig(block_size=8, num_blocks=5, num_swap_blocks=3))
    assert (kv.num_blocks, kv.block_size, kv.arena.num_slots) == (5, 8, 3)
    assert kv.num_available == 5
    assert kv.is_caching
    assert kv.bookkeeping_bytes() > 0
    uncached = CacheConfig(block_size=8, num_blocks=5, enable_prefix_caching=False)
    assert not KVManager.from_config(uncached).is_caching


def test_opening_what_does_not_fit_changes_nothing() -> None:
    model = KVModel(num_blocks=4)
    assert not model.open(model.new([1] * 17))  # the model compares before and after
    assert model.open(model.new([1] * 16))


def test_blocks_to_keep_free_are_kept() -> None:
    model = KVModel(num_blocks=4)
    assert not model.open(model.new([1] * 9), keep_free=2)
    assert model.open(model.new([1] * 9), keep_free=1)


def test_a_hit_on_parked_blocks_uses_them_up() -> None:
    """Revived blocks and new ones are both counted before any change."""
    model = KVModel(num_blocks=4)
    model.free(model.compute([1] * 8 + [2]))
    assert model.kv.num_cached == 2
    assert not model.open(model.new([1] * 17))  # two revived and three new of four
    assert not model.open(model.new([1] * 13), keep_free=1)
    assert model.open(model.new([1] * 13))


def test_growth_that_does_not_fit_changes_nothing() -> None:
    model = KVModel(num_blocks=3)
    owner = model.compute([1] * 8)
    owner.tokens += [2] * 5
    assert not model.write(owner)
    assert model.write(owner, 12)


def test_growth_evicts_what_is_cached() -> None:
    model = KVModel(num_blocks=3)
    model.free(model.compute([1] * 8))
    owner = model.compute([2] * 4)
    owner.tokens += [2] * 8
    assert model.write(owner)
    model.step_end()
    assert model.kv.num_cached == 0


def test_the_first_writer_after_a_fork_copies_and_the_second_does_not() -> None:
    model = KVModel()
    parent = model.compute([1] * 6)
    child = model.fork(parent)
    child.tokens[-1] = 5
    parent.tokens += [4]
    assert model.write(child)
    assert model.write(parent)
    assert model.kv.counters.cow_copies == 1
    assert child.table.blocks[0] == parent.table.blocks[0]
    assert child.table.blocks[1] != parent.table.blocks[1]
    model.step_end()


def test_a_fork_on_a_block_boundary_copies_nothing() -> None:
    model = KVModel()
    parent = model.compute([1] * 8)
    child = model.fork(parent)
    parent.tokens += [4]
    assert model.write(child)
    assert model.write(parent)
    assert model.kv.counters.cow_copies == 0
    model.step_end()


def test_appending_gives_the_same_ids_until_a_token_falls_into_another_block() -> None:
    kv = KVManager(4, 4)
    owner = KVModel().new([1] * 5)
    assert kv.open(owner.table, owner.tokens) == 0
    ids = [kv.append(owner.table, position) for position in range(4, 10)]
    assert all(a is ids[0] for a in ids[:4])
    assert ids[0] == tuple(owner.table.blocks[:2])
    assert ids[4] is ids[5]
    assert ids[4] == tuple(owner.table.blocks)
    kv.check()


def test_appending_where_blocks_are_short_changes_nothing() -> None:
    kv = KVManager(1, 4)
    owner = KVModel().new([1] * 4)
    kv.open(owner.table, owner.tokens)
    assert kv.append(owner.table, 3) is not None
    before = snapshot(kv, [owner])
    assert kv.append(owner.table, 4) is None
    assert snapshot(kv, [owner]) == before
    assert kv.append(owner.table, 3) == (0,)


def test_what_is_appended_after_a_fork_is_copied_first() -> None:
    model = KVModel()
    parent = model.compute([1] * 5)
    parent.tokens += [4, 4]
    assert model.write(parent, 6)
    model.step_end()
    child = model.fork(parent)
    source = parent.table.blocks[1]
    for owner in (parent, child):
        ids = model.kv.append(owner.table, 6)
        assert ids is not None
        model.writes[owner] = 7
    assert model.kv.counters.cow_copies == 1
    assert {parent.table.blocks[1], child.table.blocks[1]} > {source}
    model.step_end()


def test_check_notices_a_last_block_that_has_another_owner() -> None:
    kv = KVManager(4, 4, enable_prefix_caching=False)
    owner = KVModel().new([1] * 5)
    kv.open(owner.table, owner.tokens)
    kv.append(owner.table, 5)
    table = owner.table
    tail_start, tail_stop = table.tail_start, table.tail_stop
    kv.fork(owner.table, 5)
    kv.check()
    table.tail_start, table.tail_stop = tail_start, tail_stop
    with pytest.raises(AssertionError, match="another may write"):
        kv.check()


def test_a_copy_that_does_not_fit_changes_nothing() -> None:
    model = KVModel(num_blocks=2)
    parent = model.compute([1] * 6)
    child = model.fork(parent)
    assert not model.write(child)
    model.free(parent)
    assert model.write(child)
    assert model.kv.counters.cow_copies == 0, "the last owner writes in place"
    model.step_end()


def test_the_source_of_a_copy_is_not_reused_in_the_same_step() -> None:
    """The child copies; the parent is then dropped. Its block must survive until the copy ran."""
    model = KVModel(num_blocks=4, caching=False)
    parent = model.compute([1] * 6)
    child = model.fork(parent)
    assert model.write(child)
    source = parent.table.blocks[1]
    model.free(parent)
    takers = [model.new([token] * 4) for token in (7, 8)]
    assert model.open(takers[0])
    assert not model.open(takers[1]), "the source is not free before the step is planned"
    model.step_end()
    assert model.open(takers[1])
    assert takers[1].table.blocks == [source]


def test_swapping_out_and_in_restores_every_token() -> None:
    model = KVModel(caching=False)
    owner = model.compute([1, 2, 3, 4, 5, 6])
    assert model.swap_out(owner)
    assert model.kv.num_free == model.num_blocks
    assert model.kv.arena.num_free == model.num_swap_blocks - 2
    model.compute([9] * 44)  # tramples on everything
    model.free(model.owners[-1])
    owner.tokens.append(7)
    assert model.open(owner)
    assert owner.num_computed == 6
    model.step_end()
    assert model.kv.arena.num_free == model.num_swap_blocks


def test_shared_blocks_are_matched_again_and_the_rest_is_restored() -> None:
    model = KVModel()
    owner = model.compute([1, 2, 3, 4, 5, 6])
    other = model.compute([1, 2, 3, 4, 8])
    assert model.swap_out(owner)
    model.step_end()
    owner.tokens.append(7)
    assert model.open(owner)
    assert owner.table.blocks[0] == other.table.blocks[0]
    assert model.kv.counters.swapped_in_blocks == 1
    model.step_end()


def test_blocks_that_move_are_counted() -> None:
    model = KVModel(num_swap_blocks=6, caching=False)
    owners = [model.compute([i] * 6) for i in range(2)]
    for owner in owners:
        owner.tokens.append(9)
        assert model.swap_out(owner)
    model.step_end()
    for owner in owners:
        assert model.open(owner)
        assert model.write(owner)
    model.step_end()
    for owner in owners:
        child = model.fork(owner)
        owner.tokens.append(8)
        assert model.write(child)
        assert model.write(owner)
        model.step_end()
    counters = model.kv.counters
    assert (counters.swapped_out_blocks, counters.swapped_in_blocks) == (4, 4)
    assert counters.cow_copies == 2


def test_a_full_arena_refuses_and_changes_nothing() -> None:
    model = KVModel(num_swap_blocks=1)
    owner = model.compute([1] * 6)
    assert not model.swap_out(owner)
    model.drop(owner)
    assert model.open(owner)
    assert owner.num_computed == 4  # its full block is still cached
    assert model.write(owner)
    model.step_end()


def test_a_slot_that_is_read_is_not_overwritten_in_the_same_step() -> None:
    """Swap-outs run first: one must not land in the slot that this step's swap-in reads."""
    model = KVModel(num_swap_blocks=1, caching=False)
    first, second = model.compute([1] * 4), model.compute([2] * 4)
    assert model.swap_out(first)
    model.step_end()
    first.tokens.append(3)
    assert model.open(first)
    assert not model.swap_out(second), "the only slot is still being read"
    model.step_end()
    assert model.swap_out(second)
    model.step_end()


def test_a_block_freed_by_a_swap_out_may_be_filled_in_the_same_step() -> None:
    model = KVModel(num_blocks=3, num_swap_blocks=3, caching=False)
    first = model.compute([1] * 6)
    assert model.swap_out(first)
    second = model.new([2] * 12)
    assert model.open(second)  # takes the very blocks that are being saved
    assert model.write(second)
    model.step_end()
    model.free(second)
    first.tokens.append(1)
    assert model.open(first)
    model.step_end()


def test_a_fork_then_swap_of_either_keeps_both() -> None:
    model = KVModel(num_swap_blocks=8)
    parent = model.compute([1] * 6)
    child = model.fork(parent)
    assert model.swap_out(child)
    parent.tokens += [3] * 4
    assert model.write(parent)
    model.step_end()
    assert model.kv.counters.cow_copies == 0
    assert model.open(child)
    assert model.write(child)
    model.step_end()


def test_a_swapped_sequence_gives_its_slots_back_when_it_is_freed() -> None:
    model = KVModel()
    owner = model.compute([1] * 6)
    assert model.swap_out(owner)
    model.step_end()
    model.free(owner)
    model.kv.free(owner.table)  # twice is once
    model.verify()
    assert model.kv.arena.num_free == model.num_swap_blocks


def test_free_is_idempotent_in_every_state() -> None:
    model = KVModel()
    owner = model.new([1] * 6)
    model.kv.free(owner.table)
    model.kv.free(owner.table)
    assert model.open(owner)
    model.free(owner)
    before = snapshot(model.kv)
    model.kv.free(owner.table)
    assert snapshot(model.kv) == before


def test_block_ids_cover_the_chunk_and_are_cached_between_changes() -> None:
    model = KVModel()
    owner = model.compute([1] * 9)
    ids = owner.table.ids(3)
    assert ids == tuple(owner.table.blocks)
    assert owner.table.ids(3) is ids
    assert owner.table.ids(2) == ids[:2]
    owner.tokens += [1] * 4
    assert model.write(owner)
    assert owner.table.ids(4) == (*ids, owner.table.blocks[3])
    model.step_end()


def test_check_notices_a_lost_block() -> None:
    model = KVModel()
    owner = model.compute([1] * 9)
    model.kv._allocator.retain(owner.table.blocks[0])
    with pytest.raises(AssertionError, match="references"):
        model.kv.check()


def test_check_notices_a_block_that_is_owned_and_free() -> None:
    model = KVModel()
    owner = model.compute([1] * 9)
    model.kv._allocator._free.append(owner.table.blocks[0])
    with pytest.raises(AssertionError, match="free list"):
        model.kv.check()


def test_check_notices_a_lost_swap_slot() -> None:
    model = KVModel()
    model.kv.arena.try_take(1)
    with pytest.raises(AssertionError, match="swap slot"):
        model.kv.check()
