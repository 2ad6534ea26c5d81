"""`CallReader`: calls and text apart, in every format, however the text is cut."""

from __future__ import annotations

import json
from typing import Any

import pytest
from helpers.message_texts import (
    argument_objects,
    calls,
    calls_in,
    cuts_of,
    new_reader,
    read,
    text_in,
    wild_texts,
    write_calls,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from tinyserve.text.messages import TextPart, ToolCallPart
from tinyserve.text.tool_formats import (
    HERMES,
    LLAMA3_JSON,
    MISTRAL,
    MISTRAL_ARGS,
    PYTHONIC,
    PYTHONIC_MARKED,
    QWEN3_CODER,
    ToolFormat,
    detect_tool_format,
)

IN_JSON = (HERMES, LLAMA3_JSON, MISTRAL, MISTRAL_ARGS)
FORMATS = (*IN_JSON, QWEN3_CODER, PYTHONIC, PYTHONIC_MARKED)


def name_of(form: ToolFormat) -> str:
    return f"{form.name}{form.call[1][:6]}{form.first[:3]}"


every_format = pytest.mark.parametrize("form", FORMATS, ids=name_of)
every_json_format = pytest.mark.parametrize("form", IN_JSON, ids=name_of)


def whole(form: ToolFormat, text: str, **options: Any) -> tuple[str, list[tuple[str | None, str]]]:
    """(text, calls) of a text that comes in one piece."""
    parts = read(new_reader(form, **options), [text])
    return text_in(parts), calls_in(parts)


@every_format
@settings(max_examples=50)
@given(data=st.data())
def test_any_cut_gives_the_same_parts(form: ToolFormat, data: st.DataObject) -> None:
    text = data.draw(wild_texts)
    expected = read(new_reader(form), [text])
    assert read(new_reader(form), data.draw(cuts_of(text))) == expected
    assert read(new_reader(form), list(text)) == expected


@every_format
@given(text=wild_texts)
def test_text_without_a_call_is_untouched(form: ToolFormat, text: str) -> None:
    shown, found = whole(form, text)
    if not found:
        assert shown == text


@every_json_format
@given(written=st.lists(calls, min_size=1, max_size=3), data=st.data())
def test_calls_are_read_as_they_were_written(
    form: ToolFormat, written: list[tuple[str, dict[str, Any]]], data: st.DataObject
) -> None:
    text = write_calls(form, written)
    parts = read(new_reader(form), data.draw(cuts_of(text)))
    assert text_in(parts) == ""
    assert [(name, json.loads(arguments)) for name, arguments in calls_in(parts)] == written
    assert [p.id for p in parts if isinstance(p, ToolCallPart) and p.id] == [
        f"id{i}" for i in range(len(written))
    ]


@pytest.mark.parametrize("form", [HERMES, MISTRAL, MISTRAL_ARGS])
@given(call=calls)
def test_text_around_calls_is_content(form: ToolFormat, call: tuple[str, dict[str, Any]]) -> None:
    text = f"Let me see.\n{write_calls(form, [call])}\nDone."
    shown, found = whole(form, text)
    assert shown.split() == ["Let", "me", "see.", "Done."]
    assert len(found) == 1


@given(arguments=argument_objects)
def test_arguments_may_come_before_the_name(arguments: dict[str, Any]) -> None:
    text = f'<tool_call>{{"id": 7, "arguments": {json.dumps(arguments)}, "name": "f"}}</tool_call>'
    shown, [(name, found)] = whole(HERMES, text)
    assert (shown, name, json.loads(found)) == ("", "f", arguments)


@given(arguments=argument_objects)
def test_arguments_as_a_string_of_json(arguments: dict[str, Any]) -> None:
    inner = json.dumps(json.dumps(arguments))
    _, [(_, found)] = whole(HERMES, f'<tool_call>{{"name": "f", "arguments": {inner}}}</tool_call>')
    assert json.loads(found) == arguments


def test_arguments_stream_as_they_are_written() -> None:
    reader = new_reader(HERMES)
    assert reader.push('<tool_call>{"name": "f", "arguments": {"city": "P') == [
        ToolCallPart(0, '{"city": "P', "id0", "f")
    ]
    assert reader.push("ari") == [ToolCallPart(0, "ari")]
    assert reader.push('s"') == [ToolCallPart(0, 's"')]
    assert reader.push("}}") == [ToolCallPart(0, "}")]
    assert reader.push("</tool_call>") == []
    assert reader.flush() == []


def test_what_may_be_a_marker_is_held_back() -> None:
    reader = new_reader(HERMES)
    assert reader.push("a <tool") == [TextPart("a")]
    assert reader.push("s>") == [TextPart(" <tools>")]
    assert reader.push(" <tool_cal") == []
    assert reader.flush() == [TextPart(" <tool_cal")]


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>no json</tool_call>",
        '<tool_call>{"name": 5, "arguments": {}}</tool_call>',
        '<tool_call>{"arguments": {}}</tool_call>',
        "<tool_call>[]</tool_call>",
        '<tool_call>{"name": "f", "arguments": {\'a\': 1}}</tool_call>',
        '<tool_call>{"name": "f", "argum',
        '<tool_call>{"name": "\\x", "arguments": {}}</tool_call>',
        "a </tool_call> b",
        "<tool_call>",
        "<tool_call><tool_call>",
    ],
)
def test_malformed_calls_are_text(text: str) -> None:
    assert whole(HERMES, text) == (text, [])


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('<tool_call>{"name": "f", "arguments": {"a": 1}</tool_call>', '{"a": 1}'),
        ('<tool_call>{"name": "f", "arguments": {"a": 1}}}\n</tool_call>', '{"a": 1}'),
        ('<tool_call>{"name": "f", "arguments": {"a": 1</tool_call>', '{"a": 1'),
        ('<tool_call>{"name": "f", "arguments": {"a": "b', '{"a": "b'),
        ('<tool_call>{"name": "f"}</tool_call>', "{}"),
        ('<tool_call>{"name": "f", "arguments": null}</tool_call>', "{}"),
        ('<tool_call>{"name": "f", "arguments": ""}</tool_call>', "{}"),
        ('<tool_call>{"name": "f", "arguments": {"a": 1},}</tool_call>', '{"a": 1}'),
    ],
)
def test_common_slips_keep_the_call(text: str, arguments: str) -> None:
    assert whole(HERMES, text) == ("", [("f", arguments)])


@pytest.mark.parametrize("calls", ["%s\n%s", "%s %s", "%s%s", "[%s, %s]", "[\n%s,\n%s\n]"])
def test_several_calls_between_the_same_tags(calls: str) -> None:
    first, second = '{"name": "f", "arguments": {"a": 1}}', '{"name": "get_weather"}'
    text = f"<tool_call>\n{calls % (first, second)}\n</tool_call>"
    expected = [("f", '{"a": 1}'), ("get_weather", "{}")]
    assert whole(HERMES, text) == ("", expected)
    assert whole(HERMES, f"{text}\n{text}") == ("", expected * 2)
    assert whole(HERMES, text, max_calls=1) == ("", expected[:1])


@pytest.mark.parametrize("rest", ['{"b": 2}', "[1]", "and so on"])
def test_what_follows_a_call_and_is_none_is_text(rest: str) -> None:
    text = f'<tool_call>{{"name": "f"}}\n{rest}\n</tool_call>'
    assert whole(HERMES, text) == (rest, [("f", "{}")])
    text = f'<tool_call>[{{"name": "f"}}, {rest}]</tool_call>'
    assert whole(HERMES, text)[1] == [("f", "{}")]


def test_line_breaks_in_strings_become_json() -> None:
    text = '<tool_call>{"name": "f", "arguments": {"a": "x\n\ty"}}</tool_call>'
    _, [(_, arguments)] = whole(HERMES, text)
    assert json.loads(arguments) == {"a": "x\n\ty"}


def test_markers_inside_arguments_are_arguments() -> None:
    value = '</tool_call> [TOOL_CALLS] <tool_call>{"name'
    for form in IN_JSON:
        shown, found = whole(form, write_calls(form, [("f", {"code": value}), ("f", {})]))
        assert shown == ""
        assert [json.loads(arguments) for _, arguments in found] == [{"code": value}, {}]


def test_an_unannounced_call_must_name_a_function_that_is_there() -> None:
    """Without a marker only the name tells a call from an answer in JSON."""
    text = '{"name": "Ada", "parameters": {"born": 1815}}'
    assert whole(LLAMA3_JSON, text) == (text, [])
    assert whole(LLAMA3_JSON, f"<|python_tag|>{text}") == ("", [("Ada", '{"born": 1815}')])


@pytest.mark.parametrize("form", [LLAMA3_JSON, PYTHONIC])
def test_an_unannounced_call_may_follow_some_words(form: ToolFormat) -> None:
    """Llama 3 often says first what it is going to do. Within a line it speaks of a call."""
    call = write_calls(form, [("f", {"a": 1})])
    for before in ("I will look.\n\n", "First:\n  ", "```json\n", "{}\n", "[\n"):
        shown, found = whole(form, f"{before}{call}")
        assert (shown, found) == (before.strip(), [("f", '{"a": 1}')])
        parts = read(new_reader(form), list(f"{before}{call}\nDone."))
        assert text_in(parts).split() == [*before.split(), "Done."]
    unknown = write_calls(form, [("unknown", {"a": 1})])
    for text in (f"I call {call}", f"Look:\n{unknown}\n  [0]\n{{}}"):
        assert whole(form, text) == (text, [])


def test_an_answer_in_json_is_not_held_back() -> None:
    reader = new_reader(LLAMA3_JSON)
    assert reader.push('{"city": ') == [TextPart('{"city":')]


def test_llama_calls_in_a_row() -> None:
    text = '{"name": "f", "parameters": {"a": 1}}; {"name": "get_weather", "parameters": {}}'
    assert whole(LLAMA3_JSON, text) == ("", [("f", '{"a": 1}'), ("get_weather", "{}")])
    assert whole(LLAMA3_JSON, text.replace(";", "\n"))[1] == whole(LLAMA3_JSON, text)[1]
    with_type = '{"type": "function", "name": "f", "parameters": {"a": 1}}'
    assert whole(LLAMA3_JSON, with_type) == ("", [("f", '{"a": 1}')])
    broken = '{"name": "f", "parameters": {}}; {"name": 5}'
    assert whole(LLAMA3_JSON, broken) == ('{"name": 5}', [("f", "{}")])


@pytest.mark.parametrize(
    "text",
    [
        '{"function": "f", "parameters": {"a": 1}}',
        '{"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}',
        '{"function": {"arguments": {"a": 1}, "name": "f"}, "id": {"name": "g"}, "type": "x"}',
    ],
)
def test_a_call_in_the_shape_of_a_tool(text: str) -> None:
    assert whole(LLAMA3_JSON, text) == ("", [("f", '{"a": 1}')])
    assert whole(LLAMA3_JSON, f"{text}; {text}") == ("", [("f", '{"a": 1}')] * 2)
    assert whole(HERMES, f"<tool_call>{text}</tool_call>") == ("", [("f", '{"a": 1}')])
    assert whole(MISTRAL, f"[TOOL_CALLS][{text}]") == ("", [("f", '{"a": 1}')])


def test_a_tool_is_no_call() -> None:
    """Nor is anything deeper."""
    tool = '{"type": "function", "function": {"name": "g", "parameters": {"type": "object"}}}'
    nested = '{"function": ' * 500 + '{"name": "f"}' + "}" * 500
    for text in (tool, nested, '{"function": {"description": "?"}}', '{"function": {}}'):
        assert whole(LLAMA3_JSON, text) == (text, [])


def test_mistrals_newer_form() -> None:
    text = 'Hm.[TOOL_CALLS]f[CALL_ID]abc123456[ARGS]{"a": 1}[TOOL_CALLS]get_weather{"b": {}}'
    assert whole(MISTRAL, text) == ("Hm.", [("f", '{"a": 1}'), ("get_weather", '{"b": {}}')])


@every_format
def test_no_more_calls_than_allowed(form: ToolFormat) -> None:
    text = write_calls(form, [("f", {"i": 1}), ("get_weather", {}), ("f", {})])
    assert whole(form, text, max_calls=1) == ("", [("f", '{"i": 1}')])


@every_format
@pytest.mark.parametrize("before", ["", "Thinking. "])
def test_a_demanded_call_that_is_cut_off_is_no_text(form: ToolFormat, before: str) -> None:
    """Nobody should be shown the half of a call, or of the tag that closes one."""
    before = "" if form.bare else before  # such calls stand at the beginning
    text = before + write_calls(form, [("f", {"a": "b"})] * 2)
    for end in range(len(before), len(text)):
        parts = read(new_reader(form, demands_calls=True), [text[:end]])
        assert text_in(parts) in (before, before.strip())


def test_a_deeply_nested_call_is_read_like_any_other() -> None:
    deep = "[" * 50_000 + "]" * 50_000
    text = f'<tool_call>{{"name": "f", "arguments": {{"a": {deep}}}}}</tool_call>'
    assert whole(HERMES, text) == ("", [("f", f'{{"a": {deep}}}')])


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{% if tools %}<tool_call>{% endif %}", HERMES),
        ("[TOOL_CALLS]{{ x }}", MISTRAL),
        ("[TOOL_CALLS]{{ name }}[ARGS]", MISTRAL_ARGS),
        ("<|python_tag|>", LLAMA3_JSON),
        ('Respond in the format {"name": function name, "parameters": dictionary', LLAMA3_JSON),
        ("<tool_call>\n<function=example_function_name>", QWEN3_CODER),
        ("[func_name1(params_name1=params_value1, params_name2=2), func_name2(params)]", PYTHONIC),
        ('<|python_start|>{"name": function name, "parameters": {}}<|python_end|>', LLAMA3_JSON),
        ("<|python_start|>", PYTHONIC),
        ("<|tool_call_start|>{{ calls }}<|tool_call_end|>", PYTHONIC_MARKED),
        ("{{ messages }}", HERMES),
        (None, HERMES),
    ],
)
def test_detection_by_the_template(source: str | None, expected: ToolFormat) -> None:
    assert detect_tool_format(source) is expected
    assert detect_tool_format(source, "none") is None
    assert detect_tool_format(source, "llama3_json") is LLAMA3_JSON


def test_ids_are_new_and_in_the_models_form() -> None:
    assert HERMES.new_id() != HERMES.new_id()
    assert HERMES.new_id().startswith("call_")
    assert len(MISTRAL.new_id()) == 9
    assert MISTRAL.new_id().isalnum()
