"""Embeddings in the engine: scheduled, chunked, preempted and co-batched like any prompt, and never
different for it.
"""

from __future__ import annotations

import random

import numpy as np
import pytest
from helpers.fake_engine import HIDDEN, FakeEngine, digest, roomy_engine
from hypothesis import given, settings
from hypothesis import strategies as st

from tinyserve.engine.request import Pooling
from tinyserve.errors import ContextLengthError, RequestError, TinyServeError

PROMPT = [7, 1, 8, 2, 8, 1, 8, 2, 8, 4, 5, 9, 0, 4, 5]


def truth(prompt: list[int], pooling: Pooling) -> list[float]:
    """What the fake model's states pool to, worked out by hand."""
    rows = [
        np.array([digest(tuple(prompt[:end]), i) % 2001 / 1000 - 1 for i in range(HIDDEN)])
        for end in range(1, len(prompt) + 1)
    ]
    if pooling == "last":
        return np.float32(rows[-1]).tolist()
    total = np.zeros(HIDDEN)
    for row in rows:
        total += np.float32(row)
    return np.float32(total / len(prompt)).tolist()


def embed(
    engine: FakeEngine, prompt: list[int], pooling: Pooling, **options: object
) -> list[float]:
    request_id = engine.add(prompt, pooling=pooling, **options)
    engine.run()
    return embedding_of(engine, request_id)


def embedding_of(engine: FakeEngine, request_id: str) -> list[float]:
    (choice,) = engine.results[request_id]
    assert choice.finish_reason == "stop"
    assert choice.token_ids == []
    assert choice.embedding is not None
    return choice.embedding


@pytest.mark.parametrize("pooling", ["last", "mean"])
@pytest.mark.parametrize("length", [1, 2, 4, 5, 15])
def test_pools_the_states_of_the_prompt(pooling: Pooling, length: int) -> None:
    prompt = PROMPT[:length]
    assert embed(roomy_engine(), prompt, pooling) == truth(prompt, pooling)


@pytest.mark.parametrize("pooling", ["last", "mean"])
@pytest.mark.parametrize("budget", [1, 3, 7, 64])
def test_chunks_change_nothing(pooling: Pooling, budget: int) -> None:
    engine = FakeEngine(max_num_batched_tokens=budget)
    assert embed(engine, PROMPT, pooling) == truth(PROMPT, pooling)


def test_last_uses_the_prefix_cache_and_mean_computes_every_row() -> None:
    engine = FakeEngine(block_size=4)
    first = embed(engine, PROMPT, "last")
    again = engine.add(PROMPT, pooling="last")
    engine.run()
    assert embedding_of(engine, again) == first
    assert engine.results[again][0].num_cached_tokens == 12
    mean = engine.add(PROMPT, pooling="mean")
    engine.run()
    assert engine.results[mean][0].num_cached_tokens == 0
    assert embedding_of(engine, mean) == truth(PROMPT, "mean")


def test_an_embedding_fills_the_cache_for_others() -> None:
    engine = FakeEngine(block_size=4)
    embed(engine, PROMPT, "mean")
    request_id = engine.add(PROMPT, max_tokens=2)
    engine.run()
    assert engine.results[request_id][0].num_cached_tokens == 12


def test_only_wanted_rows_are_asked_for() -> None:
    engine = FakeEngine(max_num_batched_tokens=8)
    engine.add(PROMPT, pooling="last")
    engine.run()
    assert [plan.chunks[0].num_logits for plan in engine.runner.plans] == [0, 1]
    engine = FakeEngine(max_num_batched_tokens=8)
    engine.add(PROMPT, pooling="mean")
    engine.run()
    assert [plan.chunks[0].num_logits for plan in engine.runner.plans] == [8, 7]


@pytest.mark.parametrize("num_swap_blocks", [0, 16])
def test_preemption_in_the_middle_of_a_prompt_changes_nothing(num_swap_blocks: int) -> None:
    engine = FakeEngine(
        num_blocks=8,
        num_swap_blocks=num_swap_blocks,
        caching=False,
        policy="priority",
        max_num_batched_tokens=4,
        max_num_seqs=1,
    )
    requests = {pooling: engine.add(PROMPT, pooling=pooling) for pooling in ("mean", "last")}
    for _ in range(2):
        engine.step()
    urgent = engine.add([9, 9, 9], priority=-1, max_tokens=3)
    engine.run()
    stats = engine.core.stats()
    assert stats.num_preemptions_swap + stats.num_preemptions_recompute >= 1
    assert len(engine.results[urgent][0].token_ids) == 3
    for pooling, request_id in requests.items():
        assert embedding_of(engine, request_id) == truth(PROMPT, pooling)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_any_company_any_pool(seed: int) -> None:
    """Embeddings among completions in a tiny pool: each gets its own, and all blocks return."""
    rand = random.Random(seed)
    engine = FakeEngine(
        num_blocks=rand.randint(8, 16),
        num_swap_blocks=rand.choice((0, 8)),
        max_num_seqs=rand.randint(1, 6),
        max_num_batched_tokens=rand.choice((2, 5, 16, 64)),
        policy=rand.choice(("continuous", "priority", "fair", "static")),
    )
    wanted = []
    for _ in range(10):
        prompt = PROMPT[: rand.randint(0, 8)] + [
            rand.randrange(101) for _ in range(rand.randint(1, 9))
        ]
        pooling: Pooling | None = rand.choice((None, "last", "mean"))
        priority = rand.choice((0, 0, -1))
        if pooling is None:
            engine.add(prompt, max_tokens=rand.randint(1, 6), priority=priority)
        else:
            request_id = engine.add(prompt, pooling=pooling, priority=priority)
            wanted.append((request_id, prompt, pooling))
        for _ in range(rand.randint(0, 2)):
            engine.step()
    engine.run()
    for request_id, prompt, pooling in wanted:
        assert embedding_of(engine, request_id) == truth(prompt, pooling)
    stats = engine.core.stats()
    assert stats.num_free_blocks + stats.num_cached_blocks == stats.num_total_blocks


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_states_that_are_not_numbers_fail_their_request_alone(pooling: Pooling) -> None:
    engine = FakeEngine()
    engine.runner.nan_token = 9
    bad = engine.add([1, 2, 9], pooling=pooling)
    good = engine.add([1, 2, 3], pooling=pooling)
    engine.run()
    (choice,) = engine.results[bad]
    assert choice.finish_reason == "error"
    assert isinstance(choice.error, TinyServeError)
    assert choice.embedding is None
    assert embedding_of(engine, good) == truth([1, 2, 3], pooling)


def test_abort_in_the_middle_gives_the_blocks_back() -> None:
    engine = FakeEngine(max_num_batched_tokens=4)
    request_id = engine.add(PROMPT, pooling="mean")
    engine.step()
    assert engine.core.abort(request_id)
    stats = engine.core.stats()
    assert stats.num_free_blocks + stats.num_cached_blocks == stats.num_total_blocks
    assert not engine.core.has_work()


def test_a_prompt_may_fill_the_context_and_no_more() -> None:
    engine = FakeEngine(max_model_len=8)
    assert embed(engine, PROMPT[:8], "mean") == truth(PROMPT[:8], "mean")
    with pytest.raises(ContextLengthError):
        engine.add(PROMPT[:9], pooling="mean")


@pytest.mark.parametrize("params", [{"max_tokens": 1}, {"max_tokens": None}, {"n": 2}])
def test_an_embedding_generates_nothing(params: dict[str, int]) -> None:
    with pytest.raises(RequestError, match="draws no tokens"):
        FakeEngine().add(PROMPT, pooling="last", **params)
