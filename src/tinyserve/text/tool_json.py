"""Reading a JSON tool call while it is written, character by character.

Generators that take one character at each `send`, so that each rule reads like the grammar it
stands for. What they find they tell `Calls`; `NotACall` says that the text is something else. Each
character is looked at once, and nothing recurses, however deep the JSON.

The arguments are passed on as written, not parsed. Two repairs make JSON of what models often
write: raw line breaks inside strings are escaped, and arguments given as a string of JSON are
unpacked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator
from typing import Protocol, TypeVar

T = TypeVar("T")
Reading = Generator[None, str, T]

SPACE = " \t\r\n"
ARGUMENT_KEYS = ("arguments", "parameters")
_HALF = re.compile("[\ud800-\udfff]")
TOOL_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,128}")
TOOL_NAME_RULE = "must be 1 to 128 letters, digits, '_', '-' and '.'"


class NotACall(Exception):
    """The text is no tool call after all, or ceases to be one."""


class Calls(Protocol):
    """Receives what the reader finds: whether a text is a call, its name and its arguments."""

    @property
    def opener(self) -> str:
        """The marker that announced the call; empty where there was none."""
        ...

    def types(self, name: str, key: str) -> frozenset[str]:
        """The JSON types of a function's parameter; none where the schema does not say."""
        ...

    def open(self) -> None:
        """What may be a call begins at the current character."""
        ...

    def member(self, key: str) -> None:
        """The object has a member `key`. Raises NotACall if no call has such a member."""
        ...

    def begin(self, name: str) -> None:
        """Tell that it is a call of `name`. Raises NotACall if no function of that name may be
        called.
        """
        ...

    def arguments(self, piece: str) -> None:
        """The next piece of the arguments, as JSON text."""
        ...

    def end(self) -> None:
        """The call is complete."""
        ...


def after_space() -> Reading[str]:
    """The next character that is no white space."""
    while True:
        char = yield
        if char not in SPACE:
            return char


def call_object(calls: Calls, *, is_inner: bool = False) -> Reading[None]:
    """An object with a name and arguments, in any order, beside other members.

    Its opening brace has been read; it ends with the closing one. Some models call the name
    "function", or put the call itself there, as the tools that they are shown have it.
    """
    name: str | None = None
    early: list[str] | None = None  # arguments that came before the name
    has_begun = has_inner = False
    char = yield from after_space()
    while char != "}":
        if char != '"':
            raise NotACall
        key = yield from _string()
        calls.member(key)
        if (yield from after_space()) != ":":
            raise NotACall
        char = yield from after_space()
        if key == "function" and char == "{" and not (is_inner or has_inner or name):
            has_inner = True
            yield from call_object(calls, is_inner=True)
            char = yield from after_space()
        elif has_inner:
            char = yield from _value(char, _ignore)
        elif key in ("name", "function") and name is None and char == '"':
            name = yield from _string()
            char = yield from after_space()
        elif key in ARGUMENT_KEYS and not has_begun and early is None:
            if name is None:
                early = []
                char = yield from _arguments(char, early.append)
            else:
                has_begun = True
                char = yield from _arguments(char, calls.arguments, _begins(calls, name))
        else:
            char = yield from _value(char, _ignore)
        if char == ",":
            char = yield from after_space()
        elif char != "}":
            raise NotACall
    if has_inner:
        return
    if name is None:
        raise NotACall
    if not has_begun:
        calls.begin(name)
        calls.arguments("".join(early) if early is not None else "{}")
    calls.end()


def arguments_object(calls: Calls, name: str) -> Reading[None]:
    """The arguments of a call whose name is known; their opening brace has been read."""
    yield from _checked_container("{", calls.arguments, _begins(calls, name))
    calls.end()


def rest_of_arguments(calls: Calls) -> Reading[None]:
    """The arguments of a call that has begun; their opening brace has been read."""
    yield from _checked_container("{", calls.arguments, lambda: None)
    calls.end()


def _begins(calls: Calls, name: str) -> Callable[[], None]:
    return lambda: calls.begin(name)


def _arguments(
    char: str, keep: Callable[[str], None], begin: Callable[[], None] = lambda: None
) -> Reading[str]:
    """The value of the arguments, from its first character; the first character after it.

    `begin` is told when it is certain that arguments have begun.
    """
    if char == "{":
        yield from _checked_container(char, keep, begin)
        return (yield from after_space())
    if char == '"':
        text = yield from _string()
        begin()
        keep(text.strip() or "{}")
        return (yield from after_space())
    pieces: list[str] = []
    char = yield from _value(char, pieces.append)
    begin()
    text = "".join(pieces)
    keep("{}" if text == "null" else text)
    return char


def _checked_container(
    opening: str, keep: Callable[[str], None], begin: Callable[[], None]
) -> Reading[None]:
    """An object that is taken for one only when its first member begins as JSON wants."""
    space = ""
    while (char := (yield)) in SPACE:
        space += char
    if char not in '"}':
        raise NotACall
    begin()
    keep(opening + space)
    if char == "}":
        keep(char)
        return
    keep(char)
    yield from _rest_of_string(keep)
    yield from _rest_of_container(keep)


def _value(char: str, keep: Callable[[str], None]) -> Reading[str]:
    """Any JSON value, from its first character; the first character after it, spaces skipped."""
    if char == '"':
        keep(char)
        yield from _rest_of_string(keep)
        return (yield from after_space())
    if char in "{[":
        keep(char)
        yield from _rest_of_container(keep)
        return (yield from after_space())
    while char not in ",}]" and char not in SPACE:
        if not is_bare(char):
            raise NotACall
        keep(char)
        char = yield
    return char if char not in SPACE else (yield from after_space())


def _rest_of_container(keep: Callable[[str], None]) -> Reading[None]:
    """Up to the bracket that closes the one already read. Brackets of both kinds count alike."""
    depth = 1
    while depth:
        char = yield
        if char in "{[":
            depth += 1
        elif char in "}]":
            depth -= 1
        elif char != '"' and char not in SPACE and char not in ",:" and not is_bare(char):
            raise NotACall
        keep(char)
        if char == '"':
            yield from _rest_of_string(keep)


def _rest_of_string(keep: Callable[[str], None]) -> Reading[None]:
    """Up to the closing quote; raw control characters, which JSON forbids, are escaped."""
    while True:
        char = yield
        keep(char if char >= " " else within_quotes(char))
        if char == '"':
            return
        if char == "\\":
            keep((yield))


def _string() -> Reading[str]:
    """The text of a string whose opening quote has been read."""
    pieces = ['"']
    yield from _rest_of_string(pieces.append)
    try:
        return whole_characters(json.loads("".join(pieces)))
    except ValueError:
        raise NotACall from None


def whole_characters(text: str) -> str:
    """The text with U+FFFD for halves of characters, which escapes can spell and UTF-8 cannot."""
    return _HALF.sub("\ufffd", text)


def quoted(text: str) -> str:
    """The text as a string of JSON, in quotes."""
    return json.dumps(text, ensure_ascii=False)


def within_quotes(text: str) -> str:
    """The text as it stands inside a string of JSON."""
    return quoted(text)[1:-1]


def is_bare(char: str) -> bool:
    """Whether it may stand in a number or a word such as true."""
    return char.isalnum() or char in "+-._"


def _ignore(_: str) -> None:
    """Discards the value that it is given."""
