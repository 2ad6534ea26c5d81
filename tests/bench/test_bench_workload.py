"""Workloads and summaries of benchmarks."""

from __future__ import annotations

import itertools
import random

import pytest

from tinyserve.bench.latency import SLO, Record, is_too_short, keeps_up, percentile, summary
from tinyserve.bench.workload import (
    Shape,
    Span,
    agent_turns,
    arrival_times,
    with_flood,
    with_shared_prefix,
)


def test_same_seed_same_workload_and_another_seed_another() -> None:
    shape = Shape(20, 4.0)
    assert shape.make(1) == shape.make(1)
    assert shape.make(1) != shape.make(2)


def test_lengths_stay_in_their_spans() -> None:
    for lengths in ("uniform", "chat"):
        made = Shape(300, 4.0, Span(5, 50), Span(2, 9), lengths=lengths).make(0)
        assert all(5 <= len(a.prompt_ids) <= 50 and 2 <= a.max_tokens <= 9 for a in made)
        assert len({len(a.prompt_ids) for a in made}) > 10


@pytest.mark.parametrize("kind", ["poisson", "burst", "steady"])
def test_arrivals_keep_their_rate(kind: str) -> None:
    times = arrival_times(kind, 5.0, 4000, random.Random(0))
    assert times == sorted(times)
    assert len(times) / times[-1] == pytest.approx(5.0, rel=0.15)


def test_everybody_together() -> None:
    assert arrival_times("together", 5.0, 3, random.Random(0)) == [0.0, 0.0, 0.0]


def test_bursts_come_at_once() -> None:
    times = arrival_times("burst", 5.0, 16, random.Random(0))
    assert len(set(times)) == 2


def test_shared_prefix_is_shared_and_the_rest_is_not() -> None:
    made = with_shared_prefix(Shape(5, 1.0).make(0), 32, 0)
    assert len({a.prompt_ids[:32] for a in made}) == 1
    assert len({a.prompt_ids[32:40] for a in made}) == 5


def test_agent_turns_repeat_the_history() -> None:
    for chat in agent_turns(3, 4, Shape(0, 1.0), 0):
        for before, after in itertools.pairwise(chat):
            assert after.prompt_ids[: len(before.prompt_ids)] == before.prompt_ids
            assert len(after.prompt_ids) >= len(before.prompt_ids) + before.max_tokens


def test_a_flood_comes_first() -> None:
    made = with_flood(Shape(5, 1.0).make(0), 10, 0, priority=3)
    assert [a.client for a in made[:10]] == ["flood"] * 10
    assert {a.priority for a in made[:10]} == {3}


def test_a_flood_has_the_lengths_of_the_others_and_prompts_of_its_own() -> None:
    others = Shape(5, 1.0).make(0)
    flood = [a for a in with_flood(others, 10, 0) if a.client == "flood"]
    assert [len(a.prompt_ids) for a in flood] == [len(a.prompt_ids) for a in others] * 2
    assert len({a.prompt_ids[:4] for a in (*flood, *others)}) == 15
    again = [a for a in with_flood(others, 10, 1) if a.client == "flood"]
    assert not {a.prompt_ids for a in again} & {a.prompt_ids for a in flood}


@pytest.mark.parametrize("text", ["", "x", "9-3", "0-4"])
def test_bad_spans(text: str) -> None:
    with pytest.raises(ValueError):
        Span.parse(text)


def test_percentiles_by_hand() -> None:
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile([0.0, 10.0], 0.99) == pytest.approx(9.9)
    assert percentile([7.0], 0.99) == 7.0


def test_summary_by_hand() -> None:
    records = [
        Record(0.0, 4, [1.0, 1.5, 2.0]),
        Record(1.0, 4, [4.0, 4.1]),
        Record(2.0, 4, [], error="refused"),
    ]
    found = summary(records, SLO(ttft_s=2.0, inter_token_s=0.6))
    assert (found["requests"], found["failed"], found["output_tokens"]) == (3, 1, 5)
    assert found["duration_s"] == pytest.approx(4.1)
    assert found["output_tok_s"] == pytest.approx(5 / 4.1)
    assert found["ttft_s"]["p50"] == pytest.approx(2.0)
    assert found["inter_token_s"]["p50"] == pytest.approx(0.5)
    assert found["slo_attainment"] == pytest.approx(1 / 3)
    assert found["offered_requests_s"] == pytest.approx(1.0)


def test_who_keeps_up() -> None:
    """Ten requests in ten seconds; an answer takes two seconds, however long it had to wait."""
    run = {"requests": 10, "e2e_s": {"p50": 9.0}, "ttft_s": {"p50": 7.0}}
    assert keeps_up({**run, "duration_s": 14.4, "offered_requests_s": 1.0})
    assert not keeps_up({**run, "duration_s": 14.6, "offered_requests_s": 1.0})
    assert keeps_up({**run, "duration_s": 14.6, "rate": 0.5}), "an older result, by its rate"
    assert not is_too_short({**run, "offered_requests_s": 1.0})
    assert is_too_short({**run, "offered_requests_s": 3.0}), "then it would always be said to"
    together = summary([Record(0.0, 4, [1.0]), Record(0.0, 4, [1.0])])
    assert together["offered_requests_s"] is None


def test_summary_of_nothing_that_worked() -> None:
    assert summary([Record(0.0, error="refused")])["failed"] == 1
