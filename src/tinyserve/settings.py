"""How one setting is declared, checked, and read from text: the machinery under `config.py`.

A setting is a dataclass field whose metadata holds help, unit, choices, limits and command-line
flags. From that one declaration come the YAML reader, the environment reader, and the argparse
options, so that they cannot disagree. This file knows no particular setting.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import difflib
import functools
import json
import math
import os
import re
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tinyserve.errors import ConfigError

_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"0", "false", "no", "off"}
_NULL = {"", "null", "none", "auto"}
_MAX_SIZE = 1 << 62  # bytes; anything larger is a typing error
_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?\s*$", re.IGNORECASE)


@dataclass(frozen=True)
class Setting:
    """One setting, as declared. `kind` is bool | int | float | str | size | strings | mapping."""

    section: str
    name: str
    kind: str
    optional: bool
    default: Any
    help: str
    unit: str | None
    choices: tuple[str, ...]
    aliases: Mapping[str, str]
    low: float | None
    high: float | None
    flags: tuple[str, ...]
    secret: bool

    @property
    def key(self) -> str:
        """The dotted name that error messages use."""
        return f"{self.section}.{self.name}"

    @property
    def env(self) -> str:
        return f"TINYSERVE_{self.section}_{self.name}".upper()

    @property
    def wanted(self) -> str:
        """What a value must be, in words."""
        return self._wanted_value() + (", or null" if self.optional else "")

    def _wanted_value(self) -> str:
        if self.choices:
            return "one of " + ", ".join(self.choices)
        words = {
            "bool": "true or false",
            "int": "an integer",
            "float": "a number",
            "str": "a string",
            "size": "a size in bytes such as 512MiB or 2GiB",
            "strings": "a string or a list of strings",
            "mapping": "a mapping (a JSON object on the command line)",
        }[self.kind]
        if self.low is not None and self.high is not None:
            return f"{words} from {_plain(self.low)} to {_plain(self.high)}"
        if self.low is not None:
            return f"{words} of at least {_plain(self.low)}"
        return words


def setting(
    default: Any,
    help: str,
    *,
    flags: str = "",
    kind: str | None = None,
    choices: tuple[str, ...] = (),
    aliases: Mapping[str, str] | None = None,
    low: float | None = None,
    high: float | None = None,
    unit: str | None = None,
    secret: bool = False,
) -> Any:
    """Declare a setting as a dataclass field; see `Setting`.

    `flags` lists the command-line spellings, separated by spaces; the default is the name in kebab
    case.
    """
    metadata = {
        "help": help,
        "flags": tuple(flags.split()),
        "kind": kind,
        "choices": choices,
        "aliases": aliases or {},
        "low": low,
        "high": high,
        "unit": unit,
        "secret": secret,
    }
    return dataclasses.field(default=default, metadata=metadata, repr=not secret)


@functools.cache
def settings_of(section: type) -> dict[str, Setting]:
    """The settings of a section class, in order of declaration."""
    hints = typing.get_type_hints(section)
    found = {}
    for field in dataclasses.fields(section):
        kind, optional = _kind(hints[field.name])
        meta = dict(field.metadata)
        meta["flags"] = meta["flags"] or ("--" + field.name.replace("_", "-"),)
        meta["kind"] = meta["kind"] or kind
        found[field.name] = Setting(
            section=section.SECTION,  # type: ignore[attr-defined]
            name=field.name,
            optional=optional,
            default=field.default,
            **meta,
        )
    return found


def _kind(hint: Any) -> tuple[str, bool]:
    arguments = typing.get_args(hint)
    if type(None) in arguments:
        (inner,) = [a for a in arguments if a is not type(None)]
        return _kind(inner)[0], True
    origin = typing.get_origin(hint) or hint
    return {
        bool: "bool",
        int: "int",
        float: "float",
        str: "str",
        tuple: "strings",
        dict: "mapping",
        collections.abc.Mapping: "mapping",
    }[origin], False


def check(section: Any) -> None:
    """Check and normalise every field of a section under construction.

    Raises ConfigError naming the key.
    """
    kind: Any = type(section)
    for name, declared in settings_of(kind).items():
        object.__setattr__(section, name, checked(declared, getattr(section, name)))


def checked(declared: Setting, value: Any) -> Any:
    """`value` in its normal form, or ConfigError with key, want, and got."""
    if value is None or (declared.optional and value == "auto" and "auto" not in declared.choices):
        if declared.optional:
            return None
        raise _wrong(declared, value)
    value = _convert(declared, value)
    if declared.choices:
        value = declared.aliases.get(value, value)
        if value not in declared.choices:
            raise _wrong(declared, value, did_you_mean(str(value), declared.choices))
    if declared.kind in ("int", "float", "size"):
        below = declared.low is not None and value < declared.low
        if below or (declared.high is not None and value > declared.high):
            raise _wrong(declared, value)
    return value


def _convert(declared: Setting, value: Any) -> Any:
    kind = declared.kind
    if kind == "str" and isinstance(value, os.PathLike):
        value = os.fspath(value)
    if kind == "size" and isinstance(value, str):
        return parse_size(declared, value)
    if kind == "strings":
        items = [value] if isinstance(value, str) else value
        if isinstance(items, list | tuple) and all(map(_is_unicode, items)):
            return tuple(items)
        raise _wrong(declared, value)
    if kind == "float" and isinstance(value, int) and not isinstance(value, bool):
        try:
            value = float(value)
        except OverflowError:
            raise _wrong(declared, value) from None
    wanted: dict[str, type] = {"bool": bool, "float": float, "str": str, "mapping": dict}
    right = isinstance(value, wanted.get(kind, int))
    if not right or (isinstance(value, bool) and kind != "bool"):
        raise _wrong(declared, value)
    if kind == "float" and not math.isfinite(value):
        raise _wrong(declared, value)
    if kind == "size" and value > _MAX_SIZE:
        raise _wrong(declared, value)
    return value


def _is_unicode(value: Any) -> bool:
    """A string that can be sent: bytes of another encoding come from the command line as halves of
    surrogate pairs. (A path may have them.)
    """
    return isinstance(value, str) and not any("\ud800" <= mark <= "\udfff" for mark in value)


def parse_text(declared: Setting, text: str) -> Any:
    """The value that `text` (environment or command line) spells. Raises ConfigError."""
    lowered = text.strip().lower()
    if declared.optional and lowered in _NULL:
        return None
    if declared.kind == "bool":
        if lowered in _TRUE | _FALSE:
            return lowered in _TRUE
        raise _wrong(declared, text)
    if declared.kind == "strings":
        return tuple(part.strip() for part in text.split(",") if part.strip())
    try:
        if declared.kind == "int":
            return int(text)
        if declared.kind == "float":
            return float(text)
        if declared.kind == "mapping":
            return json.loads(text)
    except (ValueError, RecursionError):
        raise _wrong(declared, text) from None
    return text


def parse_size(declared: Setting, text: str) -> int:
    """Bytes from "2GiB", "1.5 GB" (powers of 1000), "512M" or a plain number."""
    match = _SIZE.match(text)
    if match is None:
        raise _wrong(declared, text)
    number, prefix, binary = match.groups()
    base = 1024 if binary else 1000
    size = float(number) * base ** " kmgt".index(prefix.lower() or " ")
    if size > _MAX_SIZE:
        raise _wrong(declared, text)
    return int(size)


def _wrong(declared: Setting, value: Any, hint: str = "") -> ConfigError:
    got = type(value).__name__ if declared.secret else f"{value!r:.200}"
    return ConfigError(f"{declared.key} must be {declared.wanted}, got {got}{hint}")


def _plain(limit: float) -> str:
    """A limit as one writes it: whole numbers with all their digits."""
    return str(limit) if isinstance(limit, int) else f"{limit:g}"


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """ " (did you mean 'x'?)", or nothing where none is as similar as `cutoff` (0 to 1)."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return f" (did you mean {close[0]!r}?)" if close else ""
