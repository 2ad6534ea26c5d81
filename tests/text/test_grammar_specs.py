"""From what clients write to a `GrammarSpec`, and from there to what llguidance reads."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tinyserve.errors import RequestError
from tinyserve.text.grammar_schema import with_additional, with_closed_objects, with_types
from tinyserve.text.grammar_source import MAX_MULTIPLE, WHITESPACE, source_of
from tinyserve.text.grammar_spec import GrammarSpec, spec_of_options

PERSON = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


def spec(**options: Any) -> GrammarSpec:
    found = spec_of_options(options, "structured_outputs")
    assert found is not None
    return found


def refusal(options: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        spec_of_options(options, "structured_outputs")
    return caught.value


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"json": PERSON}, "json_schema"),
        ({"json": json.dumps(PERSON)}, "json_schema"),
        ({"json": {}}, "json_schema"),
        ({"json_object": True}, "json_object"),
        ({"regex": "a+"}, "regex"),
        ({"choice": ["a", "b"]}, "choice"),
        ({"grammar": 'start: "a"'}, "lark"),
        ({"regex": "a+", "json": None, "json_object": False, "backend": "auto"}, "regex"),
    ],
)
def test_every_kind_has_its_name(options: dict[str, Any], kind: str) -> None:
    """GD-11: vLLM's names."""
    found = spec(**options)
    assert found.kind == kind
    assert str(found.param).startswith("structured_outputs.")


@pytest.mark.parametrize("options", [{}, {"json_object": False}, {"json": None}])
def test_no_constraint_is_none(options: dict[str, Any]) -> None:
    assert spec_of_options(options, "structured_outputs") is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"json": PERSON, "regex": "a"}, "json, regex"),
        ({"json_object": True, "choice": ["a"]}, "json_object, choice"),
        ({"json": "{"}, "not valid JSON"),
        ({"json": "[1]"}, "JSON schema"),
        ({"json": True}, "JSON schema"),
        ({"json": 5}, "JSON schema"),
        ({"json": {"const": float("nan")}}, "not JSON"),
        ({"json": {"enum": ["a", [2**53 + 1]]}}, "53 bits"),
        ({"json": {"type": "integer", "maximum": 10**400}}, "53 bits"),
        ({"json_object": "yes"}, "true or false"),
        ({"regex": ""}, "not empty"),
        ({"regex": 5}, "string"),
        ({"choice": []}, "not empty"),
        ({"choice": "ab"}, "list of strings"),
        ({"choice": ["a", 1]}, "only strings"),
        ({"grammar": ["a"]}, "string"),
        ({"structural_tag": {}}, "not supported"),
        ({"whitespace_pattern": " "}, "no constraint"),
        ({"regex": "a", "disable_any_whitespace": True}, "json only"),
        ({"json": PERSON, "disable_any_whitespace": "yes"}, "true or false"),
        ({"json": PERSON, "whitespace_pattern": 5}, "string"),
        ({"json": PERSON, "whitespace_pattern": " ", "disable_any_whitespace": True}, "exclude"),
        ({"json": PERSON, "backend": "outlines"}, "outlines"),
        ({"foo": 1}, "'foo'"),
        ([], "object"),
    ],
)
def test_what_is_wrong_is_refused_by_name(options: Any, words: str) -> None:
    """GD-02, GD-11: nothing is ignored, and the field is named."""
    error = refusal(options)
    assert words in str(error)
    assert str(error.param).startswith("structured_outputs")


def test_the_field_is_no_part_of_what_is_compiled() -> None:
    assert GrammarSpec("regex", "a", param="x") == GrammarSpec("regex", "a", param="y")
    assert hash(GrammarSpec("regex", "a", param="x")) == hash(GrammarSpec("regex", "a"))


def schema_in(found: GrammarSpec) -> dict[str, Any]:
    """The schema as llguidance gets it."""
    source = json.loads(source_of(found, lambda text: None))
    schema: dict[str, Any] = source["grammars"][1]["json_schema"]
    return schema


def test_whitespace_is_bounded_unless_the_request_says_how() -> None:
    assert schema_in(spec(json=PERSON))["x-guidance"] == {"whitespace_pattern": WHITESPACE}
    assert schema_in(spec(json_object=True))["x-guidance"] == {"whitespace_pattern": WHITESPACE}
    compact = spec(json=PERSON, disable_any_whitespace=True)
    assert schema_in(compact)["x-guidance"] == {"whitespace_flexible": False}
    spaced = spec(json=PERSON, whitespace_pattern="[ ]?")
    assert schema_in(spaced)["x-guidance"] == {"whitespace_pattern": "[ ]?"}
    own = {**PERSON, "x-guidance": {"whitespace_flexible": False}}
    assert schema_in(spec(json=own))["x-guidance"] == {"whitespace_flexible": False}


def test_properties_keep_their_order() -> None:
    names = ["zeta", "alpha", "mid"]
    schema = {"type": "object", "properties": {name: {} for name in names}}
    assert list(schema_in(spec(json=schema))["properties"]) == names


OBJECT = {"type": "object", "properties": {"a": {}}}


@pytest.mark.parametrize(
    ("schema", "is_closed"),
    [
        (OBJECT, True),
        ({"type": "object", "properties": {}}, True),
        ({"type": "object"}, None),
        ({**OBJECT, "additionalProperties": True}, True),
        ({**OBJECT, "additionalProperties": {"type": "string"}}, {"type": "string"}),
        ({**OBJECT, "required": ["a"]}, True),
        ({**OBJECT, "required": ["b"]}, None),
        ({**OBJECT, "minProperties": 2}, None),
        ({"allOf": [OBJECT, {"properties": {"b": {}}}]}, None),
        ({**OBJECT, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, None),
        ({**OBJECT, "$ref": "#/$defs/x", "$defs": {"x": OBJECT}}, None),
    ],
)
def test_objects_are_closed_where_that_contradicts_nothing(schema: Any, is_closed: Any) -> None:
    closed = with_closed_objects(schema)
    if is_closed is True and "additionalProperties" not in schema:
        assert closed == {**schema, "additionalProperties": False}
    else:
        assert closed == schema


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({"properties": {"a": {}}}, "object"),
        ({"required": ["a"]}, "object"),
        ({"items": {"type": "string"}}, "array"),
        ({"maxLength": 5}, "string"),
        ({"minimum": 1}, "number"),
        ({}, None),
        ({"description": "any"}, None),
        ({"minLength": 1, "minimum": 1}, None),  # of two types: any value may be meant
        ({"enum": [1, None], "minimum": 1}, None),
        ({"$ref": "#/$defs/a", "properties": {}}, None),
        ({"anyOf": [{"type": "null"}], "required": []}, None),
    ],
)
def test_a_schema_without_a_type_means_the_one_it_is_about(
    schema: dict[str, Any], kind: str | None
) -> None:
    assert with_types(schema).get("type") == kind
    assert with_types({"items": [schema]})["items"][0].get("type") == kind
    assert with_types({"properties": {"b": schema}})["properties"]["b"].get("type") == kind
    assert with_types({**schema, "type": "null"})["type"] == "null"
    for key in ("const", "default", "allOf"):
        value = [schema]
        assert with_types({key: value})[key] == value


def test_objects_are_closed_at_every_depth_but_not_in_data() -> None:
    schema = {
        "$defs": {"x": OBJECT},
        "type": "object",
        "properties": {
            "properties": {"type": "array", "items": OBJECT},
            "b": {"anyOf": [{"$ref": "#/$defs/x"}, {"type": "null"}]},
            "c": {"enum": [OBJECT], "default": OBJECT},
        },
    }
    shut = {**OBJECT, "additionalProperties": False}
    assert with_closed_objects(schema) == {
        "$defs": {"x": shut},
        "type": "object",
        "properties": {
            "properties": {"type": "array", "items": shut},
            "b": {"anyOf": [{"$ref": "#/$defs/x"}, {"type": "null"}]},
            "c": {"enum": [OBJECT], "default": OBJECT},
        },
        "additionalProperties": False,
    }


def test_integers_that_a_double_holds_are_fine() -> None:
    schema = {"enum": [2**53, -(2**60), 10**15, 1.5, True], "default": 2**53 + 1}
    assert json.loads(spec(json=schema).value) == schema


def test_a_request_may_say_whether_objects_are_closed() -> None:
    composed = {"allOf": [OBJECT, {"properties": {"b": {}}}]}
    assert schema_in(spec(json=OBJECT, disable_additional_properties=False)) == {
        **with_additional(OBJECT, True),
        "x-guidance": {"whitespace_pattern": WHITESPACE},
    }
    closed = schema_in(spec(json=composed, disable_additional_properties=True))
    assert closed["allOf"][0]["additionalProperties"] is False


@pytest.mark.parametrize(
    ("schema", "is_fine"),
    [
        ({"multipleOf": 0.01}, True),
        ({"multipleOf": 1000000}, True),
        ({"multipleOf": 1e-9}, True),
        ({"multipleOf": MAX_MULTIPLE - 1}, True),
        ({"multipleOf": MAX_MULTIPLE + 1}, False),
        ({"multipleOf": 62615533}, False),
        ({"multipleOf": 1e300}, False),
        ({"properties": {"a": {"multipleOf": 9973}, "b": {"multipleOf": 9967}}}, True),
        ({"allOf": [{"multipleOf": 9973}, {"multipleOf": 9967}]}, False),
        ({"allOf": [{"multipleOf": 0.5}, {"multipleOf": 3}]}, True),
        ({"properties": {"multipleOf": {"type": "string"}}}, True),
    ],
)
def test_divisors_that_would_take_minutes_are_refused(schema: Any, is_fine: bool) -> None:
    """GD-05's kind: the compiler bounds all else, but not the remainders of a division."""
    for found in (
        GrammarSpec("json_schema", json.dumps(schema), param="p"),
        GrammarSpec("lark", "start: %json " + json.dumps(schema), param="p"),
        GrammarSpec(
            "lark", "start: %json " + json.dumps(schema).replace("multipleOf", "multipleO\\u0066")
        ),
    ):
        if is_fine:
            source_of(found, lambda text: None)
        else:
            with pytest.raises(RequestError, match="multipleOf"):
                source_of(found, lambda text: None)


def test_a_grammar_beyond_the_limit_of_size_is_refused() -> None:
    for kind in ("regex", "lark", "choice", "json_schema"):
        value = json.dumps(["a" * 300_000])
        with pytest.raises(RequestError, match="characters"):
            source_of(GrammarSpec(kind, value, param="p"), lambda text: None)  # type: ignore[arg-type]
