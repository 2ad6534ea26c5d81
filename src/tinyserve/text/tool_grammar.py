"""The grammar of an answer that must be tool calls: for `tool_choice` "required" or by name.

Text in llguidance's dialect of Lark, with the JSON schemas of the arguments embedded. Markers that
are special tokens of the model are named by their ids, since no text spells them. Compiles nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tinyserve.errors import RequestError
from tinyserve.text.grammar_source import SpecialId
from tinyserve.text.tool_formats import ToolFormat
from tinyserve.text.tool_notations import as_json_rules, as_python_rules, as_xml_rules
from tinyserve.text.tool_schema import arguments_schema
from tinyserve.text.tool_use import Function

MAX_CALLS = 16  # per answer that must consist of calls

_NOTATIONS: Mapping[str, Callable[[str, Mapping[str, Any]], list[str]]] = {
    "json": as_json_rules,
    "xml": as_xml_rules,
    "python": as_python_rules,
}


def calls_grammar(
    form: ToolFormat,
    functions: Sequence[Function],
    *,
    max_calls: int | None = None,
    special_id: SpecialId = lambda text: None,
) -> str:
    """A text of one to `max_calls` calls of the `functions`.

    `special_id`: the id of a special token by its text, None for what is ordinary text.
    """
    literal = _Literals(form.markers, special_id)
    before, between, after = form.call
    most = MAX_CALLS if max_calls is None else max_calls
    first, more, last = literal(form.first), literal(form.separator), literal(form.last)
    repeated = f"({more} call){{0,{most - 1}}}" if most > 1 else ""
    rules = [
        f"start: {first} call {repeated} {last}",
        "call: " + " | ".join(f"call_{i}" for i in range(len(functions))),
    ]
    write = _NOTATIONS[form.notation]
    for i, function in enumerate(functions):
        spelled = json.dumps(function.name) if form.is_name_quoted else function.name
        opening = literal(f"{before}{spelled}{between}")
        rules.append(f"call_{i}: {opening} arguments_{i} {literal(after)}")
        rules += write(f"arguments_{i}", _schema(function))
    return "\n".join(rules) + "\n"


def _schema(function: Function) -> dict[str, Any]:
    """What the arguments follow, an object. Raises RequestError."""
    try:
        schema = arguments_schema(function.parameters, is_strict=function.is_strict)
        json.dumps(schema, allow_nan=False)
    except (RecursionError, ValueError):
        raise RequestError(
            f"the parameters of {function.name!r} are nested too deeply, or no JSON", param="tools"
        ) from None
    return schema


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
