"""Tools and thinking in the offline API, over a fake model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from helpers.fake_service import assert_idle, make_engine, runner_of

from tinyserve import LLM
from tinyserve.errors import RequestError
from tinyserve.text.messages import Message

HELLO = [{"role": "user", "content": "hello"}]
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}},
    {"type": "function", "function": {"name": "g"}},
]


@pytest.fixture
def llm() -> Iterator[LLM]:
    engine = make_engine(scheduler={"max_model_len": 1024}, model={"reasoning_parser": "qwen3"})
    with LLM.from_engine(engine) as made:
        yield made
    assert_idle(made.engine)


def test_calls_thinking_and_text(llm: LLM) -> None:
    runner_of(llm.engine).says(f"<think>Why?</think>Well.\n{CALL}")
    (output,) = llm.chat(HELLO, tools=TOOLS)
    assert output.message is not None
    assert (output.message.reasoning, output.message.text) == ("Why?", "Well.")
    (call,) = output.message.tool_calls
    assert (call.name, json.loads(call.arguments)) == ("f", {"a": 1})
    assert output.text.startswith("<think>"), "the text itself stays as the model wrote it"
    (plain,) = llm.chat(HELLO)
    assert plain.message == Message(f"Well.\n{CALL}", "Why?")
    (generated,) = llm.generate("x")
    assert generated.message is None


def test_demanded_calls(llm: LLM) -> None:
    named = {"type": "function", "function": {"name": "g"}}
    runner_of(llm.engine).says("<tool_call>")  # and no more by itself
    params = {"max_tokens": 100}
    for output in llm.chat([HELLO, HELLO], params, tools=TOOLS, tool_choice=named):
        assert output.message is not None
        assert [(c.name, c.arguments) for c in output.message.tool_calls] == [("g", "{}")]


@pytest.mark.parametrize(
    "options",
    [
        {"tools": [TOOLS[1], TOOLS[1]]},
        {"tool_choice": "required"},
        {"tools": TOOLS, "tool_choice": "some"},
        {
            "tools": TOOLS,
            "tool_choice": "required",
            "params": {"structured_outputs": {"regex": "a"}},
        },
    ],
)
def test_what_is_refused_leaves_no_trace(llm: LLM, options: dict[str, Any]) -> None:
    with pytest.raises(RequestError):
        llm.chat(HELLO, **options)
    llm.generate("hello")
