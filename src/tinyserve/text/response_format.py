"""OpenAI's `response_format`, for the server and the offline API alike, as a constraint.

Whatever is not understood is refused: a constraint that was asked for is never ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from tinyserve.errors import RequestError
from tinyserve.text.grammar_spec import GrammarSpec, json_schema_spec

_PARAM = "response_format"
_FORMATS = "'text', 'json_object' or 'json_schema'"


def response_format_spec(value: Mapping[str, Any]) -> GrammarSpec | None:
    """The constraint that it asks for; None for plain text. Raises RequestError."""
    kind = value.get("type")
    if kind == "text":
        _only(value, {"type"})
        return None
    if kind == "json_object":
        # llama-server and others take a schema here.
        _only(value, {"type", "schema"})
        schema = value.get("schema")
        if schema is None:
            return GrammarSpec("json_object", param=_PARAM)
        return json_schema_spec(_object(schema), _PARAM)
    if kind == "json_schema":
        _only(value, {"type", "json_schema", "schema"})
        return json_schema_spec(_object(_schema_of(value)), _PARAM)
    if kind == "structural_tag":
        _refuse("type 'structural_tag' is not supported; use json_schema, or tools")
    if "type" not in value:
        _refuse(f"type is missing; it must be {_FORMATS}")
    return _refuse(f"type must be {_FORMATS}, not {kind!r:.100}")


def _schema_of(value: Mapping[str, Any]) -> Any:
    """The schema of {"type": "json_schema", "json_schema": {"name", "schema", ...}}."""
    wrapper = value.get("json_schema")
    if wrapper is None and value.get("schema") is not None:
        return value["schema"]
    if wrapper is None:
        _refuse("type 'json_schema' needs json_schema: {'name': ..., 'schema': {...}}")
    if not isinstance(wrapper, Mapping):
        _refuse("json_schema must be an object: {'name': ..., 'schema': {...}}")
    if value.get("schema") is not None:
        _refuse("schema belongs inside json_schema")
    _only(wrapper, {"name", "schema", "strict", "description"}, "json_schema.")
    for key, kinds, words in (
        ("name", str, "a string"),
        ("description", str, "a string"),
        ("strict", bool, "true or false"),
    ):
        if wrapper.get(key) is not None and not isinstance(wrapper[key], kinds):
            _refuse(f"json_schema.{key} must be {words}")
    if wrapper.get("schema") is None:
        _refuse("json_schema.schema is missing")
    return wrapper["schema"]


def _object(schema: Any) -> Mapping[str, Any]:
    if not isinstance(schema, Mapping):
        _refuse(f"the schema must be an object, not {type(schema).__name__}")
    return schema


def _only(value: Mapping[str, Any], known: set[str], where: str = "") -> None:
    for key, item in value.items():
        if key not in known and item is not None:
            _refuse(f"{where}{key:.100} is not a field of it")


def _refuse(message: str) -> NoReturn:
    raise RequestError(f"{_PARAM}: {message}", param=_PARAM)
