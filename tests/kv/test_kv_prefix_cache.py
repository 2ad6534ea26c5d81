"""The prefix cache: what is found, what is never found, and what goes first."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import pytest
from helpers.kv_model import KVModel, snapshot

from tinyserve.kv.block_table import BlockTable
from tinyserve.kv.prefix_cache import PrefixCache

PROMPT = list(range(12))  # three blocks of four


def hits(model: KVModel, tokens: Sequence[int], salt: str | None = None) -> int:
    """How many tokens a newcomer with `tokens` would find computed. Changes nothing."""
    table = BlockTable(salt)
    return len(model.kv._hits(table, tokens)) * model.block_size


def use(model: KVModel, tokens: Sequence[int]) -> None:
    """Come, hit what is cached, and go."""
    owner = model.new(tokens)
    assert model.open(owner)
    model.free(owner)
    model.touched.clear()


def test_full_blocks_are_found_again_after_their_owner_has_gone() -> None:
    model = KVModel()
    model.free(model.compute([*PROMPT, 99]))
    assert hits(model, [*PROMPT, 77]) == 12
    assert hits(model, [*PROMPT[:8], 77, 77, 77, 77, 77]) == 8
    assert hits(model, [77, *PROMPT]) == 0


def test_a_prompt_that_is_cached_whole_still_computes_its_last_token() -> None:
    """PFX-06: a prompt of exactly k blocks, twice."""
    model = KVModel()
    model.free(model.compute(PROMPT))
    assert hits(model, PROMPT) == 8
    model.compute(PROMPT)  # and the recomputed block joins the published one
    assert model.kv.num_free + model.kv.num_cached == model.num_blocks - 3


def test_a_block_is_not_found_before_it_is_computed() -> None:
    """PFX-07: only written and verified blocks are published."""
    model = KVModel()
    owner = model.new(PROMPT)
    assert model.open(owner)
    assert model.write(owner, 7)
    assert hits(model, PROMPT) == 0  # planned, not computed
    model.step_end()
    assert hits(model, PROMPT) == 4  # the second block lacks a token


def test_partial_blocks_are_never_found() -> None:
    model = KVModel()
    model.free(model.compute(PROMPT[:7]))
    assert hits(model, PROMPT) == 4


@pytest.mark.parametrize("salt", ["x", "y"])
def test_salts_do_not_meet(salt: str) -> None:
    model = KVModel()
    model.free(model.compute(PROMPT, salt="x"))
    assert hits(model, PROMPT) == 0
    assert hits(model, PROMPT, salt) == (8 if salt == "x" else 0)


def test_colliding_hashes_cost_a_miss_and_never_a_wrong_block() -> None:
    """PFX-04: tokens, parent and salt are compared on a hit."""

    def constant(parent: Hashable, tokens: Sequence[int]) -> Hashable:
        return 0

    model = KVModel(hash_block=constant)
    first = model.compute([1, 2, 3, 4, 5])
    assert hits(model, [1, 2, 3, 4, 5]) == 4
    assert hits(model, [9, 2, 3, 4, 5]) == 0
    assert hits(model, [1, 2, 3, 4, 5], salt="x") == 0
    other = model.compute([9, 9, 9, 9, 1, 2, 3, 4, 5])  # its key is taken: it stays private
    assert other.table.num_published == 0
    model.free(first)
    model.verify()
    model.kv.clear_cache()
    model.drop(other)
    assert model.open(other)
    assert model.write(other)
    model.step_end()
    assert other.table.num_published == 1, "begun anew, it is published where the key is free"


def test_equal_tokens_under_other_prefixes_differ() -> None:
    """The block (1, 1, 1, 1) after (2, ...) is not the one after (3, ...)."""
    model = KVModel()
    model.free(model.compute([2] * 4 + [1] * 5))
    assert hits(model, [3] * 4 + [1] * 5) == 0
    assert hits(model, [1] * 5) == 0


def test_two_that_compute_the_same_prefix_at_once_end_up_sharing_it() -> None:
    """The second to publish moves over to the first one's block, and its own copy is freed."""
    model = KVModel()
    first, second = model.new([*PROMPT, 50]), model.new([*PROMPT, 60])
    for owner in (first, second):
        assert model.open(owner)
        assert model.write(owner)
    assert model.kv.num_free == 12 - 8
    model.step_end()
    assert first.table.blocks[:3] == second.table.blocks[:3]
    assert first.table.blocks[3] != second.table.blocks[3]
    assert model.kv.num_free == 12 - 5
    model.free(first)
    model.verify()
    assert hits(model, [*PROMPT, 70]) == 12


def test_what_follows_a_shared_prefix_is_published_too() -> None:
    """One prefix computed twice at once must not keep the second one's continuation out of the
    cache.
    """
    model = KVModel(num_blocks=20)
    first, second = model.new([*PROMPT, 50]), model.new([*PROMPT, *[60] * 5])
    for owner in (first, second):
        model.open(owner)
        model.write(owner)
    model.step_end()
    assert hits(model, [*PROMPT, *[60] * 4, 7]) == 16


def test_the_least_recently_used_goes_first_and_leaves_before_prefixes() -> None:
    model = KVModel(num_blocks=7)
    model.free(model.compute([1] * 8 + [9]))  # two cached blocks
    model.free(model.compute([2] * 8 + [9]))  # two more
    use(model, [1] * 8 + [9])  # again: now these are the younger ones
    assert (model.kv.num_free, model.kv.num_cached) == (3, 4)
    owner = model.compute([3] * 13)
    assert (hits(model, [2] * 9), hits(model, [1] * 9)) == (4, 8), "a leaf of the older two"
    owner.tokens += [3] * 4
    assert model.write(owner)
    assert (hits(model, [2] * 9), hits(model, [1] * 9)) == (0, 8), "then its prefix"
    owner.tokens += [3] * 4
    assert model.write(owner)
    assert (hits(model, [2] * 9), hits(model, [1] * 9)) == (0, 4)


def test_an_evicted_block_is_not_found_under_its_old_content() -> None:
    """PFX-05: taking a block for new content forgets the old mapping, and only that one."""
    model = KVModel(num_blocks=3)
    model.free(model.compute([1] * 9))
    other = model.compute([2] * 12)  # takes all three blocks
    assert model.kv.num_cached == 0
    model.free(other)
    assert hits(model, [1] * 9) == 0
    assert hits(model, [2] * 9) == 8
    model.verify()


def test_lookup_changes_nothing() -> None:
    model = KVModel()
    model.free(model.compute([*PROMPT, 1]))
    owner = model.new([*PROMPT, 1])
    before = snapshot(model.kv)
    assert len(model.kv._hits(owner.table, owner.tokens)) == 3
    assert snapshot(model.kv) == before


def test_eviction_takes_constant_time() -> None:
    """Ten thousand parked blocks are given up one by one without a search through them."""
    model = KVModel(num_blocks=10_001, block_size=1)
    owner = model.new([0] * 10_000)
    assert model.kv.open(owner.table, owner.tokens) == 0
    model.kv.publish(owner.table, owner.tokens, 10_000)
    model.kv.free(owner.table)
    assert model.kv.num_cached == 10_000
    looked_at = 0

    class Watched(dict[int, object]):
        def __iter__(self):  # type: ignore[no-untyped-def]
            nonlocal looked_at
            looked_at += 1
            return super().__iter__()

    model.kv._cache._by_block = Watched(model.kv._cache._by_block)  # type: ignore[assignment]
    assert model.kv.clear_cache() == 10_000
    assert looked_at == 0


def test_disabled_cache_finds_nothing() -> None:
    model = KVModel(caching=False)
    model.free(model.compute(PROMPT))
    assert model.open(model.new(PROMPT))
    assert model.owners[0].num_computed == 0
    model.free(model.owners[0])
    assert model.kv.num_free == model.num_blocks


def test_branches_of_a_fork_are_found_each_under_its_own_tokens() -> None:
    model = KVModel()
    parent = model.compute([*PROMPT[:8], 20])
    child = model.fork(parent)
    parent.tokens += [21, 22, 23, 24]
    child.tokens += [31, 32, 33, 34]
    for owner in (parent, child):
        assert model.write(owner)
        model.step_end()
    for owner in (parent, child):
        assert hits(model, owner.tokens) == 12


def _forget_prefix(cache: PrefixCache) -> None:
    del cache._by_key[cache._by_block.pop(next(reversed(cache._parked))).key]


def _key_of_another(cache: PrefixCache) -> None:
    key, entry = cache._by_key.popitem()
    cache._by_key[hash((key, 1))] = entry


@pytest.mark.parametrize(
    "damage",
    [
        lambda cache: cache.unpark(next(iter(cache._parked))),
        lambda cache: cache._parked.move_to_end(next(iter(cache._parked))),
        lambda cache: cache._by_key.popitem(),
        _forget_prefix,
        _key_of_another,
    ],
    ids=["lost", "prefix-first", "no-key", "no-prefix", "other-key"],
)
def test_check_notices_damage(damage: Callable[[PrefixCache], object]) -> None:
    model = KVModel()
    model.free(model.compute([*PROMPT, 99]))
    damage(model.kv._cache)
    with pytest.raises(AssertionError):
        model.kv._cache.check(lambda block: False)
    with pytest.raises(AssertionError):
        model.kv.check()


def test_check_notices_a_prefix_without_an_owner() -> None:
    """Whoever owns a block owns its prefix."""
    model = KVModel()
    owner = model.compute([*PROMPT, 99])
    first, second = owner.table.blocks[:2]
    model.kv._cache.park(first)
    with pytest.raises(AssertionError, match="its prefix is not"):
        model.kv._cache.check(lambda block: block != first)
    model.kv._cache.park(second)
    with pytest.raises(AssertionError, match="a prefix goes before a leaf"):
        model.kv._cache.check(lambda block: block not in (first, second))
