"""Calls in Qwen3-Coder's tags and in Python's notation: values, types, slips, streaming."""

from __future__ import annotations

import json
from typing import Any

import pytest
from helpers.message_texts import (
    KINDS,
    calls_in,
    cuts_of,
    new_reader,
    read,
    text_in,
    write_calls,
)
from hypothesis import given
from hypothesis import strategies as st

from tinyserve.text.messages import Message, TextPart, ToolCallPart
from tinyserve.text.tool_formats import PYTHONIC, PYTHONIC_MARKED, QWEN3_CODER, ToolFormat
from tinyserve.text.tool_values import as_json, parameter_types

NOTED = (QWEN3_CODER, PYTHONIC, PYTHONIC_MARKED)
every_notation = pytest.mark.parametrize("form", NOTED, ids=lambda f: f"{f.name}{f.first[:3]}")
TEXTS = (
    "",
    "x",
    " ",
    "\n",
    "a\nb\n",
    "5",
    "null",
    "<b>",
    "é\u2028😀",
    'say "hi" \\ \t',
    "'",
    "</p>",
)
VALUES: dict[str, tuple[Any, ...]] = {
    "s": TEXTS,
    "i": (0, -5, 12345678901234567890),
    "b": (True, False),
    "l": ([], [1, [2.5, None]], ["a", True], [{"k": "v, ]"}]),
    "o": ({}, {"k": {"k": []}}, {"(": ")", "a b": False}),
    "n": (None,),
}
argument_objects = st.fixed_dictionaries(
    {}, optional={key: st.sampled_from(values) for key, values in VALUES.items()}
)
written_calls = st.lists(
    st.tuples(st.sampled_from(("f", "get_weather")), argument_objects), min_size=1, max_size=3
)


def found_in(form: ToolFormat, *pieces: str) -> tuple[str, list[tuple[str | None, Any]]]:
    """(text, calls with their arguments read)."""
    parts = read(new_reader(form), pieces)
    return text_in(parts), [(name, json.loads(text)) for name, text in calls_in(parts)]


def test_every_kind_of_value_is_tried() -> None:
    assert VALUES.keys() == KINDS.keys()


@every_notation
@given(written=written_calls, data=st.data())
def test_calls_are_read_as_they_were_written(
    form: ToolFormat, written: list[tuple[str, dict[str, Any]]], data: st.DataObject
) -> None:
    text = write_calls(form, written)
    assert found_in(form, *data.draw(cuts_of(text))) == ("", written)
    assert found_in(form, *text) == ("", written)


numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
literals = st.recursive(
    st.none() | st.booleans() | numbers | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=2).map(tuple)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(value=literals)
def test_any_literal_of_python(value: Any) -> None:
    assert found_in(PYTHONIC, f"[f(x={value!r})]") == (
        "",
        [("f", {"x": json.loads(json.dumps(value))})],
    )


@pytest.mark.parametrize(
    ("literal", "expected"),
    [
        ("'it\\'s'", "it's"),
        ('"a\\x41\\u00e9\\U0001F600"', "aAé😀"),
        (r'"\ud83d\ude00"', "😀"),
        (r"'\d\/'", r"\d/"),
        ("'a\nb'", "a\nb"),
        ('"""a\n"b" \'\'c"""', "a\n\"b\" ''c"),
        ("'''\\n'''", "\n"),
        ('""""a"""', '"a'),
        ('""', ""),
        ("'' ", ""),
        ("0x1F", 31),
        ("1_000", 1000),
        (".5", 0.5),
        ("+3", 3),
        ("1e999", float("inf")),  # passed on as written, like any number of JSON
        ("007", 7.0),
        ("Paris", "Paris"),
        ("true", True),
        ("{1: 'a', None: 2}", {"1": "a", "None": 2}),
        ("(1, 'a',)", [1, "a"]),
        ("[ 1 , 2 , ]", [1, 2]),
        ("{'a': 1,}", {"a": 1}),
        ("{ 'a' , True, }", ["a", True]),
        ("{(1, 2), ()}", [[1, 2], []]),
        ("{'a': {1}, 'b': {}, 'c': {'d': [{2}]}}", {"a": [1], "b": {}, "c": {"d": [[2]]}}),
        (r"r'\d\'\n'", r"\d\'\n"),
        ("Rb'''\\''''", "\\'"),
        ("f'a{b}'", "a{b}"),
        ("[u'a', b'b']", ["a", "b"]),
        ("{u'a': 1}", {"a": 1}),
        ("'a' \"'b'\"\n ''", "a'b'"),
    ],
)
def test_literals_and_what_models_write_for_them(literal: str, expected: Any) -> None:
    assert found_in(PYTHONIC, f"[f( x = {literal} )]") == ("", [("f", {"x": expected})])


@pytest.mark.parametrize(
    "text",
    [
        "[1, 2, 3]",
        "[",
        "[]",
        "[f",
        "[f(",
        "[f('positional')]",
        "[nobody(a=1)]",
        "[f (a=1)",
        "[a link](https://example.org/?a=1)",
        "f(i=1)",
        "See [f(i=1)]",
    ],
)
def test_what_is_no_call_in_python_is_text(text: str) -> None:
    if text == "[f (a=1)":
        assert found_in(PYTHONIC, text + "]")[1] == [("f", {"a": 1})]
    else:
        assert found_in(PYTHONIC, text) == (text, [])


def test_markers_around_python() -> None:
    text = "Let me see. <|tool_call_start|>[nobody(i=1)]<|tool_call_end|> Done."
    shown, found = found_in(PYTHONIC_MARKED, text)
    assert (shown.split(), found) == (["Let", "me", "see.", "Done."], [("nobody", {"i": 1})])


def test_json_between_markers() -> None:
    """LFM2 writes it when the system message asks for JSON; without markers it is an answer."""
    calls = '[{"name": "f", "arguments": {"s": "x"}}, {"name": "get_weather", "arguments": {}}]'
    text = f"Well. <|tool_call_start|>{calls}<|tool_call_end|>"
    expected = [("f", {"s": "x"}), ("get_weather", {})]
    assert found_in(PYTHONIC_MARKED, text) == ("Well.", expected)
    assert found_in(PYTHONIC_MARKED, *text) == ("Well.", expected)
    for form in (PYTHONIC, PYTHONIC_MARKED):
        assert found_in(form, calls) == (calls, [])
    broken = '<|tool_call_start|>[{"name": 5}]<|tool_call_end|>'
    assert found_in(PYTHONIC_MARKED, broken) == (broken, [])


def test_python_streams() -> None:
    reader = new_reader(PYTHONIC)
    assert reader.push("[f(s") == []
    assert reader.push("='Par") == [ToolCallPart(0, '{"s": "Par', "id0", "f")]
    assert reader.push("is', ") == [ToolCallPart(0, 'is"')]
    assert reader.push("i=4") == [ToolCallPart(0, ', "i": ')]
    assert reader.push("2), f()]") == [
        ToolCallPart(0, "42}"),
        ToolCallPart(1, "{}", "id1", "f"),
    ]
    assert reader.flush() == []


def test_tags_stream() -> None:
    reader = new_reader(QWEN3_CODER)
    assert reader.push("I see.\n<tool_call>\n<function=f") == [TextPart("I see.")]
    assert reader.push(">\n<parameter=s>\nPar") == [ToolCallPart(0, '{"s": "Par', "id0", "f")]
    assert reader.push("is\n</para") == [ToolCallPart(0, "is")]
    assert reader.push("graph>") == [ToolCallPart(0, "\\n</paragraph>")]
    assert reader.push("\n</parameter>") == [ToolCallPart(0, '"')]
    assert reader.push("\n<parameter=i>\n4") == [ToolCallPart(0, ', "i": ')]
    assert reader.push("2\n</parameter>\n</function>\n</tool_call>") == [ToolCallPart(0, "42}")]
    assert reader.flush() == []


CALL = "<function=f>\n<parameter=i>\n5\n</parameter>\n</function>"


@pytest.mark.parametrize(
    "text",
    [
        f"<tool_call>\n{CALL}\n</tool_call>",
        CALL,
        f"{CALL}\n</tool_call>",
        "<tool_call><function=f><parameter=i>5</parameter></function></tool_call>",
        "<tool_call>\n<function=f>\n<parameter=i>\n5\n</function>\n</tool_call>",
        "<tool_call>\n<function=f>\n<parameter=i>\n5\n</parameter>\n</tool_call>",
        '<function=f>{"i": 5}</function>',
        '<tool_call>\n<function=f>\n{"i": 5}\n</function>\n</tool_call>',
        '<function=f>{"i": 5}\n</tool_call>',
        '<tool_call>\n<function="f">\n<parameter="i">\n 5 \n</parameter>\n</function>',
    ],
)
def test_common_slips_keep_the_call(text: str) -> None:
    assert found_in(QWEN3_CODER, text) == ("", [("f", {"i": 5})])


def test_a_value_without_its_end_ends_at_the_next() -> None:
    text = "<function=f>\n<parameter=s>\na\n<parameter=i>\n5\n</function>"
    assert found_in(QWEN3_CODER, text) == ("", [("f", {"s": "a", "i": 5})])


@pytest.mark.parametrize(
    "value",
    [
        "a </parameter> b",
        "</parameter>",
        "a</parameter></parameter>",
        "  <p>\n  </parameter>\n  </p>",
        "a</parameter> <parameter> </p\n</func",
        "a</parameter>\n</p>",
    ],
)
@pytest.mark.parametrize("end", ["\n</parameter>\n", "</parameter>\n", "</parameter>"])
def test_a_value_may_hold_a_closing_tag(value: str, end: str) -> None:
    """A file that is written, say, need not end with the first that stands in it."""
    one = f"<parameter=s>\n{value}{end}<parameter=i>\n5{end}"
    for text in (f"<function=f>\n{one}</function>", f"<function=f>\n{one}</tool_call>"):
        assert found_in(QWEN3_CODER, text) == ("", [("f", {"s": value, "i": 5})])


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>no tag</tool_call>",
        "<tool_call>\n<functions>",
        "<tool_call>\n<function=a b>",
        "<tool_call>\n<function=>",
        "<function=" + "x" * 300 + ">",
        '<tool_call>{"name": "f", "arguments": {}}</tool_call>',
        "<tool_call>\n<func",
        "a </tool_call> b",
    ],
)
def test_what_is_no_call_in_tags_is_text(text: str) -> None:
    assert found_in(QWEN3_CODER, text) == (text, [])


def test_a_call_without_arguments() -> None:
    """Its arguments are an object, not an empty text."""
    assert found_in(QWEN3_CODER, "<function=f>\n</function>") == ("", [("f", {})])
    assert found_in(PYTHONIC, "[f()]") == ("", [("f", {})])


def test_a_cut_off_call_keeps_what_there_is() -> None:
    parts = read(new_reader(QWEN3_CODER), ["<tool_call>\n<function=f>\n<parameter=s>\nab</par"])
    assert [c.arguments for c in Message.of(parts).tool_calls] == ['{"s": "ab']
    parts = read(new_reader(PYTHONIC), ["[f(s='ab\\x4"])
    assert [c.arguments for c in Message.of(parts).tool_calls] == ['{"s": "ab']


def test_deep_literals_are_read_like_any_other() -> None:
    deep = "[" * 50_000 + "]" * 50_000
    parts = read(new_reader(PYTHONIC), [f"[f(x={deep})]"])
    assert calls_in(parts) == [("f", f'{{"x": {deep}}}')]
    parts = read(new_reader(QWEN3_CODER), [CALL.replace("=i", "=l").replace("5", deep)])
    assert len(calls_in(parts)) == 1


@pytest.mark.parametrize(
    ("text", "types", "expected"),
    [
        ("5", ("string",), "5"),
        ("5", ("integer",), 5),
        ("5", ("number",), 5),
        ("5", (), 5),
        ("5", ("string", "integer"), 5),
        ("5", ("string", "null"), "5"),
        ("null", ("string", "null"), None),
        ("None", ("integer", "null"), None),
        ("null", ("string",), "null"),
        ("True", ("boolean",), True),
        ("true", (), True),
        ("True", ("string", "integer"), "True"),
        ("yes", ("boolean",), "yes"),
        ('"quoted"', ("string",), '"quoted"'),
        ('{"a": [1]}', ("object",), {"a": [1]}),
        ("{'a'", ("object",), "{'a'"),
        ("{'a': True, \"b\": [None, 'it\\'s']}", ("object",), {"a": True, "b": [None, "it's"]}),
        ("['x', ('y',)]", ("array", "null"), ["x", ["y"]]),
        ('{"a": [1,],}', ("object",), {"a": [1]}),
        ('["a\nb"]', ("array",), ["a\nb"]),
        ("['x']", ("object",), "['x']"),
        ("['x']", ("string", "array"), "['x']"),
        ("['x']", (), "['x']"),
        ("['x'] and more", ("array",), "['x'] and more"),
        ("[f(x)]", ("array",), "[f(x)]"),
        ("{1, 2}", ("array",), [1, 2]),
        ("{1, 2}", ("object",), "{1, 2}"),
        ("'x'", ("array",), "'x'"),
        ("", ("array",), ""),
        (" [1] ", ("array",), [1]),
        ("NaN", ("number",), "NaN"),
        ("9" * 5000, ("integer",), "9" * 5000),
        ("", ("integer",), ""),
        ("plain text", (), "plain text"),
    ],
)
def test_the_schema_tells_what_a_text_stands_for(
    text: str, types: tuple[str, ...], expected: Any
) -> None:
    assert json.loads(as_json(text, frozenset(types))) == expected


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "string"}, {"string"}),
        ({"type": ["integer", "null"]}, {"integer", "null"}),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, {"string", "null"}),
        ({"$ref": "#/$defs/A"}, {"boolean"}),
        ({"$ref": "#/$defs/loop"}, set()),
        ({"$ref": "#/nowhere/at/all"}, set()),
        ({"enum": ["a", 1, None]}, {"string", "integer", "null"}),
        ({"const": 1.5}, {"number"}),
        ({"type": 5, "anyOf": 7, "enum": {}}, set()),
        (True, set()),
        (None, set()),
    ],
)
def test_the_types_of_a_parameter(schema: Any, expected: set[str]) -> None:
    definitions = {"A": {"type": "boolean"}, "loop": {"$ref": "#/$defs/loop"}}
    parameters = {"properties": {"a": schema}, "$defs": definitions}
    assert parameter_types(parameters, "a") == expected
    assert parameter_types(parameters, "b") == set()
    assert parameter_types({"properties": [schema]}, "a") == set()
    assert parameter_types(None, "a") == set()


def test_references_are_followed_once_however_many_there_are() -> None:
    """Alternatives that refer to each other took time with the fourth power of their number."""
    names = [f"p{i}" for i in range(64)]
    everyone = {"anyOf": [{"$ref": f"#/properties/{name}"} for name in names]}
    properties: dict[str, Any] = dict.fromkeys(names, everyone)
    assert parameter_types({"properties": properties}, "p0") == set()
    chain = {f"p{i}": {"$ref": f"#/properties/p{i + 1}"} for i in range(20)}
    assert parameter_types({"properties": {**chain, "p20": {"type": "null"}}}, "p0") == {"null"}
