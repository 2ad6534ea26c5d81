"""Blocks of an answer, and which tokens count to which."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from helpers.fake_service import make_engine
from hypothesis import given
from hypothesis import strategies as st

from tinyserve.engine.build import Engine
from tinyserve.engine.sampling import SamplingParams
from tinyserve.server.body import as_chat_request
from tinyserve.server.chat import chat_context
from tinyserve.server.choice_reader import ChoiceReader
from tinyserve.server.deltas import Delta, ScoredToken
from tinyserve.server.dialects.content_blocks import BlockReader, Kind
from tinyserve.server.writer import Identity

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
PIECES = [CALL, "a ", "\n", "it is", "<tool_call>\n{", "</tool_call>", "<think>hm</think>"]
ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


@pytest.fixture(scope="module")
def engine() -> Engine:
    return make_engine(model={"reasoning_parser": "qwen3"})


def blocks(engine: Engine, deltas: list[Delta]) -> list[tuple[Kind, str, list[int]]]:
    """Kind, text and tokens of each."""
    body = as_chat_request({"messages": [{"role": "user", "content": "x"}], "tools": [ADD]})
    context = chat_context(engine, body, [5], Identity("id", 0, "m", "f"), SamplingParams())
    reader = BlockReader(ChoiceReader(context))
    reader.feed(deltas)
    return [(b.kind, b.text, [token.token_id for token in b.logprobs]) for b in reader.blocks]


def in_steps(text: str, starts: list[int], steps: list[int], num_held: int) -> list[Delta]:
    """Tokens begin at `starts`; each step ends before token number `steps[i]`, with the last
    characters held back until the next one.
    """
    deltas, shown = [], 0
    for first, last in itertools.pairwise([0, *steps, len(starts)]):
        is_last = last == len(starts)
        end = len(text) if is_last else max(shown, starts[last] - num_held)
        scored = [ScoredToken(i, -0.5, (), starts[i]) for i in range(first, last)]
        deltas.append(Delta(0, text[shown:end], [5] * len(scored), scored))
        shown = end
    deltas[-1].finish_reason = "stop"
    return deltas


@given(data=st.data(), pieces=st.lists(st.sampled_from(PIECES), min_size=1, max_size=5))
def test_tokens_count_to_the_same_block_however_steps_are_cut(
    engine: Engine, data: Any, pieces: list[str]
) -> None:
    """With drafts a step makes several tokens: the end of a call and what follows it, say."""
    text = "".join(pieces)
    inner = st.sets(st.integers(1, max(1, len(text) - 1)))
    starts = [0, *sorted(data.draw(inner) - {len(text)})]
    one_by_one = in_steps(text, starts, list(range(1, len(starts))), 0)
    steps = sorted(data.draw(st.sets(st.sampled_from(range(len(starts))))) - {0})
    together = in_steps(text, starts, steps, data.draw(st.integers(0, 3)))
    assert blocks(engine, together) == blocks(engine, one_by_one)


def test_a_step_may_hold_text_a_call_and_text(engine: Engine) -> None:
    before, after = "I add ", "\nDone"
    text = before + CALL + after
    starts = [0, 2, len(before), len(before) + 20, len(before + CALL), len(text) - 4]
    assert blocks(engine, in_steps(text, starts, [], 0)) == [
        (Kind.TEXT, "I add", [0, 1]),
        (Kind.CALL, '{"a": 1}', []),
        (Kind.TEXT, " \nDone", [4, 5]),
    ]
