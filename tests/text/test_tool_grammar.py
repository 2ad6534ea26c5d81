"""Grammars of demanded calls: what they let through is a call of an allowed function."""

from __future__ import annotations

import json
from typing import Any

import pytest
from helpers.message_texts import calls_in, read, write_calls

from tinyserve.errors import RequestError
from tinyserve.text.tool_formats import (
    HERMES,
    LLAMA3_JSON,
    MISTRAL,
    MISTRAL_ARGS,
    PYTHONIC,
    PYTHONIC_MARKED,
    QWEN3_CODER,
    ToolFormat,
)
from tinyserve.text.tool_grammar import MAX_CALLS, calls_grammar
from tinyserve.text.tool_reader import CallReader
from tinyserve.text.tool_use import Function

llguidance = pytest.importorskip("llguidance")

IN_JSON = (HERMES, LLAMA3_JSON, MISTRAL, MISTRAL_ARGS)
FORMATS = (*IN_JSON, QWEN3_CODER, PYTHONIC, PYTHONIC_MARKED)
every_format = pytest.mark.parametrize(
    "form", FORMATS, ids=lambda f: f"{f.name}{f.call[1][:6]}{f.first[:3]}"
)
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
    "additionalProperties": False,
}
FUNCTIONS = [Function("get_weather", CITY), Function("now")]


def accepts(grammar: str, text: str) -> bool:
    """Whether the whole text is one that the grammar allows."""
    tokens = llguidance.LLTokenizer("byte")
    matcher = llguidance.LLMatcher(tokens, grammar, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    ids = tokens.tokenize_bytes(text.encode())
    if matcher.validate_tokens(ids) != len(ids):
        return False
    matcher.consume_tokens(ids)
    return bool(matcher.is_accepting())


@every_format
def test_calls_of_allowed_functions(form: ToolFormat) -> None:
    grammar = calls_grammar(form, FUNCTIONS)
    paris = ("get_weather", {"city": "Paris", "days": 3})
    for written in ([paris], [("now", {})], [paris, ("now", {}), paris]):
        assert accepts(grammar, write_calls(form, written))


@every_format
@pytest.mark.parametrize(
    "call",
    [
        ("get_whether", {"city": "Paris"}),
        ("get_weather", {}),
        ("get_weather", {"city": "Paris", "days": "3 or 4"}),
        ("get_weather", {"city": "Paris", "more": 1}),
        ("now", {"a": 1}),
    ],
)
def test_other_calls_are_out(form: ToolFormat, call: tuple[str, dict[str, Any]]) -> None:
    assert not accepts(calls_grammar(form, FUNCTIONS), write_calls(form, [call]))


@every_format
@pytest.mark.parametrize("strict", [False, True])
def test_arguments_that_are_not_listed_are_out(form: ToolFormat, strict: bool) -> None:
    """Small models would repeat the schema there."""
    schema: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}}
    listed = calls_grammar(form, [Function("f", schema, is_strict=strict)])
    assert accepts(listed, write_calls(form, [("f", {"a": 1})]))
    for more in ({"a": 1, "b": 2}, {"type": "object"}, {"properties": {}}):
        assert not accepts(listed, write_calls(form, [("f", more)]))
    if form.notation == "json":
        schema["additionalProperties"] = {"type": "object", "properties": {"x": {}}}
        opened = calls_grammar(form, [Function("f", schema, is_strict=strict)])
        assert accepts(opened, write_calls(form, [("f", {"b": {"x": 1}})]))
        assert not accepts(opened, write_calls(form, [("f", {"b": {"y": 1}})]))


@every_format
def test_the_number_of_calls_is_bounded(form: ToolFormat) -> None:
    call = ("now", {})
    grammar = calls_grammar(form, FUNCTIONS)
    assert accepts(grammar, write_calls(form, [call] * MAX_CALLS))
    assert not accepts(grammar, write_calls(form, [call] * (MAX_CALLS + 1)))
    assert not accepts(grammar, "")
    single = calls_grammar(form, FUNCTIONS, max_calls=1)
    assert accepts(single, write_calls(form, [call]))
    assert not accepts(single, write_calls(form, [call, call]))


@every_format
@pytest.mark.parametrize("is_strict", [False, True])
def test_arguments_that_nobody_declared_are_out(form: ToolFormat, is_strict: bool) -> None:
    """As generators write schemas: without a word on further properties."""
    schema = {key: value for key, value in CITY.items() if key != "additionalProperties"}
    grammar = calls_grammar(form, [Function("f", schema, is_strict)])
    assert accepts(grammar, write_calls(form, [("f", {"city": "Paris", "days": 3})]))
    assert not accepts(grammar, write_calls(form, [("f", {"city": "Paris", "title": "City"})]))


@pytest.mark.parametrize("form", IN_JSON, ids=lambda f: f.name)
def test_objects_among_the_arguments_are_closed_alike(form: ToolFormat) -> None:
    inner = {"type": "object", "properties": {"day": {"$ref": "#/$defs/Day"}}}
    schema = {**inner, "$defs": {"Day": {"properties": {"rain": {"type": "boolean"}}}}}
    grammar = calls_grammar(form, [Function("f", schema)])
    assert accepts(grammar, write_calls(form, [("f", {"day": {"rain": True}})]))
    more = [("f", {"day": {"rain": True, "sun": 1}})]
    assert not accepts(grammar, write_calls(form, more))
    grammar = calls_grammar(form, [Function("f", {**schema, "additionalProperties": True})])
    assert accepts(grammar, write_calls(form, [("f", {"sun": 1})]))


def test_special_tokens_are_named_by_id() -> None:
    ids = {"[TOOL_CALLS]": 9, "[ARGS]": 32}
    grammar = calls_grammar(MISTRAL_ARGS, FUNCTIONS, special_id=ids.get)
    assert 'call_0: <[9]> "get_weather" <[32]> arguments_0' in grammar
    hermes = calls_grammar(HERMES, FUNCTIONS, special_id={"<tool_call>": 5, "</tool_call>": 6}.get)
    assert 'call_1: <[5]> "\\n{\\"name\\": \\"now\\", \\"arguments\\": "' in hermes
    assert hermes.count("<[6]>") == len(FUNCTIONS)
    assert not llguidance.LLMatcher.validate_grammar(hermes, None)


ODD = (
    {"type": "uint64", "format": "uint64"},
    {"type": "number", "exclusiveMinimum": True, "minimum": "0"},
    {"type": "string", "nullable": True, "enum": None},
    {"type": "string", "enum": []},
    {"type": "string", "pattern": "^(?=a)b$"},
    {"type": "string", "pattern": r"\bword\b"},
    {"type": "string", "pattern": "["},
    {"type": "string", "minLength": "5", "maxLength": -1, "required": True},
    {"type": "array", "items": [{"type": "string"}]},
    {"type": "object", "properties": [], "additionalProperties": "false"},
    {"$ref": "https://example.org/schema.json"},
    {"anyOf": [], "description": None, "default": None},
    {"properties": {"type": {"type": "string"}, "enum": {"const": None}}},
    {"$ref": "#/$defs/A"},
)


@pytest.mark.parametrize("odd", ODD)
def test_odd_schemas_are_taken(odd: dict[str, Any]) -> None:
    schema = {"type": ["object", "null"], "properties": {"a": odd}, "$defs": {"A": {}}}
    grammar = calls_grammar(HERMES, [Function("f", schema)])
    assert accepts(grammar, write_calls(HERMES, [("f", {})]))
    assert not accepts(grammar, write_calls(HERMES, [("f", {})]).replace("{}", "[]"))


@pytest.mark.parametrize(
    "schema", [{}, {"properties": None, "required": None}, {"$schema": "x", "title": "X"}]
)
def test_schemas_that_say_nothing_mean_any_object(schema: dict[str, Any]) -> None:
    grammar = calls_grammar(HERMES, [Function("f", schema)])
    assert accepts(grammar, write_calls(HERMES, [("f", {"a": [1]})]))


@pytest.mark.parametrize("strict", [False, True])
def test_counts_of_any_spelling_hold(strict: bool) -> None:
    """The largest number there is is no limit, and 2.0 is 2."""
    text = {"type": "string", "minLength": 2.0, "maxLength": 2**53 - 1}
    schema = {"type": "object", "properties": {"a": text}}
    grammar = calls_grammar(HERMES, [Function("f", schema, is_strict=strict)])
    assert accepts(grammar, write_calls(HERMES, [("f", {"a": "xy"})]))
    assert not accepts(grammar, write_calls(HERMES, [("f", {"a": "x"})]))


@pytest.mark.parametrize("odd", [{"type": "uint64"}, {"pattern": "^(?=a)b$", "type": "string"}])
def test_strict_functions_are_taken_at_their_word(odd: dict[str, Any]) -> None:
    schema = {"type": "object", "properties": {"a": odd}}
    grammar = calls_grammar(HERMES, [Function("f", schema, is_strict=True)])
    assert llguidance.LLMatcher.validate_grammar(grammar, None)


def test_a_schema_nested_beyond_reason_is_refused() -> None:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(5000):
        schema = {"type": "object", "properties": {"a": schema}}
    with pytest.raises(RequestError, match="nested") as caught:
        calls_grammar(HERMES, [Function("f", schema)])
    assert caught.value.param == "tools"


def test_null_values_that_mean_something_stay() -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [None, 1]}}, "required": ["a"]}
    grammar = calls_grammar(HERMES, [Function("f", schema)])
    assert accepts(grammar, write_calls(HERMES, [("f", {"a": None})]))
    assert not accepts(grammar, write_calls(HERMES, [("f", {"a": 2})]))


def test_arguments_are_spaced_as_python_spaces_json() -> None:
    grammar = calls_grammar(HERMES, FUNCTIONS)
    text = write_calls(HERMES, [("get_weather", {"city": "Paris", "days": 3})])
    assert accepts(grammar, text)
    assert json.dumps({"city": "Paris", "days": 3}) in text
    assert not accepts(grammar, text.replace(", ", ",\n"))


NOTED = (QWEN3_CODER, PYTHONIC)
PARAMETERS = {
    "type": "object",
    "properties": {
        "unit": {"type": "string", "enum": ["C", "F"]},
        "city": {"type": "string"},
        "exact": {"type": "boolean"},
        "at": {"type": ["array", "null"], "items": {"$ref": "#/$defs/hour"}},
        "until": {"anyOf": [{"$ref": "#/properties/at"}, {"type": "boolean"}]},
        "sky": {"$ref": "#/$defs/sky"},
        "wind": {"anyOf": [{"$ref": "#/$defs/sky"}, {"const": "calm "}, {"type": "null"}]},
        "level": {"enum": ["low", 5, 0.5, None]},
    },
    "required": ["city"],
    "$defs": {
        "hour": {"type": "integer", "minimum": 0, "maximum": 23},
        "sky": {"type": "string", "enum": ["dry", "wet"]},
    },
}


@pytest.mark.parametrize("form", NOTED, ids=lambda f: f.name)
@pytest.mark.parametrize(
    "arguments",
    [
        {"city": "Paris"},
        {"unit": "C", "city": "Paris"},
        {"city": "Paris", "at": [1, 23]},
        {"unit": "F", "city": "", "exact": True, "at": None},
        {"city": "Paris", "until": [1, 23], "sky": "wet", "wind": "dry", "level": "low"},
        {"city": "Paris", "until": True, "sky": "dry", "wind": None, "level": 5},
        {"city": "Paris", "wind": "calm ", "level": 0.5},
        {"city": "Paris", "level": None},
    ],
)
def test_optional_arguments_may_be_left_out(form: ToolFormat, arguments: dict[str, Any]) -> None:
    """And what the grammar lets through is read as it was meant."""
    function = Function("f", PARAMETERS)
    text = write_calls(form, [("f", arguments)])
    assert accepts(calls_grammar(form, [function]), text)
    reader = CallReader(form, [function])
    [(_, found)] = calls_in(read(reader, [text]))
    assert json.loads(found) == arguments


@pytest.mark.parametrize("form", NOTED, ids=lambda f: f.name)
@pytest.mark.parametrize(
    "arguments",
    [
        {"unit": "C"},
        {"unit": "K", "city": "Paris"},
        {"city": "Paris", "at": [24]},
        {"city": "Paris", "exact": "maybe"},
        {"city": "Paris", "until": [24]},
        {"city": "Paris", "sky": "blue"},
        {"city": "Paris", "wind": "blue"},
        {"city": "Paris", "level": "high"},
        {"city": "Paris", "level": 6},
    ],
)
def test_arguments_against_the_schema_are_out(form: ToolFormat, arguments: dict[str, Any]) -> None:
    grammar = calls_grammar(form, [Function("f", PARAMETERS)])
    assert not accepts(grammar, write_calls(form, [("f", arguments)]))


@pytest.mark.parametrize("form", NOTED, ids=lambda f: f.name)
def test_arguments_may_refer_to_each_other_and_themselves(form: ToolFormat) -> None:
    """2 KiB of them were written out as 2 MiB, which took the event loop a quarter of a minute."""
    tree = {"type": "object", "properties": {"sub": {"$ref": "#/properties/tree"}}}
    grammar = calls_grammar(form, [Function("f", {"properties": {"tree": tree}})])
    for leaf, is_right in (({}, True), (1, False)):
        text = write_calls(form, [("f", {"tree": deep(leaf, 9)})])
        assert accepts(grammar, text.replace("'", '"')) == is_right

    names = [f"p{i}" for i in range(8)]
    others = [{"$ref": f"#/properties/{name}"} for name in names]
    properties = {name: {"anyOf": [*others, {"type": "integer"}]} for name in names}
    grammar = calls_grammar(form, [Function("f", {"properties": properties})])
    assert len(grammar) < 1 << 16


def deep(value: Any, depth: int) -> Any:
    return {"sub": deep(value, depth - 1)} if depth else value


@pytest.mark.parametrize("form", NOTED, ids=lambda f: f.name)
@pytest.mark.parametrize("schema", [{}, {"type": "object"}, {"anyOf": [{"type": "object"}]}])
def test_open_schemas_take_any_arguments(form: ToolFormat, schema: dict[str, Any]) -> None:
    grammar = calls_grammar(form, [Function("f", schema)])
    for arguments in ({}, {"a": "x"}, {"a": "x", "b_2": "y z"}):
        assert accepts(grammar, write_calls(form, [("f", arguments)]))


@pytest.mark.parametrize("form", NOTED, ids=lambda f: f.name)
@pytest.mark.parametrize("odd", ODD)
def test_odd_schemas_are_taken_in_every_notation(form: ToolFormat, odd: dict[str, Any]) -> None:
    schema = {"type": "object", "properties": {"a": odd, "b": True}, "$defs": {"A": {}}}
    assert accepts(calls_grammar(form, [Function("f", schema)]), write_calls(form, [("f", {})]))


@pytest.mark.parametrize("form", NOTED, ids=lambda f: f.name)
def test_names_that_the_notation_cannot_write_make_no_wrong_grammar(form: ToolFormat) -> None:
    properties = {name: {"type": "string"} for name in ('a"b', "c>d", "e f", "é", "", "ok")}
    grammar = calls_grammar(form, [Function("f", {"properties": properties})])
    assert accepts(grammar, write_calls(form, [("f", {"ok": "x"})]))
