"""Tools and thinking in the offline API, over a fake model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from helpers.fake_service import assert_idle, make_engine, runner_of

from tinyserve import LLM
from tinyserve.errors import RequestError
from tinyserve.text.messages import Message, ReasoningPart, TextPart, ToolCallPart

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


def streamed(llm: LLM, **options: Any) -> list[tuple[Message, str, str | None]]:
    """(message, text, finish reason) of each choice of a stream."""
    deltas = list(llm.stream_chat(HELLO, **options))
    choices = sorted({delta.index for delta in deltas})
    return [
        (
            Message.of(part for d in deltas if d.index == i for part in d.parts),
            "".join(d.text for d in deltas if d.index == i),
            next(d.finish_reason for d in deltas if d.index == i and d.finish_reason),
        )
        for i in choices
    ]


@pytest.mark.parametrize(
    ("says", "options"),
    [
        (f"<think>Why?</think>Well.\n{CALL}\n{CALL} so", {"tools": TOOLS}),
        (f"Well.\n{CALL}", {}),
        (f"Well.\n{CALL}", {"tools": TOOLS, "tool_choice": "none"}),
        ("<tool_call>", {"tools": TOOLS, "tool_choice": "required", "params": {"max_tokens": 90}}),
        ("<think>Hm, and then", {"tools": TOOLS, "params": {"max_tokens": 5}}),
        (CALL[:30], {"tools": TOOLS}),
        (CALL, {"tools": TOOLS, "params": {"n": 3}}),
        (CALL, {"tools": TOOLS, "params": {"stop": ["arg"]}}),
        ("5", {"tools": TOOLS, "response_format": {"type": "json_object"}}),
    ],
)
def test_streamed_is_the_same_as_whole(llm: LLM, says: str, options: dict[str, Any]) -> None:
    runner_of(llm.engine).says(says)
    (whole,) = llm.chat(HELLO, **options)
    parts = streamed(llm, **options)
    assert len(parts) == len(whole.outputs)
    for (message, text, reason), choice in zip(parts, whole.outputs, strict=True):
        assert choice.message is not None
        for made, expected in zip(message.tool_calls, choice.message.tool_calls, strict=True):
            made.id = expected.id  # which are new each time
        assert (message, text, reason) == (choice.message, choice.text, choice.finish_reason)


def test_a_streams_parts_come_as_they_are_certain(llm: LLM) -> None:
    runner_of(llm.engine).says(f"<think>Why?</think>Well.\n{CALL}")
    kinds: list[type] = []
    with llm.stream_chat(HELLO, tools=TOOLS) as stream:
        for delta in stream:
            kinds += [type(part) for part in delta.parts]
    assert list(dict.fromkeys(kinds)) == [ReasoningPart, TextPart, ToolCallPart]
    assert kinds.count(ToolCallPart) > 1, "arguments stream"
    assert all(delta.parts == [] for delta in llm.stream("hello"))


SCHEMA = {"type": "object", "properties": {"a": {"const": 7}}, "required": ["a"]}
JSON_FORMAT = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}


def test_response_format(llm: LLM) -> None:
    runner_of(llm.engine).says("no JSON at all")
    for output in llm.chat([HELLO, HELLO], {"max_tokens": 60}, response_format=JSON_FORMAT):
        assert output.message is not None
        assert json.loads(output.message.text) == {"a": 7}
    (plain,) = llm.chat(HELLO, response_format={"type": "text"})
    assert plain.text == "no JSON at all"


def test_response_format_holds_from_the_first_token_where_no_thinking_is_read() -> None:
    """It once began after the thinking that the prompt opens, which then stood in the text."""
    template = "{{ messages[0].content }}<think>\n"
    engine = make_engine(scheduler={"max_model_len": 1024}, model={"chat_template": template})
    with LLM.from_engine(engine) as llm:
        runner_of(engine).says("Why?</think>no JSON")
        (output,) = llm.chat(HELLO, {"max_tokens": 60}, response_format=JSON_FORMAT)
        assert json.loads(output.text) == {"a": 7}


def test_response_format_leaves_calls_and_thinking_free(llm: LLM) -> None:
    runner_of(llm.engine).says(f"<think>Why?</think>{CALL}")
    for choice in (None, "required"):
        (output,) = llm.chat(HELLO, tools=TOOLS, tool_choice=choice, response_format=JSON_FORMAT)
        assert output.message is not None
        assert output.message.reasoning == "Why?"
        assert [call.name for call in output.message.tool_calls] == ["f"]


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": "json"}, "response_format"),
        (
            {"response_format": JSON_FORMAT, "params": {"structured_outputs": {"regex": "a"}}},
            "response_format",
        ),
        (
            {
                "params": {"structured_outputs": {"regex": "a"}},
                "tools": TOOLS,
                "tool_choice": "required",
            },
            "structured_outputs.regex",
        ),
        ({"tools": [TOOLS[1], TOOLS[1]]}, "tools[1].function.name"),
        ({"tool_choice": "required"}, "tool_choice"),
    ],
)
def test_both_ways_refuse_the_same(llm: LLM, options: dict[str, Any], param: str) -> None:
    for ask in (llm.chat, llm.stream_chat):
        with pytest.raises(RequestError) as caught:
            ask(HELLO, **options)
        assert caught.value.param == param
    llm.generate("hello")


def test_without_a_parser_calls_cannot_be_demanded() -> None:
    engine = make_engine(model={"tool_call_parser": "none"})
    with LLM.from_engine(engine) as llm, pytest.raises(RequestError, match="tool_call_parser"):
        llm.stream_chat(HELLO, tools=TOOLS, tool_choice="required")
