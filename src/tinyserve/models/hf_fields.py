"""Typed values from a JSON file of unknown origin.

A field that is absent or null has its default; one of the wrong kind is a ModelLoadError that names
the file and the field. Nothing is coerced: "false" is no flag, and NaN, which Python's reader lets
through, is no number. Knows no model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tinyserve.errors import ModelLoadError

Json = Mapping[str, Any]


def need_count(data: Json, key: str, source: str) -> int:
    """A positive integer that has to be there."""
    if data.get(key) is None:
        raise ModelLoadError(f"{source}: {key} is missing")
    return count(data, key, 0, source)


def count(data: Json, key: str, default: int, source: str, *, least: int = 1) -> int:
    """An integer of at least `least`."""
    value = data.get(key)
    if value is None:
        return default
    if not is_integer(value) or value < least:
        kind = "a positive integer" if least == 1 else f"an integer of at least {least}"
        raise ModelLoadError(f"{source}: {key} must be {kind}, got {value!r}")
    return int(value)


def number(data: Json, key: str, default: float, source: str) -> float:
    """A finite number above 0."""
    value = data.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ModelLoadError(f"{source}: {key} must be a finite number above 0, got {value!r}")
    return float(value)


def flag(data: Json, key: str, default: bool, source: str) -> bool:
    """True or false."""
    value = data.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise ModelLoadError(f"{source}: {key} must be true or false, got {value!r}")
    return value


def strings(data: Json, key: str, source: str) -> list[str]:
    """A list of strings; a lone string is a list of one."""
    value = data.get(key)
    if isinstance(value, str):
        return [value]
    if value is not None and not (
        isinstance(value, list) and all(isinstance(item, str) for item in value)
    ):
        raise ModelLoadError(f"{source}: {key} must be a list of strings, got {value!r}")
    return value or []


def section(data: Json, key: str, source: str) -> Json:
    """An object; {} where there is none."""
    value = data.get(key)
    if value is not None and not isinstance(value, Mapping):
        raise ModelLoadError(f"{source}: {key} must be an object, got {value!r}")
    return value or {}


def is_integer(value: Any) -> bool:
    """Whether JSON spelled an integer: true and 1.0 are none."""
    return isinstance(value, int) and not isinstance(value, bool)
