"""The schemas of tools' parameters, made fit for a grammar.

Generators of tools write all sorts of schemas, and models do well enough with any of them in their
prompt. Where a call is demanded, a grammar has to understand them, so keywords that are malformed
(null, a wrong type, an unknown type name) or that no grammar can follow (lookarounds, remote
references) are left out, and the rest holds. A function with `strict: true` is taken at its word.
Either way objects are closed as those of an answer's schema are, or small models add arguments
until their tokens are used up.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from tinyserve.text.grammar_schema import (
    MAPS,
    VERBATIM,
    rewritten,
    with_closed_objects,
    with_known_keywords,
    with_types,
    without_idle,
)

# OpenAI: a function without parameters takes none.
NO_PARAMETERS: Mapping[str, Any] = {
    "type": "object",
    "properties": {},
    "additionalProperties": False,
}
# Arguments are spaced as Python's `json.dumps` and most training data space JSON.
STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}

_TYPES = frozenset(("string", "number", "integer", "boolean", "object", "array", "null"))
# Lookarounds, word boundaries and references back, which no automaton has.
_UNSUPPORTED_PATTERN = re.compile(r"\(\?(?:[=!]|<[=!])|(?<!\\)(?:\\\\)*\\[bB1-9]")


def arguments_schema(
    parameters: Mapping[str, Any] | None, *, is_strict: bool = False
) -> dict[str, Any]:
    """What a function's arguments follow, always an object. Raises RecursionError if too deep."""
    schema = with_known_keywords(without_idle(NO_PARAMETERS if parameters is None else parameters))
    if is_strict:
        return {**_settled(schema), "x-guidance": STYLE}
    cleaned = _settled(rewritten(schema, _cleaned))
    return {**cleaned, "type": "object", "x-guidance": {**STYLE, "lenient": True}}


def _settled(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema with the types that its keywords imply and with its objects closed, as for any
    structured output: programs fail on arguments that they do not know.
    """
    return with_closed_objects(with_types(schema))


def _cleaned(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    return {key: value for key, value in schema.items() if _is_kept(key, value)}


def _is_kept(key: str, value: Any) -> bool:
    is_well_formed = _WELL_FORMED.get(key)
    if is_well_formed is not None:
        return is_well_formed(value)
    return value is not None or key in VERBATIM


def _is_type(value: Any) -> bool:
    names = value if isinstance(value, list) else [value]
    return bool(names) and all(isinstance(name, str) and name in _TYPES for name in names)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_list(value: Any) -> bool:
    return isinstance(value, list) and bool(value)


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _is_map(value: Any) -> bool:
    return isinstance(value, Mapping)


def _is_schema(value: Any) -> bool:
    return isinstance(value, Mapping | bool)


def _is_pattern(value: Any) -> bool:
    if not isinstance(value, str) or _UNSUPPORTED_PATTERN.search(value):
        return False
    try:
        re.compile(value)
    except (re.error, RecursionError, OverflowError):
        return "\\p{" in value or "\\u" in value  # known to other dialects of regular expressions
    return True


_WELL_FORMED: dict[str, Callable[[Any], bool]] = {
    "$schema": lambda value: False,  # a dialect that need not be known
    "$id": lambda value: False,
    "type": _is_type,
    "required": _is_names,
    "enum": _is_list,
    "format": lambda value: isinstance(value, str),
    "pattern": _is_pattern,
    "$ref": lambda value: isinstance(value, str) and value.startswith("#"),
    "additionalProperties": _is_schema,
    **dict.fromkeys(MAPS, _is_map),
    **dict.fromkeys(("anyOf", "oneOf", "allOf", "prefixItems"), _is_list),
    **dict.fromkeys(("minimum", "maximum", "multipleOf"), _is_number),
    **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), _is_number),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), _is_count),
    **dict.fromkeys(("minProperties", "maxProperties"), _is_count),
}
