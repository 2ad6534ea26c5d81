"""Speculation as a client sees it: not at all, but in the counters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from helpers.fake_service import make_engine, runner_of
from helpers.live_server import Live, live

LOOP = "the cat and the dog and the cat and the dog and the cat and the dog and "
BODY: dict[str, Any] = {
    "prompt": LOOP,
    "max_tokens": 40,
    "temperature": 0,
    "logprobs": 2,
    "ignore_eos": True,
}

NO_REUSE = {"enable_prefix_caching": False}  # usage tells of cached tokens


@pytest.fixture
def drafting() -> Iterator[Live]:
    with live(make_engine(cache=NO_REUSE, spec={"method": "ngram"})) as served:
        yield served


@pytest.fixture
def plain() -> Iterator[Live]:
    with live(make_engine(cache=NO_REUSE)) as served:
        yield served


def answers(served: Live, **body: Any) -> Any:
    runner_of(served.engine).says(LOOP)
    answer = served.complete(**{**BODY, **body})
    return answer["choices"], answer["usage"]


def test_spec_11_answers_and_usage_are_the_same(drafting: Live, plain: Live) -> None:
    """SPEC-01, SPEC-08, SPEC-11: ids, text, logprobs, finish reason and usage, with a stop string
    and without.
    """
    for body in ({}, {"stop": ["dog and the cat"]}, {"stop": ["g and t"], "max_tokens": 9}):
        assert answers(drafting, **body) == answers(plain, **body)
    stats = drafting.engine.core.stats()
    assert stats.num_drafts > 0
    assert 0 < stats.num_accepted_tokens <= stats.num_draft_tokens
    assert sum(stats.num_accepted_per_position) == stats.num_accepted_tokens
    assert plain.engine.core.stats().num_drafts == 0


def test_a_request_may_do_without(drafting: Live, plain: Live) -> None:
    assert answers(drafting, speculative=False) == answers(plain)
    assert drafting.engine.core.stats().num_draft_tokens == 0
    assert answers(drafting, speculative=True) == answers(plain)
    assert drafting.engine.core.stats().num_draft_tokens > 0


def test_asking_for_it_where_it_is_off_is_no_error(plain: Live) -> None:
    assert answers(plain, speculative=True) == answers(plain)


def test_the_field_is_a_boolean(plain: Live) -> None:
    response = plain.post("/v1/completions", **BODY, speculative="no")
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "speculative"


def test_streams_join_to_the_same_text(drafting: Live, plain: Live) -> None:
    """Several tokens come in one event; the pieces add up."""
    for served in (drafting, plain):
        runner_of(served.engine).says(LOOP)
    texts = []
    for served in (drafting, plain):
        frames = list(served.stream("/v1/completions", **BODY))
        texts.append("".join(frame["choices"][0]["text"] for frame in frames if frame["choices"]))
    assert texts[0] == texts[1]
    assert "the cat and the dog" in texts[0]
