"""n > 1: one prompt, several continuations, by forking or by waiting for a seat."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.fake_engine import FakeEngine, generate_alone

PROMPT = [3, 1, 4, 1, 5, 9]
SAMPLED: dict[str, Any] = {"temperature": 1.0, "seed": 11, "max_tokens": 12}


def tokens(engine: FakeEngine, request_id: str) -> list[list[int]]:
    return [choice.token_ids for choice in engine.results[request_id]]


def test_choice_zero_of_n_equals_n_of_one() -> None:
    one = generate_alone(PROMPT, **SAMPLED)
    five = generate_alone(PROMPT, n=5, **SAMPLED)
    assert five[0] == one[0]
    assert len({tuple(choice) for choice in five}) == 5


def test_greedy_choices_are_equal() -> None:
    """SAM-07: n greedy copies are allowed."""
    choices = generate_alone(PROMPT, n=3, max_tokens=5)
    assert choices[0] == choices[1] == choices[2]


def test_the_prompt_is_computed_once_and_its_partial_block_copied_for_all_but_one() -> None:
    engine = FakeEngine(max_num_seqs=4)
    engine.add(PROMPT, n=4, **SAMPLED)
    engine.step()
    assert engine.last_plan.num_tokens == len(PROMPT)
    engine.step()
    assert engine.planned_ids() == ["r0"] * 4
    assert len(engine.last_plan.copies) == 3
    first_blocks = {chunk.block_ids[0] for chunk in engine.last_plan.chunks}
    assert len(first_blocks) == 1, "the full block is shared"
    engine.run()
    assert engine.core.stats().num_cow_copies == 3
    engine.assert_empty()


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("seats", [1, 2, 3])
def test_more_choices_than_seats(caching: bool, seats: int) -> None:
    """Those without a seat wait, then hit the prefix cache or compute the prompt again."""
    engine = FakeEngine(max_num_seqs=seats, caching=caching)
    request_id = engine.add(PROMPT, n=6, **SAMPLED)
    engine.add([2], max_tokens=3)
    engine.run()
    assert tokens(engine, request_id) == generate_alone(PROMPT, n=6, **SAMPLED)
    engine.assert_empty()


def test_choices_that_wait_come_before_later_requests() -> None:
    engine = FakeEngine(max_num_seqs=2)
    engine.add(PROMPT, n=4, **SAMPLED)
    engine.step()
    engine.add([2], max_tokens=1)
    while engine.status("r1") == "waiting":
        engine.step()
    assert "waiting" not in [engine.status("r0", choice) for choice in range(4)]
    engine.run()


def test_every_choice_gets_its_first_token_from_the_prompt_step() -> None:
    engine = FakeEngine(max_num_seqs=2)
    engine.add(PROMPT, n=5, **SAMPLED)
    outputs = engine.step()
    assert [output.index for output in outputs] == [0, 1, 2, 3, 4]
    assert all(len(output.new_token_ids) == 1 for output in outputs)


def test_choices_may_end_with_their_first_token() -> None:
    """Whichever ends at once, the others go on; so with choice 0, which owns the prompt."""
    alone = generate_alone(PROMPT, n=4, **SAMPLED)
    for ended in range(4):
        engine = FakeEngine(max_num_seqs=2, eos_token_ids=(alone[ended][0],))
        request_id = engine.add(PROMPT, n=4, **SAMPLED)
        engine.step()
        assert engine.results[request_id][ended].finish_reason == "stop"
        engine.run()
        for choice, expected in zip(engine.results[request_id], alone, strict=True):
            assert choice.token_ids == expected[: len(choice.token_ids)]
            assert choice.finish_reason in ("stop", "length")
        engine.assert_empty()


def test_one_token_each() -> None:
    engine = FakeEngine(max_num_seqs=1)
    request_id = engine.add(PROMPT, n=8, temperature=1.0, seed=5, max_tokens=1)
    engine.step()
    assert [len(choice) for choice in tokens(engine, request_id)] == [1] * 8
    engine.assert_empty()


def test_choices_keep_texts_of_their_own() -> None:
    """STR-15: one text output per choice."""
    engine = FakeEngine()
    request_id = engine.add(PROMPT, n=3, text=True, **SAMPLED)
    engine.run()
    for choice in engine.results[request_id]:
        assert choice.text == "".join(f"<{token}>" for token in choice.token_ids) + "."


def test_an_unseeded_request_draws_its_seed_from_the_process() -> None:
    """SAM-06: the same request twice gives different answers; a seed makes them equal."""
    options = {"temperature": 1.0, "max_tokens": 12}
    assert generate_alone(PROMPT, **options) != generate_alone(PROMPT, **options)
    assert generate_alone(PROMPT, seed=1, **options) == generate_alone(PROMPT, seed=1, **options)
    negative = generate_alone(PROMPT, seed=-2, **options)
    assert negative == generate_alone(PROMPT, seed=-2, **options)
    assert negative != generate_alone(PROMPT, seed=1, **options)


def test_a_seed_of_minus_one_is_none() -> None:
    """Clients send it for "random", as vLLM and llama.cpp take it."""
    options = {"temperature": 1.0, "max_tokens": 12, "seed": -1}
    assert generate_alone(PROMPT, **options) != generate_alone(PROMPT, **options)


def test_an_unseeded_request_keeps_its_seed_through_preemption() -> None:
    engine = FakeEngine(num_blocks=8, caching=False)
    first = engine.add([1] * 8, temperature=1.0, max_tokens=16)
    second = engine.add([2] * 8, temperature=1.0, max_tokens=16)
    seeds = {job.request.request_id: job.seed for job in engine.core._jobs.values()}
    engine.run()
    assert engine.core.stats().num_preemptions_recompute
    for request_id, token in ((first, 1), (second, 2)):
        alone = generate_alone(
            [token] * 8, temperature=1.0, max_tokens=16, seed=seeds[request_id] - 2**63
        )
        again = generate_alone([token] * 8, temperature=1.0, max_tokens=16, seed=seeds[request_id])
        assert tokens(engine, request_id) == again != alone
