"""Preemption changes nothing but the time: every output equals the same request run alone."""

from __future__ import annotations

import random
from typing import Any

import pytest
from helpers.fake_engine import VOCAB, Choice, FakeEngine, roomy_engine

STEM = [random.Random(0).randrange(VOCAB) for _ in range(12)]


def mixed_request(dice: random.Random) -> dict[str, Any]:
    """A request with a bit of everything."""
    prompt = [dice.randrange(VOCAB) for _ in range(dice.randrange(1, 24))]
    if dice.random() < 0.4:
        prompt = STEM[: dice.randrange(4, 13)] + prompt[:8]
    max_tokens = dice.randrange(1, 25)
    return {
        "prompt": prompt,
        "max_tokens": max_tokens,
        "min_tokens": dice.choice([0, 0, max_tokens // 2]),
        "n": dice.choice([1, 1, 1, 2, 4]),
        "temperature": dice.choice([0.0, 1.0]),
        "seed": dice.randrange(50),
        "priority": dice.choice([0, 0, 0, 1]),
        "client": dice.choice(["a", "b"]),
        "cache_salt": dice.choice([None, None, "x"]),
        "stop": dice.choice([(), ("<7>", "<8>", "<9>")]),
        "stop_token_ids": dice.choice([(), (20, 21)]),
        "bad_words_ids": dice.choice([(), ((5,), (6, 7))]),
        "logprobs": dice.choice([None, 2]),
        "prompt_logprobs": dice.choice([None, None, None, 1]),
        "text": True,
    }


def results(engine: FakeEngine, request_id: str) -> list[Choice]:
    """What was delivered; how much was cached may differ."""
    choices = engine.results[request_id]
    for choice in choices:
        choice.num_cached_tokens = 0
    return choices


def run_alone(request: dict[str, Any]) -> list[Choice]:
    engine = roomy_engine()
    request_id = engine.add(**request)
    engine.run()
    return results(engine, request_id)


@pytest.mark.parametrize("policy", ["continuous", "priority", "fair", "static"])
@pytest.mark.parametrize("num_swap_blocks", [0, 12, 200])
def test_mixed_requests_through_a_tiny_pool_equal_themselves_alone(
    policy: str, num_swap_blocks: int, rng: Any
) -> None:
    dice = random.Random(int(rng.integers(2**32)))
    engine = FakeEngine(
        num_blocks=18,
        num_swap_blocks=num_swap_blocks,
        caching=dice.random() < 0.7,
        policy=policy,
        max_num_seqs=6,
        max_num_batched_tokens=24,
        enable_chunked_prefill=dice.random() < 0.8,
        eos_token_ids=(),
    )
    requests = {}
    for _ in range(50):
        request = mixed_request(dice)
        requests[engine.add(**request)] = request
        for _ in range(dice.randrange(3)):
            engine.step()
    engine.run()
    for request_id, request in requests.items():
        assert results(engine, request_id) == run_alone(request)
    stats = engine.core.stats()
    assert stats.num_preemptions_swap + stats.num_preemptions_recompute > 3
    engine.assert_empty()


def test_two_hundred_requests_with_hundreds_of_preemptions_of_both_kinds(rng: Any) -> None:
    dice = random.Random(int(rng.integers(2**32)))
    engine = FakeEngine(num_blocks=14, num_swap_blocks=6, max_num_seqs=8, max_num_batched_tokens=32)
    requests = {}
    for _ in range(260):
        request = mixed_request(dice)
        requests[engine.add(**request)] = request
    engine.run()
    stats = engine.core.stats()
    assert stats.num_preemptions_swap >= 100
    assert stats.num_preemptions_recompute >= 100
    assert stats.num_prefix_hit_tokens > 0
    assert stats.num_cow_copies > 0
    for request_id, request in requests.items():
        assert results(engine, request_id) == run_alone(request)
    engine.assert_empty()


@pytest.mark.parametrize("num_swap_blocks", [0, 64])
def test_requests_just_above_the_pool_do_not_thrash(num_swap_blocks: int) -> None:
    """CON-08: the oldest advances in every step, and preemptions stay few."""
    engine = FakeEngine(num_blocks=16, num_swap_blocks=num_swap_blocks, caching=False)
    for token in range(3):
        engine.add([token] * 8, max_tokens=20)
    lengths = [0]
    while engine.core.has_work():
        oldest = next(i for i in range(3) if not engine.results[f"r{i}"][0].finish_reason)
        before = len(engine.results[f"r{oldest}"][0].token_ids)
        engine.step()
        lengths.append(len(engine.results[f"r{oldest}"][0].token_ids))
        assert lengths[-1] == before + 1, "the oldest did not advance"
    stats = engine.core.stats()
    assert 1 <= stats.num_preemptions_swap + stats.num_preemptions_recompute <= 4
    assert stats.num_steps <= 60


def test_many_choices_that_do_not_fit_together_all_finish() -> None:
    """CON-07: sixteen choices that together need six times the pool; and the engine serves on."""
    engine = FakeEngine(num_blocks=64, max_num_seqs=16)
    request_id = engine.add([1, 2, 3], n=16, max_tokens=100, temperature=1.0, seed=1)
    engine.run()
    choices = engine.results[request_id]
    assert [len(choice.token_ids) for choice in choices] == [100] * 16
    assert len({tuple(choice.token_ids) for choice in choices}) == 16
    assert engine.core.stats().num_preemptions_recompute > 0
    assert len(engine.generate([5], max_tokens=3)) == 3
    engine.assert_empty()


def test_a_preempted_prompt_goes_on_where_it_was() -> None:
    """Swapped out half-way through its prompt, it computes no token twice."""
    engine = FakeEngine(
        policy="priority",
        num_blocks=32,
        num_swap_blocks=32,
        caching=False,
        max_num_seqs=1,
        max_num_batched_tokens=16,
    )
    engine.add(range(50), priority=1, max_tokens=2)
    engine.step()
    engine.add([7], priority=0, max_tokens=1)
    engine.step()
    assert engine.status("r0") == "swapped"
    engine.run()
    assert engine.core.stats().num_scheduled_tokens == 50 + 1 + 1


def test_the_youngest_is_preempted_and_the_oldest_comes_back_first() -> None:
    engine = FakeEngine(num_blocks=9, num_swap_blocks=32, caching=False)
    for token in range(3):
        engine.add([token] * 8, max_tokens=12)
    while engine.core.stats().num_swapped < 2:
        engine.step()
    assert [engine.status(f"r{i}") for i in range(3)] == ["running", "swapped", "swapped"]
    while engine.status("r0") == "running":
        engine.step()
    engine.step()
    assert engine.planned_ids()[0] == "r1"
    engine.run()


def test_new_requests_wait_behind_preempted_ones() -> None:
    engine = FakeEngine(num_blocks=8, num_swap_blocks=8, caching=False)
    engine.add([1] * 8, max_tokens=16)
    engine.add([2] * 8, max_tokens=16)
    while engine.core.stats().num_swapped < 1:
        engine.step()
    engine.add([3], max_tokens=1)
    while engine.core.stats().num_swapped:
        assert engine.status("r2") == "waiting"
        engine.step()
    engine.run()
