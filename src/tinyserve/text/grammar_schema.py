"""What JSON schemas need before a grammar is made of them. Pure functions over parsed JSON.

Objects that say nothing of further properties are closed: JSON schema leaves them open, and a model
that may add a property after the last one often never ends. They stay open where closing could
contradict the schema, so what is generated satisfies it. An explicit `additionalProperties` always
stands. In the same way a schema that names no type means the one that its keywords are about.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Set
from typing import Any

# Keywords whose values are no schemas, and those whose values are schemas by name.
VERBATIM = frozenset(("enum", "const", "default", "examples", "x-guidance"))
MAPS = frozenset(("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"))
_OF_OBJECTS = frozenset(("properties", "patternProperties", "required"))
# Keywords that no grammar is made for, with the values that ask for nothing: generators of schemas
# write them all the same (NJsonSchema `uniqueItems: false`, zod `propertyNames` of every record,
# pydantic `format: password` of secrets).
_IDLE: dict[str, tuple[Any, ...]] = {
    "uniqueItems": (False,),
    "propertyNames": ({}, True, {"type": "string"}),
    "dependencies": ({},),
    "dependentRequired": ({},),
    "dependentSchemas": ({},),
    "unevaluatedProperties": ({}, True),
    "unevaluatedItems": ({}, True),
    "format": ("binary", "password", "path"),  # any text
}

# The dialects that llguidance tells apart. Others (OpenAPI's, or one of these misspelled) need not
# be known to follow the keywords, and would be looked up in vain.
_DIALECTS = re.compile(
    r"http://json-schema\.org/draft-0[3467]/schema#?"
    r"|https://json-schema\.org/draft/20(19-09|20-12)/schema#?"
)

# JSON schema takes 2.0 for the integer 2, and some serializers write nothing else.
_LEAST = frozenset(("minLength", "minItems", "minProperties"))
_MOST = frozenset(("maxLength", "maxItems", "maxProperties"))
# Some generators write the largest number they know where there is no limit, and it is too large
# for a regular expression. No answer is as long as this.
_ENDLESS = 1 << 31
# The same with numbers: bounds beyond these are those of a type, and lie too far for a regular
# expression. Integers may be larger, up to the last double below 2**63.
_FAR = 10**18
_FAR_INTEGER = 2**63 - 1024
# The formats that llguidance knows.
_FORMATS = frozenset(
    (
        "date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "unknown",
        "uri", "uuid",
    )
)  # fmt: skip
_OF_NAMES = frozenset(("type", "enum", "const", "$ref", "title", "description"))
_ABOUT: dict[str, frozenset[str]] = {
    "object": frozenset(("properties", "patternProperties", "additionalProperties", "required")),
    "array": frozenset(("items", "prefixItems", "minItems", "maxItems")),
    "string": frozenset(("pattern", "minLength", "maxLength")),
    "number": frozenset(
        ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
    ),
}
_SAYING_WHAT = frozenset(("type", "enum", "const", "$ref", "allOf", "anyOf", "oneOf"))


def rewritten(
    schema: Any,
    rewrite: Callable[[Mapping[str, Any]], Mapping[str, Any]],
    left_alone: Set[str] = VERBATIM,
) -> Any:
    """The schema with each object schema in it rewritten, an outer one before its parts; what
    stands under the keywords `left_alone` stays. May raise RecursionError.
    """
    if isinstance(schema, list):
        return [rewritten(item, rewrite, left_alone) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    result = dict(rewrite(schema))
    for key, value in result.items():
        if key in MAPS and isinstance(value, Mapping):
            result[key] = {k: rewritten(inner, rewrite, left_alone) for k, inner in value.items()}
        elif key not in left_alone:
            result[key] = rewritten(value, rewrite, left_alone)
    return result


def without_idle(schema: Any) -> Any:
    """The schema without keywords that ask for nothing, and with integers for counts.

    May raise RecursionError.
    """

    def rewrite(schema: Mapping[str, Any]) -> Mapping[str, Any]:
        kept = {k: v for k, v in schema.items() if not _is_idle(k, v)}
        whole = {k: int(v) for k, v in kept.items() if k in _LEAST | _MOST and _is_whole_float(v)}
        return {**kept, **whole}

    return rewritten(schema, rewrite)


def _is_idle(key: str, value: Any) -> bool:
    if key == "$schema" and isinstance(value, str):
        return not _DIALECTS.fullmatch(value)
    if key in _MOST and isinstance(value, int | float):
        return value >= _ENDLESS
    return any(type(value) is type(idle) and value == idle for idle in _IDLE.get(key, ()))


def _is_whole_float(value: Any) -> bool:
    return isinstance(value, float) and value.is_integer()


def with_known_keywords(schema: Any) -> Any:
    """The schema in keywords that a grammar can be made for, where these say all that was said.

    An object whose properties have one of some names lists them. A format that a pattern describes
    as well leaves it to the pattern. Bounds that only a type has are nearer. What follows this
    schema follows the first. May raise RecursionError.
    """

    def rewrite(part: Mapping[str, Any]) -> Mapping[str, Any]:
        part = _with_listed_names(part, schema)
        if _is_described(part):
            part = {k: v for k, v in part.items() if k != "format"}
        return {**part, **_nearer_bounds(part)}

    return rewritten(schema, rewrite)


def _with_listed_names(schema: Mapping[str, Any], root: Any) -> Mapping[str, Any]:
    """An object with `properties` in place of the names in its `propertyNames`."""
    names = _names(schema.get("propertyNames"), root)
    listed = schema.get("properties", {})
    if names is None or not isinstance(listed, Mapping) or "patternProperties" in schema:
        return schema
    others = schema.get("additionalProperties", True)
    allowed = [name for name in names if name in listed or others is not False]
    return {
        **{k: v for k, v in schema.items() if k != "propertyNames"},
        "properties": {name: listed.get(name, others) for name in allowed},
        "additionalProperties": False,
    }


def _names(schema: Any, root: Any) -> list[str] | None:
    """The strings that follow a schema which lists them, in place or among the definitions."""
    if not isinstance(schema, Mapping) or not schema.keys() <= _OF_NAMES:
        return None
    reference = schema.get("$ref")
    if isinstance(reference, str):
        return _names(at_reference(root, reference), None)
    names = [schema["const"]] if "const" in schema else schema.get("enum")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return None
    return names if schema.get("type", "string") == "string" else None


def at_reference(root: Any, reference: str) -> Any:
    """What stands in a schema where one of its parts refers to, `#/$defs/a`; else None."""
    for step in reference.removeprefix("#/").split("/"):
        step = step.replace("~1", "/").replace("~0", "~")
        root = root.get(step) if isinstance(root, Mapping) else None
    return root


def _is_described(schema: Mapping[str, Any]) -> bool:
    """Whether it has a format that is not known, and patterns for it (as zod writes them)."""
    parts = schema.get("allOf")
    described = [schema, *parts] if isinstance(parts, list) else [schema]
    has_pattern = any(isinstance(part, Mapping) and "pattern" in part for part in described)
    form = schema.get("format")
    return isinstance(form, str) and form not in _FORMATS and has_pattern


def _nearer_bounds(schema: Mapping[str, Any]) -> dict[str, int]:
    """What takes the place of bounds that are the last numbers of a type."""
    kind = schema.get("type")
    kinds = kind if isinstance(kind, list) else [kind]
    most = _FAR_INTEGER if "integer" in kinds and "number" not in kinds else _FAR
    found: dict[str, int] = {}
    for key, sign, limit in (
        ("minimum", -1, _FAR), ("exclusiveMinimum", -1, _FAR),
        ("maximum", 1, most), ("exclusiveMaximum", 1, most),
    ):  # fmt: skip
        value = schema.get(key)
        if not isinstance(value, int | float) or isinstance(value, bool):
            continue
        if limit < sign * value <= sys.float_info.max:
            found[key] = sign * limit
    return found


def with_types(schema: Any) -> Any:
    """The schema with a `type` wherever it has none, but keywords of one type only.

    JSON schema lets any other value pass such keywords. Nobody means that, and models then write
    numbers in place of objects. Parts of `allOf` leave it to each other.
    """
    return rewritten(schema, _with_type, VERBATIM | {"allOf"})


def _with_type(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    kinds = [kind for kind, keywords in _ABOUT.items() if not keywords.isdisjoint(schema)]
    if len(kinds) != 1 or not _SAYING_WHAT.isdisjoint(schema):
        return schema
    return {**schema, "type": kinds[0]}


def with_closed_objects(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema with its objects closed where they list their properties.

    Schemas that put objects together from parts stay as they are: each part allows what the others
    name. May raise RecursionError.
    """
    return schema if _is_composed(schema) else with_additional(schema, False)


def with_additional(schema: Any, is_allowed: bool) -> Any:
    """The schema with `additionalProperties` said of each object that lists its properties."""

    def rewrite(schema: Mapping[str, Any]) -> Mapping[str, Any]:
        listed = schema.get("properties")
        if not isinstance(listed, Mapping) or not (is_allowed or _can_close(schema, listed)):
            return schema
        said = schema.get("additionalProperties", is_allowed)
        return {**schema, "additionalProperties": said}

    return rewritten(schema, rewrite)


def _can_close(schema: Mapping[str, Any], listed: Mapping[str, Any]) -> bool:
    """Whether the properties it lists are all that it asks for."""
    required, least = schema.get("required", []), schema.get("minProperties", 0)
    is_covered = isinstance(required, list) and all(
        isinstance(name, str) and name in listed for name in required
    )
    return is_covered and isinstance(least, int | float) and least <= len(listed)


def _is_composed(schema: Any) -> bool:
    """Whether an object anywhere in it is described in more than one place."""
    if isinstance(schema, list):
        return any(map(_is_composed, schema))
    if not isinstance(schema, Mapping):
        return False
    parts = schema.get("allOf")
    if isinstance(parts, list) and len(parts) > 1:
        return True
    has_others = any(key in schema for key in ("allOf", "anyOf", "oneOf", "$ref"))
    if has_others and not _OF_OBJECTS.isdisjoint(schema):
        return True
    return any(map(_is_composed, _below(schema)))


def is_exact(schema: Any) -> bool:
    """Whether a double holds every integer that the schema demands; others would be rounded."""
    if isinstance(schema, int):
        try:
            return int(float(schema)) == schema
        except OverflowError:
            return False
    if isinstance(schema, Mapping):
        return all(is_exact(v) for k, v in schema.items() if k not in ("default", "examples"))
    return not isinstance(schema, list) or all(map(is_exact, schema))


def _below(schema: Mapping[str, Any]) -> Iterator[Any]:
    """The subschemas of a schema, alone or in lists."""
    for key, value in schema.items():
        if key in MAPS and isinstance(value, Mapping):
            yield from value.values()
        elif key not in VERBATIM:
            yield value
