"""Prompt logprobs: one entry per prompt token, whatever the chunks, the cache and preemption."""

from __future__ import annotations

from functools import cache

import pytest
from helpers.fake_engine import Choice, FakeEngine

from tinyserve.engine.sampling import SampledToken

PROMPT = list(range(30, 0, -1))


def score(engine: FakeEngine, **options: object) -> Choice:
    request_id = engine.add(PROMPT, prompt_logprobs=2, **{"max_tokens": 3, **options})  # type: ignore[arg-type]
    engine.run()
    return engine.results[request_id][0]


@cache
def expected() -> list[SampledToken | None]:
    """The scores of PROMPT with room and without preemption."""
    scores = score(FakeEngine()).prompt_logprobs
    assert scores is not None
    return scores


def test_one_entry_per_prompt_token_and_none_for_the_first() -> None:
    assert expected()[0] is None
    assert [entry and entry.token_id for entry in expected()[1:]] == PROMPT[1:]
    assert all(entry is not None and len(entry.top) == 2 for entry in expected()[1:])


@pytest.mark.parametrize("budget", [1, 4, 7, 29, 30])
def test_chunks_do_not_matter(budget: int) -> None:
    engine = FakeEngine(max_num_batched_tokens=budget)
    assert score(engine).prompt_logprobs == expected()


def test_they_come_with_the_first_output_of_choice_zero_only() -> None:
    engine = FakeEngine(max_num_seqs=2)
    engine.add(PROMPT, prompt_logprobs=2, n=3, max_tokens=3)
    with_scores = []
    while engine.core.has_work():
        with_scores += [o.index for o in engine.step() if o.prompt_logprobs is not None]
    assert with_scores == [0]
    assert engine.results["r0"][0].prompt_logprobs == expected()


def test_a_cached_prompt_is_computed_again() -> None:
    """LOG-08: such a request skips reading the prefix cache, says so, and may still fill it."""
    engine = FakeEngine()
    first = score(engine)
    second = score(engine)
    assert second.prompt_logprobs == first.prompt_logprobs == expected()
    assert second.num_cached_tokens == 0
    stats = engine.core.stats()
    assert stats.num_prefix_query_tokens == stats.num_prefix_hit_tokens == 0
    plain = engine.add(PROMPT, max_tokens=1)
    engine.run()
    assert engine.results[plain][0].num_cached_tokens == 28


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("num_swap_blocks", [0, 32])
def test_preemption_in_the_middle_of_the_prompt(num_swap_blocks: int, caching: bool) -> None:
    engine = FakeEngine(
        policy="priority",
        num_swap_blocks=num_swap_blocks,
        caching=caching,
        max_num_seqs=1,
        max_num_batched_tokens=16,
    )
    engine.add(PROMPT, prompt_logprobs=2, n=2, priority=1, max_tokens=3)
    engine.step()
    engine.add([7], max_tokens=2)
    engine.run()
    assert engine.core.stats().num_preemptions_swap == bool(num_swap_blocks)
    assert engine.results["r0"][0].prompt_logprobs == expected()
    engine.assert_empty()


@pytest.mark.parametrize("n", [1, 3])
def test_max_tokens_0_scores_the_prompt_and_draws_nothing(n: int) -> None:
    """LOG-07: max_tokens 0 computes the prompt and draws nothing."""
    engine = FakeEngine(max_num_batched_tokens=8)
    request_id = engine.add(PROMPT, prompt_logprobs=2, n=n, max_tokens=0)
    engine.run()
    choices = engine.results[request_id]
    assert choices[0].prompt_logprobs == expected()
    assert [(c.token_ids, c.finish_reason) for c in choices] == [([], "length")] * n
    engine.assert_empty()


@pytest.mark.parametrize("max_tokens", [0, 2])
def test_a_prompt_of_one_token(max_tokens: int) -> None:
    engine = FakeEngine()
    request_id = engine.add([5], prompt_logprobs=1, max_tokens=max_tokens)
    engine.run()
    choice = engine.results[request_id][0]
    assert len(choice.token_ids) == max_tokens
    assert choice.prompt_logprobs == [None]


def test_nan_while_scoring_ends_the_request() -> None:
    engine = FakeEngine()
    engine.runner.nan_token = 20
    assert score(engine).finish_reason == "error"
    engine.assert_empty()
