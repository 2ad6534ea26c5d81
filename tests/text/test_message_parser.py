"""`MessageParser` and thinking: the same parts for every cut, white space beside the markers."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from helpers.message_texts import (
    NAMES,
    calls_in,
    cuts_of,
    new_reader,
    read,
    reasoning_in,
    text_in,
    wild_texts,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from tinyserve.text import reasoning
from tinyserve.text.answer_format import AnswerFormat, MessageFormat, thinking_after
from tinyserve.text.message_parser import MessageParser
from tinyserve.text.messages import ReasoningPart, TextPart
from tinyserve.text.reasoning import ThinkReader
from tinyserve.text.tool_formats import HERMES, LLAMA3_JSON, MISTRAL
from tinyserve.text.tool_use import Function, ToolUse

TOOLS = ToolUse((), "auto", tuple(map(Function, NAMES)))


def parser(*, is_open: bool, with_tools: bool = True) -> MessageParser:
    tools = new_reader(HERMES) if with_tools else None
    openers, closers = (HERMES.openers, HERMES.closers) if with_tools else ((), ())
    thinking = ThinkReader(is_open=is_open, call_openers=openers, call_closers=closers)
    return MessageParser(reasoning=thinking, tools=tools)


def split(text: str, *, is_open: bool) -> tuple[str, str]:
    """(thinking, answer)."""
    parts = read(parser(is_open=is_open, with_tools=False), [text])
    return reasoning_in(parts), text_in(parts)


def test_without_readers_all_is_text() -> None:
    plain = MessageParser()
    assert plain.push("<think>a") == [TextPart("<think>a")]
    assert plain.push("") == []
    assert plain.flush() == []
    assert not plain.has_calls
    assert plain.thinking_end == 0


@pytest.mark.parametrize("is_open", [True, False])
@settings(max_examples=50)
@given(text=wild_texts, data=st.data())
def test_any_cut_gives_the_same_parts(is_open: bool, text: str, data: st.DataObject) -> None:
    text = data.draw(st.sampled_from(["", "<think>", " \n<think>\n"])) + text
    expected = read(parser(is_open=is_open), [text])
    cut = parser(is_open=is_open)
    assert read(cut, data.draw(cuts_of(text))) == expected
    one = parser(is_open=is_open)
    assert read(one, list(text)) == expected
    assert cut.thinking_end == one.thinking_end


@given(text=wild_texts)
def test_a_message_that_does_not_think_is_untouched(text: str) -> None:
    if not text.lstrip().startswith("<think>"):
        assert split(text, is_open=False) == ("", text)


@pytest.mark.parametrize(
    ("text", "is_open", "expected"),
    [
        ("<think>\nWhy?\n</think>\n\nSo.", False, ("Why?", "So.")),
        ("Why?\n</think>\n\nSo.", True, ("Why?", "So.")),
        ("<think>Why?</think>So.", True, ("Why?", "So.")),
        ("Why? Because", True, ("Why? Because", "")),
        ("Why? </thi", True, ("Why? </thi", "")),
        ("<think></think>\n\nSo.", False, ("", "So.")),
        ("</think>So.", True, ("", "So.")),
        ("So. <think>late</think>", False, ("", "So. <think>late</think>")),
        ("a</think>b</think>c", True, ("a", "b</think>c")),
        ("", True, ("", "")),
        ("<thi", False, ("", "<thi")),
        ("  ", True, ("", "")),
    ],
)
def test_chat_13_thinking_and_answer(text: str, is_open: bool, expected: tuple[str, str]) -> None:
    assert split(text, is_open=is_open) == expected


def test_thinking_streams() -> None:
    reader = parser(is_open=True)
    assert reader.push("Why") == [ReasoningPart("Why")]
    assert reader.is_reasoning
    assert reader.push("? </thi") == [ReasoningPart("?")]
    assert reader.push("nk>\nSo") == [TextPart("So")]
    assert not reader.is_reasoning
    assert reader.thinking_end == len("Why? </think>")


def test_calls_after_thinking_are_calls_and_those_within_are_thoughts() -> None:
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    parts = read(parser(is_open=True), [f"maybe {call}</think>\n\n{call}"])
    assert reasoning_in(parts) == f"maybe {call}"
    assert calls_in(parts) == [("f", "{}")]
    assert text_in(parts) == ""


@pytest.mark.parametrize("between", ["", "\n"])
def test_calls_that_end_a_message_end_its_thinking(between: str) -> None:
    """Qwen3.5 and others may call without a closing marker."""
    call = '<tool_call>\n{"name": "f", "arguments": {"a": "</think"}}\n</tool_call>'
    reader = parser(is_open=True)
    parts = read(reader, list(f"Let me see.\n\n{call}{between}{call}\n"))
    assert reasoning_in(parts) == "Let me see."
    assert calls_in(parts) == [("f", '{"a": "</think"}')] * 2
    assert text_in(parts) == ""
    assert reader.thinking_end == len("Let me see.\n\n")


@pytest.mark.parametrize(
    "thoughts",
    [
        '<tool_call>{"name": "f", "arguments": {}}</tool_call> would do, but',
        '<tool_call>{"name": "f", "arguments": {}',
        "I could write </tool_call>",
        "I could write <tool_call> or </tool_call>",
        '<tool_call>{"name": "f"}</tool_call><tool_call> and so on</tool_call>',
    ],
)
def test_calls_with_thinking_after_them_are_thoughts(thoughts: str) -> None:
    parts = read(parser(is_open=True), list(thoughts))
    assert (reasoning_in(parts), calls_in(parts), text_in(parts)) == (thoughts, [], "")


def test_a_marker_that_is_only_mentioned_delays_no_thoughts() -> None:
    reader = parser(is_open=True)
    assert read_on(reader, "use <tool_call>") == "use"
    assert read_on(reader, " or") == " <tool_call> or"
    assert read_on(reader, ' <tool_call>{"a"}</tool_call>') == ""
    assert read_on(reader, " not") == ' <tool_call>{"a"}</tool_call> not'


def test_calls_that_wait_for_the_end_are_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that called again and again while thinking took time with the square of its calls."""
    find = reasoning._first
    starts: list[int] = []

    def spied(markers: Sequence[str], text: str, start: int) -> tuple[int, str | None]:
        starts.append(start)
        return find(markers, text, start)

    monkeypatch.setattr(reasoning, "_first", spied)
    call = '<tool_call>{"name": "f"}</tool_call>\n'
    reader = parser(is_open=True)
    assert calls_in(read(reader, list(call * 50))) == [("f", "{}")] * 50
    assert len(starts) < 3 * len(call * 50)


def read_on(reader: MessageParser, piece: str) -> str:
    return reasoning_in(reader.push(piece))


@pytest.mark.parametrize(
    ("source", "setting", "expected"),
    [
        ("<think></think>", "none", "none"),
        ("<think></think>", "auto", "qwen3"),
        ("no such thing", "auto", "none"),
        (None, "auto", "none"),
        (None, "deepseek_r1", "deepseek_r1"),
    ],
)
def test_the_reasoning_parser_that_is_meant(
    source: str | None, setting: str, expected: str
) -> None:
    assert MessageFormat.detect(source, reasoning_parser=setting).reasoning == expected


def test_deepseek_thinks_unless_the_prompt_has_closed_it() -> None:
    r1 = MessageFormat(None, "deepseek_r1")
    thinking = AnswerFormat(r1).new_parser()
    assert read(thinking, ["a</think>b"]) == [ReasoningPart("a"), TextPart("b")]
    assert read(AnswerFormat(r1, thinking=False).new_parser(), ["a"]) == [TextPart("a")]


def test_what_a_parser_must_see() -> None:
    assert AnswerFormat(MessageFormat(HERMES, "none")).markers == ()
    assert set(AnswerFormat(MessageFormat(HERMES, "qwen3"), TOOLS).markers) == {
        "<tool_call>", "</tool_call>", "<think>", "</think>",
    }  # fmt: skip
    assert "<|python_tag|>" in AnswerFormat(MessageFormat(LLAMA3_JSON), TOOLS).markers
    assert "[TOOL_CALLS]" in AnswerFormat(MessageFormat(MISTRAL), TOOLS).markers


@pytest.mark.parametrize(
    ("tail", "expected"),
    [
        ("<|assistant|>", None),
        ("<|assistant|><think>\n", True),
        ("<|assistant|><think>\n\n</think>\n\n", False),
        ("<|assistant|><think>\nso far", True),
        ("<|assistant|><think>a</think><think>b", True),
    ],
)
def test_what_the_prompt_leaves_open(tail: str, expected: bool | None) -> None:
    """Only the prompt's end counts, whatever people write in their messages."""
    messages = [
        {"role": "user", "content": "what is <think>?"},
        {"role": "assistant", "content": "<think>hm</think>a marker"},
        {"role": "user", "content": " and <think> again, not </think>? "},
    ]
    prompt = "<|user|>" + "<|user|>".join(m["content"].strip() for m in messages) + tail
    assert thinking_after(prompt, messages) is expected
    if not tail.endswith("so far") and tail.count("<think>") < 2:
        assert thinking_after(f"<think>{tail}", []) is expected


@pytest.mark.parametrize("said", ["hi", "think", "n", "I think", "<think>", "</think>", "so far"])
@pytest.mark.parametrize("own", ["", "so far", "<think>\nso far", "<think>a</think>\nso far"])
@pytest.mark.parametrize(
    ("before", "expected"), [("", None), ("<think>\n", True), ("<think>\n\n</think>\n\n", False)]
)
def test_words_of_the_user_are_not_found_within_a_marker(
    said: str, own: str, before: str, expected: bool | None
) -> None:
    """ "hi" stands in `<think>`; what a continued message says may repeat the user's words."""
    messages = [{"role": "user", "content": [{"type": "text", "text": said}]}]
    if own:
        messages.append({"role": "assistant", "content": own})
    if "<think>" in own:
        expected = "</think>" not in own
    assert thinking_after(f"<|user|>{said}<|assistant|>{before}{own}", messages) is expected
