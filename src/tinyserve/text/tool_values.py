"""Values of parameters that a model wrote in a notation of its own, as JSON.

Some formats write a value as plain text, so that only the schema of the tool's parameters tells
whether `5` is a number or a string. Knows no format.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from tinyserve.text.grammar_schema import at_reference
from tinyserve.text.tool_json import quoted
from tinyserve.text.tool_pythonic import python_literal

STRING = frozenset(("string",))
_CONTAINERS = frozenset(("array", "object"))
_KINDS: tuple[tuple[type, str], ...] = (
    (bool, "boolean"),
    (int, "integer"),
    (float, "number"),
    (str, "string"),
    (list, "array"),
    (dict, "object"),
    (type(None), "null"),
)
_WORDS = {"true": "true", "false": "false", "null": "null", "none": "null"}


def parameter_types(parameters: Mapping[str, Any] | None, name: str) -> frozenset[str]:
    """The JSON types that a parameter may have; none where the schema does not say."""
    properties = (parameters or {}).get("properties")
    schema = properties.get(name) if isinstance(properties, Mapping) else None
    return frozenset(_types(schema, parameters or {}))


def as_json(text: str, types: frozenset[str]) -> str:
    """A value as a model wrote it, as JSON: of one of the `types` if it can be, else a string.

    No types: whatever it looks like. What is passed on as JSON is passed on as written. A list or
    an object may be written in Python's notation, which models often do.
    """
    if types == STRING:
        return quoted(text)
    candidate = text.strip()
    candidate = _WORDS.get(candidate.lower(), candidate)
    kind = _kind(candidate)
    if kind is None:
        literal = python_literal(candidate) if _CONTAINERS & types and "string" not in types else ""
        return literal if _kind(literal) in types else quoted(text)
    fits = not types or kind in types or (kind == "integer" and "number" in types)
    return quoted(text) if "string" in types and not fits else candidate


def _kind(text: str) -> str | None:
    """The type of a JSON text; None where it is no JSON."""
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return _kind_of(value)


def _refuse(name: str) -> NoReturn:
    raise ValueError(name)  # NaN and infinity are no JSON


def _kind_of(value: Any) -> str:
    return next(kind for known, kind in _KINDS if isinstance(value, known))


def _types(schema: Any, root: Mapping[str, Any]) -> Iterator[str]:
    """The types that a schema names itself, in its alternatives, and where it refers to."""
    parts, seen = [schema], set()
    for part in parts:  # which grows
        if not isinstance(part, Mapping):
            continue
        kind = part.get("type")
        if isinstance(kind, str | list):
            yield from [kind] if isinstance(kind, str) else [k for k in kind if isinstance(k, str)]
            continue
        if isinstance(part.get("enum"), list):
            yield from (_kind_of(value) for value in part["enum"])
        elif "const" in part:
            yield _kind_of(part["const"])
        for key in ("anyOf", "oneOf", "allOf"):
            parts += part[key] if isinstance(part.get(key), list) else ()
        reference = part.get("$ref")
        if isinstance(reference, str) and reference.startswith("#/") and reference not in seen:
            seen.add(reference)
            parts.append(at_reference(root, reference))
