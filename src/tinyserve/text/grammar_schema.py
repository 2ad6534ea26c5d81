"""What JSON schemas need before a grammar is made of them. Pure functions over parsed JSON.

Objects that say nothing of further properties are closed: JSON schema leaves them open, and a model
that may add a property after the last one often never ends. They stay open where closing could
contradict the schema, so what is generated satisfies it. An explicit `additionalProperties` always
stands. In the same way a schema that names no type means the one that its keywords are about.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_VERBATIM = frozenset(("enum", "const", "default", "examples", "x-guidance"))
_MAPS = frozenset(("properties", "patternProperties", "$defs", "definitions"))
_OF_OBJECTS = frozenset(("properties", "patternProperties", "required"))
# Keywords that no grammar is made for, with the values that ask for nothing: generators of schemas
# write them all the same (NJsonSchema `uniqueItems: false`, zod `propertyNames` of every record).
_IDLE: dict[str, tuple[Any, ...]] = {
    "uniqueItems": (False,),
    "propertyNames": ({}, True, {"type": "string"}),
    "dependentRequired": ({},),
    "dependentSchemas": ({},),
    "unevaluatedProperties": ({}, True),
    "unevaluatedItems": ({}, True),
}

_ABOUT: dict[str, frozenset[str]] = {
    "object": frozenset(("properties", "patternProperties", "additionalProperties", "required")),
    "array": frozenset(("items", "prefixItems", "minItems", "maxItems")),
    "string": frozenset(("pattern", "minLength", "maxLength")),
    "number": frozenset(
        ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
    ),
}
_SAYING_WHAT = frozenset(("type", "enum", "const", "$ref", "allOf", "anyOf", "oneOf"))


def without_idle(schema: Any) -> Any:
    """The schema without keywords that ask for nothing. May raise RecursionError."""
    if isinstance(schema, list):
        return [without_idle(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    result: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _MAPS and isinstance(value, Mapping):
            result[key] = {name: without_idle(inner) for name, inner in value.items()}
        elif key in _VERBATIM:
            result[key] = value
        elif not any(type(value) is type(idle) and value == idle for idle in _IDLE.get(key, ())):
            result[key] = without_idle(value)
    return result


def with_types(schema: Any) -> Any:
    """The schema with a `type` wherever it has none, but keywords of one type only.

    JSON schema lets any other value pass such keywords. Nobody means that, and models then write
    numbers in place of objects. Parts of `allOf` leave it to each other.
    """
    if isinstance(schema, list):
        return [with_types(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    result: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _VERBATIM or key == "allOf":
            result[key] = value
        elif key in _MAPS and isinstance(value, Mapping):
            result[key] = {name: with_types(inner) for name, inner in value.items()}
        else:
            result[key] = with_types(value)
    kinds = [kind for kind, keywords in _ABOUT.items() if not keywords.isdisjoint(schema)]
    if len(kinds) == 1 and _SAYING_WHAT.isdisjoint(schema):
        result["type"] = kinds[0]
    return result


def with_closed_objects(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema with its objects closed where they list their properties.

    Schemas that put objects together from parts stay as they are: each part allows what the others
    name. May raise RecursionError.
    """
    return schema if _is_composed(schema) else with_additional(schema, False)


def with_additional(schema: Any, is_allowed: bool) -> Any:
    """The schema with `additionalProperties` said of each object that lists its properties."""
    if isinstance(schema, list):
        return [with_additional(item, is_allowed) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    result: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _VERBATIM:
            result[key] = value
        elif key in _MAPS and isinstance(value, Mapping):
            result[key] = {
                name: with_additional(inner, is_allowed) for name, inner in value.items()
            }
        else:
            result[key] = with_additional(value, is_allowed)
    listed = result.get("properties")
    if isinstance(listed, Mapping) and (is_allowed or _can_close(result, listed)):
        result.setdefault("additionalProperties", is_allowed)
    return result


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
        if key in _MAPS and isinstance(value, Mapping):
            yield from value.values()
        elif key not in _VERBATIM:
            yield value
