"""Every way out of a request gives everything back, before the next step."""

from __future__ import annotations

import random
from typing import Any

import pytest
from helpers.fake_engine import VOCAB, FakeEngine, generate_alone


def tiny(**options: Any) -> FakeEngine:
    return FakeEngine(num_blocks=8, caching=False, max_num_batched_tokens=8, **options)


def test_abort_while_waiting() -> None:
    engine = tiny(max_num_seqs=1)
    engine.add([1], max_tokens=5)
    engine.step()
    waiting = engine.add([2], max_tokens=5)
    assert engine.status(waiting) == "waiting"
    assert engine.core.abort(waiting)
    engine.add([3], max_tokens=5)
    engine.run()
    assert engine.results[waiting][0].token_ids == []
    assert engine.results["r2"][0].token_ids == generate_alone([3], max_tokens=5)[0]
    engine.assert_empty()


def test_abort_before_the_first_step() -> None:
    engine = tiny()
    engine.core.abort(engine.add([1], max_tokens=5))
    assert not engine.core.has_work()
    assert engine.core.step() == []
    engine.assert_empty()


def test_abort_in_the_middle_of_a_prompt() -> None:
    """CON-04: it takes effect at the next chunk."""
    engine = tiny()
    request_id = engine.add(range(20), max_tokens=5)
    engine.step()
    assert engine.kv.num_free < 8
    assert engine.core.abort(request_id)
    assert engine.kv.num_free == 8, "free before the next step"
    engine.assert_empty()


def test_abort_while_running() -> None:
    engine = tiny()
    request_id = engine.add([1], max_tokens=20)
    for _ in range(3):
        engine.step()
    assert engine.core.abort(request_id)
    engine.assert_empty()
    assert engine.results[request_id][0].finish_reason is None, "no output follows an abort"


@pytest.mark.parametrize("num_swap_blocks", [0, 8])
def test_abort_while_preempted(num_swap_blocks: int) -> None:
    engine = tiny(num_swap_blocks=num_swap_blocks)
    engine.add([1] * 6, max_tokens=20)
    victim = engine.add([2] * 6, max_tokens=20)
    while engine.status(victim) != ("swapped" if num_swap_blocks else "waiting"):
        engine.step()
    assert engine.core.abort(victim)
    engine.kv.check()
    assert engine.kv.arena.num_free == num_swap_blocks
    engine.run()
    assert engine.results["r0"][0].token_ids == generate_alone([1] * 6, max_tokens=20)[0]
    engine.assert_empty()


def test_abort_of_a_request_with_several_choices() -> None:
    engine = FakeEngine(num_blocks=8, num_swap_blocks=4, max_num_seqs=3)
    request_id = engine.add([1] * 6, n=6, temperature=1.0, max_tokens=20)
    for _ in range(6):
        engine.step()
    statuses = {engine.status(request_id, choice) for choice in range(6)}
    assert statuses >= {"running", "waiting"}
    assert engine.core.abort(request_id)
    engine.assert_empty()


def test_abort_of_choices_that_have_not_been_forked() -> None:
    engine = tiny()
    request_id = engine.add(range(20), n=3, max_tokens=5)
    engine.step()
    assert engine.core.abort(request_id)
    engine.assert_empty()


def test_abort_is_idempotent_and_knows_whom_it_does_not_know() -> None:
    engine = tiny()
    request_id = engine.add([1], max_tokens=5)
    engine.step()
    assert engine.core.abort(request_id)
    assert not engine.core.abort(request_id)
    assert not engine.core.abort("nobody")
    finished = engine.add([1], max_tokens=1)
    engine.run()
    assert not engine.core.abort(finished)


def test_abort_of_an_answer_that_is_ready_drops_it() -> None:
    engine = tiny()
    request_id = engine.add([1], max_tokens=0)
    assert engine.core.has_work()
    assert engine.core.abort(request_id)
    assert not engine.core.has_work()


def test_an_id_may_be_used_again_after_an_abort() -> None:
    engine = tiny()
    engine.add([1], request_id="x", max_tokens=5)
    engine.step()
    engine.core.abort("x")
    engine.add([2], request_id="x", max_tokens=5)
    engine.run()
    assert engine.results["x"][0].token_ids == generate_alone([2], max_tokens=5)[0]


def test_what_an_aborted_request_computed_stays_in_the_cache() -> None:
    """CON-05: stop the answer, send a follow-up with the same history."""
    engine = FakeEngine()
    request_id = engine.add(range(10), max_tokens=50)
    for _ in range(8):
        engine.step()
    engine.core.abort(request_id)
    history = [*range(10), *engine.results[request_id][0].token_ids]
    follow_up = engine.add([*history, 1, 2, 3], max_tokens=1)
    engine.run()
    assert engine.results[follow_up][0].num_cached_tokens == (len(history) - 1) // 4 * 4


def test_aborts_at_random_steps_leak_nothing(rng: Any) -> None:
    """CON-06: 500 requests, each aborted at a random moment or left to finish."""
    dice = random.Random(int(rng.integers(2**32)))
    engine = FakeEngine(
        num_blocks=16,
        num_swap_blocks=8,
        policy="priority",
        max_num_seqs=5,
        max_num_batched_tokens=20,
    )
    alive: list[str] = []
    for _ in range(500):
        request_id = engine.add(
            [dice.randrange(3) for _ in range(dice.randrange(1, 30))],
            priority=dice.randrange(3),
            n=dice.choice([1, 1, 3]),
            temperature=1.0,
            prompt_logprobs=dice.choice([None, None, 1]),
            max_tokens=dice.randrange(20),
        )
        alive.append(request_id)
        while len(alive) > 8 or (alive and dice.random() < 0.3):
            engine.core.abort(alive.pop(dice.randrange(len(alive))))
            engine.kv.check()
        for _ in range(dice.randrange(3)):
            engine.step()
    engine.run()
    engine.assert_empty()


def test_an_exception_of_the_runner_passes_through() -> None:
    engine = tiny()
    engine.add([1], max_tokens=5)
    engine.runner.error = OSError("the device is gone")
    with pytest.raises(OSError, match="device is gone"):
        engine.core.step()


def test_nan_logits_end_that_request_and_no_other() -> None:
    """SAM-04: an error that names the request, never a stream of token 0."""
    engine = FakeEngine()
    engine.runner.nan_token = VOCAB - 1
    bad = engine.add([1, VOCAB - 1], n=2, max_tokens=5)
    good = engine.add([1, 2], max_tokens=5, stop_token_ids=())
    engine.step()
    assert [choice.finish_reason for choice in engine.results[bad]] == ["error", "error"]
    assert bad in str(engine.results[bad][0].error)
    engine.run()
    assert engine.results[good][0].finish_reason in ("length", "error")
    assert engine.results[good][0].token_ids[0] == generate_alone([1, 2], max_tokens=1)[0][0]
    assert engine.core.stats().num_corrupted >= 1
    engine.assert_empty()


def test_nan_in_one_of_several_choices_ends_the_request_once() -> None:
    engine = FakeEngine()
    request_id = engine.add([1, 2], n=4, temperature=1.0, seed=3, max_tokens=30)
    engine.step()
    engine.runner.nan_token = engine.results[request_id][1].token_ids[0]
    engine.run()
    for choice in engine.results[request_id]:
        assert choice.finish_reason == "error"
    assert len(engine.results[request_id][1].token_ids) == 1
    assert engine.core.stats().num_corrupted == 1
    engine.assert_empty()
