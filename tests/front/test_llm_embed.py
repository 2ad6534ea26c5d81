"""`LLM.embed`: rows in order, of unit length unless told otherwise; bad input leaves no trace."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from helpers.fake_engine import HIDDEN
from helpers.fake_service import assert_idle, make_engine, tokenizer

from tinyserve import LLM
from tinyserve.errors import ContextLengthError, RequestError


@pytest.fixture
def llm() -> Iterator[LLM]:
    with LLM.from_engine(make_engine()) as made:
        yield made
    assert_idle(made.engine)
    assert not made._core.inboxes


def test_one_row_for_each_prompt(llm: LLM) -> None:
    rows = llm.embed(["hello", "you there", "hello"])
    assert rows.shape == (3, HIDDEN)
    assert rows.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, rtol=1e-6)
    assert (rows[0] == rows[2]).all()
    assert not (rows[0] == rows[1]).all()
    ids = tokenizer().encode("hello")
    assert (llm.embed(ids) == rows[:1]).all()
    assert (llm.embed([ids, ids]) == rows[[0, 0]]).all()


def test_without_normalising_it_is_the_pooled_state(llm: LLM) -> None:
    raw, unit = llm.embed("hello", normalize=False), llm.embed("hello")
    assert abs(float(np.linalg.norm(raw)) - 1) > 1e-3
    np.testing.assert_allclose(raw / np.linalg.norm(raw), unit, rtol=1e-6)


def test_pooling_is_the_requests_else_the_configurations() -> None:
    by_default = LLM.from_engine(make_engine()).embed("hello you")
    last = LLM.from_engine(make_engine(model={"pooling": "last"}))
    mean = LLM.from_engine(make_engine(model={"pooling": "mean"}))
    assert (mean.embed("hello you") == by_default).all()
    assert not (last.embed("hello you") == by_default).all()
    assert (last.embed("hello you", pooling="mean") == by_default).all()
    assert (mean.embed("hello you", pooling="last") == last.embed("hello you")).all()


@pytest.mark.parametrize(
    ("prompts", "options", "error"),
    [
        ([], {}, RequestError),
        ("", {}, RequestError),
        (["fine", ""], {}, RequestError),
        ([1, "a"], {}, RequestError),
        ([[1, 100000]], {}, RequestError),
        ("fine", {"pooling": "cls"}, RequestError),
        ([[5], [5] * 513], {}, ContextLengthError),
    ],
)
def test_bad_input_is_refused_and_nothing_has_run(
    llm: LLM, prompts: Any, options: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        llm.embed(prompts, **options)
    assert not llm.engine.core.has_work()
    assert llm.embed("fine").shape == (1, HIDDEN)
