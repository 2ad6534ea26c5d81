"""What can never run is refused at the door, and the next request works."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.fake_engine import VOCAB, FakeEngine

from tinyserve.errors import ContextLengthError, RequestError


def refused(engine: FakeEngine, *args: Any, **options: Any) -> RequestError:
    """The error; and the engine works as if nothing had been asked."""
    with pytest.raises(RequestError) as caught:
        engine.add(*args, **options)
    assert not engine.core.has_work()
    assert len(engine.generate([1], max_tokens=2)) == 2
    engine.assert_empty()
    return caught.value


def test_an_empty_prompt() -> None:
    assert refused(FakeEngine(), []).param == "prompt"


@pytest.mark.parametrize("token_id", [-1, VOCAB, 10**7])
def test_prompt_ids_outside_the_vocabulary(token_id: int) -> None:
    error = refused(FakeEngine(), [1, token_id, 2])
    assert str(token_id) in error.message
    assert error.param == "prompt"


def test_parameter_ids_outside_the_vocabulary() -> None:
    assert refused(FakeEngine(), [1], stop_token_ids=(VOCAB,)).param == "stop_token_ids"
    assert refused(FakeEngine(), [1], logit_bias={-1: 1.0}).param == "logit_bias"


def test_a_prompt_that_leaves_no_room_in_the_context() -> None:
    error = refused(FakeEngine(max_model_len=20), [1] * 20, max_tokens=1)
    assert isinstance(error, ContextLengthError)
    assert "20" in error.message
    assert refused(FakeEngine(max_model_len=20), [1] * 21, max_tokens=0).param == "prompt"


def test_the_longest_prompts_that_fit() -> None:
    engine = FakeEngine(max_model_len=20)
    assert len(engine.generate([1] * 19, max_tokens=None)) == 1
    assert engine.generate([1] * 20, max_tokens=0, prompt_logprobs=1) == []


def test_a_prompt_larger_than_the_whole_pool() -> None:
    error = refused(FakeEngine(num_blocks=4), [1] * 17, max_tokens=1)
    assert isinstance(error, ContextLengthError)
    assert error.param == "prompt"


def test_an_answer_larger_than_the_whole_pool() -> None:
    """CON-07: refused up front, never spun on."""
    error = refused(FakeEngine(num_blocks=4), [1] * 10, max_tokens=8)
    assert isinstance(error, ContextLengthError)
    assert error.param == "max_tokens"
    assert "num_blocks" in error.message


def test_the_longest_answer_that_fits_the_pool() -> None:
    """Sixteen slots hold a prompt of ten and the first six of seven tokens."""
    engine = FakeEngine(num_blocks=4)
    assert len(engine.generate([1] * 10, max_tokens=7)) == 7
    assert len(engine.generate([1] * 10, max_tokens=7, n=3, temperature=1.0)) == 7
    assert engine.generate([1] * 16, max_tokens=0, prompt_logprobs=1) == []
    assert len(engine.generate([1] * 16, max_tokens=1)) == 1


def test_the_context_bounds_what_the_pool_must_hold() -> None:
    engine = FakeEngine(num_blocks=4, max_model_len=17)
    assert len(engine.generate([1] * 10, max_tokens=None)) == 7
    assert refused(engine, [1] * 10, max_tokens=8).param == "max_tokens"


def test_a_request_id_in_use() -> None:
    """CON-17: a second request never replaces the first."""
    engine = FakeEngine()
    engine.add([1], request_id="x", max_tokens=3)
    with pytest.raises(RequestError, match="'x'"):
        engine.add([2], request_id="x", max_tokens=3)
    engine.run()
    assert len(engine.results["x"][0].token_ids) == 3


def test_an_empty_cache_salt() -> None:
    """PFX-03."""
    assert refused(FakeEngine(), [1], cache_salt="").param == "cache_salt"
