"""From what a user hands in to an engine request."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.fake_service import make_engine, tokenizer

from tinyserve.engine.intake import Intake, split_prompts
from tinyserve.engine.sampling import SamplingParams
from tinyserve.errors import ContextLengthError, RequestError


@pytest.fixture
def intake() -> Intake:
    return make_engine(cache={"num_blocks": 64}, scheduler={"max_model_len": 200}).intake


def test_context_errors_name_the_part_at_fault(intake: Intake) -> None:
    for num_prompt, max_tokens, param in (
        (201, 1, "prompt"),
        (200, None, "prompt"),
        (8, 193, "max_tokens"),
    ):
        with pytest.raises(ContextLengthError) as caught:
            intake.request("r", [65] * num_prompt, SamplingParams(max_tokens=max_tokens))
        assert caught.value.param == param
        assert caught.value.code == "context_length_exceeded"
    exact = intake.request("r", [65] * 8, SamplingParams(max_tokens=192))
    assert exact.params.max_tokens == 192
    rest = intake.request("r", [65] * 8, SamplingParams(max_tokens=None))
    assert rest.params.max_tokens == 192
    scored = intake.request("r", [65] * 200, SamplingParams(max_tokens=0))
    assert scored.params.max_tokens == 0


def test_min_tokens_needs_room_too(intake: Intake) -> None:
    with pytest.raises(ContextLengthError):
        intake.request("r", [65] * 190, SamplingParams(max_tokens=None, min_tokens=11))


def test_the_engine_agrees_with_the_door() -> None:
    """What the intake lets through, the engine takes; one token more, and both refuse."""
    engine = make_engine(cache={"num_blocks": 4, "block_size": 4}, scheduler={"max_model_len": 64})
    request = engine.intake.request("r", [65] * 10, SamplingParams(max_tokens=7))
    engine.core.add_request(request)
    engine.core.abort("r")
    with pytest.raises(ContextLengthError):
        engine.intake.request("r", [65] * 10, SamplingParams(max_tokens=8))
    request.params = SamplingParams(max_tokens=8)
    with pytest.raises(ContextLengthError):
        engine.core.add_request(request)
    assert (
        engine.intake.request("r", [65] * 10, SamplingParams(max_tokens=None)).params.max_tokens
        == 7
    )


def test_bad_words_with_and_without_a_space(intake: Intake) -> None:
    request = intake.request("r", [65], SamplingParams(bad_words=["the", " of"]))
    encode = tokenizer().encode
    assert set(request.bad_words_ids) == {tuple(encode(text)) for text in ("the", " the", " of")}


def test_text_is_made_anew_for_each_choice(intake: Intake) -> None:
    request = intake.request("r", [65], SamplingParams(stop=["b"], n=2))
    assert request.new_text is not None
    first, second = request.new_text(), request.new_text()
    a, b = tokenizer().encode("a")[0], tokenizer().encode("b")[0]
    assert first.push(a, True) == "a"
    assert (first.push(b, True), first.stop_hit) == ("", "b")
    assert second.stop_hit is None
    assert second.push(b, False) == "b"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
        ((1, 2), [[1, 2]]),
    ],
)
def test_split_prompts(value: Any, expected: Any) -> None:
    assert split_prompts(value) == expected


@pytest.mark.parametrize("value", [None, [], 5, {"a": 1}, [1, "a"], [True], [1.0], [[1], 2]])
def test_split_prompts_refuses(value: Any) -> None:
    with pytest.raises(RequestError, match="prompt"):
        split_prompts(value)


def test_unknown_sampling_fields_are_named(intake: Intake) -> None:
    with pytest.raises(RequestError, match="temprature"):
        intake.params({"temprature": 1})
