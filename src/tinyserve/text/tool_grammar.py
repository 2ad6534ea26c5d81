"""The grammar of an answer that must be tool calls: for `tool_choice` "required" or by name.

Text in llguidance's dialect of Lark, with the JSON schemas of the arguments embedded. Markers that
are special tokens of the model are named by their ids, since no text spells them. Compiles nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tinyserve.text.reasoning import CLOSER, OPENER
from tinyserve.text.tool_formats import ToolFormat

MAX_CALLS = 16  # in one answer that must be calls
NO_PARAMETERS: Mapping[str, Any] = {
    "type": "object",
    "properties": {},
    "additionalProperties": False,
}

# JSON as Python's `json.dumps` and most training data space it; unknown formats are let through.
_STYLE = {
    "lenient": True,
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}

SpecialId = Callable[[str], int | None]


def calls_grammar(
    form: ToolFormat,
    functions: Sequence[tuple[str, Mapping[str, Any] | None]],
    *,
    max_calls: int | None = None,
    special_id: SpecialId = lambda text: None,
    may_think: bool = False,
) -> str:
    """A text of one to `max_calls` calls of the `functions` (name, schema of its parameters).

    `special_id`: the id of a special token by its text, None for what is ordinary text.
    `may_think`: thinking between its markers may come first.
    """
    literal = _Literals(form.markers, special_id)
    before, between, after = form.call
    most = MAX_CALLS if max_calls is None else max_calls
    first, more, last = literal(form.first), literal(form.separator), literal(form.last)
    repeated = f"({more} call){{0,{most - 1}}}" if most > 1 else ""
    rules = [
        f"start: {'(opener thinking SPACE)? ' if may_think else ''}{first} call {repeated} {last}",
        "call: " + " | ".join(f"call_{i}" for i in range(len(functions))),
    ]
    for i, (name, schema) in enumerate(functions):
        spelled = json.dumps(name, ensure_ascii=False) if form.is_name_quoted else name
        opening = literal(f"{before}{spelled}{between}")
        rules.append(f"call_{i}: {opening} arguments_{i} {literal(after)}")
        rules.append(f"arguments_{i}: %json {_one_line(arguments_schema(schema))}")
    if may_think:
        end = special_id(CLOSER)
        rules.append(
            f"thinking[suffix={json.dumps(CLOSER)}]: /(?s:.*)/"
            if end is None
            else f"thinking: /(?s:.*)/ <[{end}]>"
        )
        rules.append("SPACE: /[ \\n]{0,2}/")
        rules.append(f"opener: {_Literals((OPENER,), special_id)(OPENER)}")
    return "\n".join(rules) + "\n"


def arguments_schema(parameters: Mapping[str, Any] | None) -> dict[str, Any]:
    """The schema that arguments follow: always of an object, without the oddities of generators.

    Keywords that are null count as absent, as do types that JSON schema does not know.
    """
    schema = _cleaned(parameters if parameters is not None else NO_PARAMETERS)
    assert isinstance(schema, dict)
    return {**schema, "type": "object", "x-guidance": _STYLE}


_TYPES = frozenset(("string", "number", "integer", "boolean", "object", "array", "null"))
_MAPS = frozenset(("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"))
_VERBATIM = frozenset(("enum", "const", "default", "examples"))


def _cleaned(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_cleaned(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    result: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _VERBATIM:
            result[key] = value
        elif key in _MAPS and isinstance(value, Mapping):
            result[key] = {name: _cleaned(inner) for name, inner in value.items()}
        elif value is not None and not (key == "type" and not _is_type(value)):
            result[key] = _cleaned(value)
    return result


def _is_type(value: Any) -> bool:
    names = value if isinstance(value, list) else [value]
    return bool(names) and all(isinstance(name, str) and name in _TYPES for name in names)


def _one_line(schema: Mapping[str, Any]) -> str:
    return json.dumps(schema, ensure_ascii=True)


class _Literals:
    """Text as a sequence of Lark symbols: quoted strings, and special tokens by id."""

    def __init__(self, markers: Sequence[str], special_id: SpecialId) -> None:
        ids = {marker: special_id(marker) for marker in markers}
        self._ids = {marker: id_ for marker, id_ in ids.items() if id_ is not None}

    def __call__(self, text: str) -> str:
        for marker, id_ in self._ids.items():
            before, found, after = text.partition(marker)
            if found:
                return f"{self(before)} <[{id_}]> {self(after)}".strip()
        return json.dumps(text) if text else ""
