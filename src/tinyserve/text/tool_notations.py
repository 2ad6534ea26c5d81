"""Rules for the arguments of a call, in each notation that formats write them in.

From a rule's name and the schema of the arguments (`text/tool_schema.py`) to rules in llguidance's
Lark, the named one first. JSON follows the schema as it stands. Where arguments stand one by one,
the declared ones come in the order of the schema, those that are required without fail; of a
schema that declares none, any may come.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping
from typing import Any

from tinyserve.text.grammar_schema import at_reference
from tinyserve.text.tool_schema import STYLE
from tinyserve.text.tool_values import parameter_types
from tinyserve.text.tool_xml import END_OF_VALUE, PARAMETER

_MAX_UNDECLARED = 16
_KEYWORD = re.compile(r"[\w.+-]+")  # a keyword as `tool_pythonic` reads it
_NAME = "/[a-zA-Z_][a-zA-Z0-9_]{0,63}/"
_OPEN_END, _CLOSE = ">\n", f"\n{END_OF_VALUE}\n"
_NOTHING = '""'
_PYTHON_WORDS = {"boolean": '"True" | "False"', "null": '"None"'}
_DEFINED = ("#/$defs/", "#/definitions/")  # a part of the schema keeps these
_MOVED = "x-moved"  # the keyword of an argument's schema that has parts of other arguments
_MAX_DEPTH = 4  # of references within what they refer to


def as_json_rules(rule: str, schema: Mapping[str, Any]) -> list[str]:
    """Rules for arguments that are written as one JSON object."""
    return [f"{rule}: %json {json.dumps(schema)}"]


def as_xml_rules(rule: str, schema: Mapping[str, Any]) -> list[str]:
    """Qwen3-Coder's tags, one after the other."""
    text = f"{rule}_text[suffix={json.dumps(_CLOSE)}]: /(?s:.*)/"
    if (names := _declared(schema)) is None:
        opening = f"{json.dumps(PARAMETER)} {_NAME} {json.dumps(_OPEN_END)}"
        return [f"{rule}: ({opening} {rule}_text){{0,{_MAX_UNDECLARED}}}", text]
    required = _required(schema)
    rules, uses = [], []
    names = [name for name in names if name.strip("\"' ") == name and ">" not in name]
    for i, name in enumerate(names):
        opening, value = json.dumps(f"{PARAMETER}{name}{_OPEN_END}"), f"{rule}_text"
        if not _is_text(schema, name):
            value = f"{rule}_value_{i} {json.dumps(_CLOSE)}"
            rules.append(f"{rule}_value_{i}: %json {_part(schema, name)}")
        elif choices := _choices(schema["properties"][name], schema):
            value = f"({' | '.join(map(json.dumps, choices))}) {json.dumps(_CLOSE)}"
        uses.append(f"{rule}_{i}" if name in required else f"{rule}_{i}?")
        rules.append(f"{rule}_{i}: {opening} {value}")
    used = [text] if any(f"{rule}_text" in r for r in rules) else []
    return [f"{rule}: {' '.join(uses) or _NOTHING}", *rules, *used]


def as_python_rules(rule: str, schema: Mapping[str, Any]) -> list[str]:
    """Rules for Python's keyword arguments with literals. Within lists and objects true, false and
    null are spelled as in JSON.
    """
    if (names := _declared(schema)) is None:
        one = f'{_NAME} "=" {rule}_any'
        any_value = json.dumps({"x-guidance": STYLE})
        more = f'(", " {one}){{0,{_MAX_UNDECLARED - 1}}}'
        return [f"{rule}: ({one} {more})?", f"{rule}_any: %json {any_value}"]
    required, rules = _required(schema), []
    names = [name for name in names if _KEYWORD.fullmatch(name)]
    # first_i: the arguments from number i on, if none has been written; more_i: if one has.
    for i, name in enumerate(names):
        skip = name not in required
        own, later = f"{rule}_{i}", f"{rule}_more_{i + 1}"
        rules.append(f"{rule}_first_{i}: {own} {later}{f' | {rule}_first_{i + 1}' if skip else ''}")
        rules.append(f'{rule}_more_{i}: ", " {own} {later}{f" | {later}" if skip else ""}')
        rules.append(f"{own}: {json.dumps(f'{name}=')} {own}_value")
        rules.append(f"{own}_value: {_python_value(schema, name)}")
    end = len(names)
    ends = [f"{rule}_{kind}_{end}: {_NOTHING}" for kind in ("first", "more")]
    return [f"{rule}: {rule}_first_0", *rules, *ends]


def _declared(schema: Mapping[str, Any]) -> list[str] | None:
    """The names of the arguments; None where the schema leaves them open."""
    properties = schema.get("properties")
    if not isinstance(properties, Mapping) or not properties:
        return [] if schema.get("additionalProperties") is False else None
    return list(properties)


def _required(schema: Mapping[str, Any]) -> frozenset[str]:
    names = schema.get("required")
    if not isinstance(names, list):
        return frozenset()
    return frozenset(name for name in names if isinstance(name, str))


def _is_text(schema: Mapping[str, Any], name: str) -> bool:
    """Whether a value is written as text: it may be a string."""
    types = parameter_types(schema, name)
    return not types or "string" in types


def _choices(part: Any, root: Mapping[str, Any], depth: int = _MAX_DEPTH) -> list[str]:
    """The texts that a value is one of; none where it may be others."""
    if not isinstance(part, Mapping) or not depth:
        return []
    if isinstance(part.get("$ref"), str):
        return _choices(at_reference(root, part["$ref"]), root, depth - 1)
    alternatives = part.get("anyOf", part.get("oneOf"))
    if isinstance(alternatives, list):
        found = [_choices(alternative, root, depth - 1) for alternative in alternatives]
        return list(dict.fromkeys(itertools.chain(*found))) if all(found) else []
    if part.get("type") == "null":
        return ["null"]
    values = [part["const"]] if "const" in part else part.get("enum")
    if not isinstance(values, list) or any(v == "" or isinstance(v, list | dict) for v in values):
        return []
    return [value if isinstance(value, str) else json.dumps(value) for value in values]


def _python_value(schema: Mapping[str, Any], name: str) -> str:
    """What may follow a keyword."""
    types = parameter_types(schema, name)
    words = [word for kind, word in _PYTHON_WORDS.items() if kind in types]
    if types and types <= _PYTHON_WORDS.keys():
        return " | ".join(words)
    return " | ".join([f"%json {_part(schema, name)}", *words])


def _part(schema: Mapping[str, Any], name: str) -> str:
    """The schema of one argument, with what it may refer to. zod writes a schema that is used twice
    as `#/properties/first`; such parts of other arguments move to a place in this one.
    """
    wanted: list[str] = []
    own = _with_moved_references(schema["properties"][name], wanted)
    moved: dict[str, Any] = {}
    for reference in wanted:  # which grows, as these parts refer to others
        if _key(reference) not in moved:
            target = at_reference(schema, reference)
            part = target if isinstance(target, Mapping) else {}
            moved[_key(reference)] = _with_moved_references(part, wanted)
    shared = {key: schema[key] for key in ("$defs", "definitions", "x-guidance") if key in schema}
    if moved:
        shared[_MOVED] = moved
    return json.dumps({**(own if isinstance(own, Mapping) else {}), **shared})


def _with_moved_references(part: Any, wanted: list[str]) -> Any:
    """The part with references to the places of what is `wanted`, which grows by them."""
    if isinstance(part, list):
        return [_with_moved_references(item, wanted) for item in part]
    if not isinstance(part, Mapping):
        return part
    reference = part.get("$ref")
    if not isinstance(reference, str) or reference.startswith(_DEFINED):
        return {key: _with_moved_references(value, wanted) for key, value in part.items()}
    if not reference.startswith("#/"):
        return {}
    wanted.append(reference)
    return {"$ref": f"#/{_MOVED}/{_key(reference)}"}


def _key(reference: str) -> str:
    """A name for what a reference leads to, without characters that are special in references."""
    return reference.encode("utf-8", "surrogatepass").hex()
