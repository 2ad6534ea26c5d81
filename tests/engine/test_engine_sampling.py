"""`SamplingParams`: what a client may ask for, to the last value, and how it may be spelled."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tinyserve.engine.sampling import SamplingParams
from tinyserve.errors import RequestError

NUMBERS = [
    ("temperature", 0.0, 100.0),
    ("top_p", 0.0, 1.0),
    ("min_p", 0.0, 1.0),
    ("presence_penalty", -2.0, 2.0),
    ("frequency_penalty", -2.0, 2.0),
    ("repetition_penalty", 1e-3, 100.0),
]
INTEGERS = [
    ("top_k", 0, 2**31 - 1),
    ("min_tokens", 0, 2**31 - 1),
    ("max_tokens", 0, 2**31 - 1),
    ("n", 1, 128),
    ("logprobs", 0, 20),
    ("prompt_logprobs", 0, 20),
    ("seed", -(2**63), 2**64 - 1),
]
OPTIONAL = {"max_tokens", "logprobs", "prompt_logprobs", "seed"}


def made(name: str, value: Any) -> Any:
    """What becomes of one field."""
    others = {"max_tokens": None} if name == "min_tokens" else {}
    return getattr(SamplingParams(**{**others, name: value}), name)


def assert_refused(name: str, value: Any) -> None:
    with pytest.raises(RequestError, match=name) as caught:
        made(name, value)
    assert caught.value.param == name


@pytest.mark.parametrize(("name", "low", "high"), NUMBERS)
def test_numbers_reach_their_ends_and_no_further(name: str, low: float, high: float) -> None:
    assert [made(name, value) for value in (low, high)] == [low, high]
    below, above = math.nextafter(low, -math.inf), math.nextafter(high, math.inf)
    for value in (below, above, math.nan, math.inf, -math.inf, 10**400, True, "1", None, [1]):
        assert_refused(name, value)


@pytest.mark.parametrize(("name", "low", "high"), INTEGERS)
def test_integers_reach_their_ends_and_no_further(name: str, low: int, high: int) -> None:
    assert [made(name, value) for value in (low, high)] == [low, high]
    below = -2 if name == "top_k" else low - 1  # -1 is off
    for value in (below, high + 1, 1.0, True, "1", [1]):
        assert_refused(name, value)
    if name in OPTIONAL:
        assert made(name, None) is None
    else:
        assert_refused(name, None)


@pytest.mark.parametrize(
    ("name", "value", "meaning"),
    [
        ("top_k", -1, 0),
        ("seed", -1, None),
        ("stop", "END", ("END",)),
        ("stop", None, ()),
        ("stop", ["a"] * 64, ("a",) * 64),
        ("stop_token_ids", [3, 4], (3, 4)),
        ("bad_words", ["a"], ("a",)),
        ("allowed_token_ids", [3], (3,)),
        ("allowed_token_ids", None, None),
        ("logit_bias", None, {}),
        ("logit_bias", {"5": 100, 6: -100}, {5: 100.0, 6: -100.0}),
    ],
)
def test_spellings_of_clients_mean_one_value(name: str, value: Any, meaning: Any) -> None:
    assert made(name, value) == meaning


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[(name, value) for name in ("stop", "bad_words") for value in ([""], [1], [None], 5)],
        *[("stop_token_ids", value) for value in ([True], ["1"], [1.0], "12", 5)],
        *[("allowed_token_ids", value) for value in ([], [True], ["1"], [1.0], "12", 5)],
        *[("logit_bias", {5: value}) for value in (100.1, -100.1, math.nan, 10**400, "x", None)],
        *[("logit_bias", {key: 1}) for key in ("x", " 5", "1_0", "5.0", 5.5)],
        *[("logit_bias", value) for value in ([5], "5")],
        ("stop", ["a"] * 65),
        *[("ignore_eos", value) for value in ("true", 1, None)],
        *[("skip_special_tokens", value) for value in ("true", 1, None)],
        *[("include_stop_str_in_output", value) for value in ("true", 1, None)],
    ],
)
def test_what_is_none_of_these_is_refused(name: str, value: Any) -> None:
    assert_refused(name, value)


def test_no_more_tokens_may_be_demanded_than_are_allowed() -> None:
    assert SamplingParams(min_tokens=5, max_tokens=5).min_tokens == 5
    with pytest.raises(RequestError, match=r"min_tokens \(6\) exceeds max_tokens \(5\)"):
        SamplingParams(min_tokens=6, max_tokens=5)


@pytest.mark.parametrize("name", ["logit_bias", "stop_token_ids", "allowed_token_ids"])
def test_ids_lie_within_the_vocabulary(name: str) -> None:
    def check(token_id: int) -> None:
        ids: Any = {token_id: 1.0} if name == "logit_bias" else [token_id]
        SamplingParams(**{name: ids}).check_vocab(100)

    check(0)
    check(99)
    for token_id in (-1, 100):
        with pytest.raises(RequestError, match=rf"{name}: token id {token_id} .*\(0\.\.99\)"):
            check(token_id)


@pytest.mark.parametrize(("temperature", "is_greedy"), [(0.0, True), (9e-6, True), (1e-5, False)])
def test_temperatures_too_low_to_matter_are_greedy(temperature: float, is_greedy: bool) -> None:
    assert SamplingParams(temperature=temperature).is_greedy is is_greedy
