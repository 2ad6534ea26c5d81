"""Reading calls in Python's notation while they are written, character by character.

    [get_weather(city="Paris", days=3), now()]

Each keyword and its literal become a member of the arguments. Tuples and sets become lists; words
that are no literal become strings. Nothing is evaluated, and nothing recurses, however deep a
literal.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from tinyserve.text.tool_json import (
    SPACE,
    TOOL_NAME,
    Calls,
    NotACall,
    Reading,
    after_space,
    call_object,
    is_bare,
    quoted,
    within_quotes,
)

_CLOSERS = {"[": ("]", "]"), "(": (")", "]"), "{": ("}", "}")}  # written, and in JSON
_END_OF_SET = ("}", "]")
_QUOTES = ("'", '"')
_PREFIX = re.compile("[bfu]|[bf]?r[bf]?", re.IGNORECASE)  # before a string: r"\d"
_WORDS = {
    "True": "true",
    "False": "false",
    "None": "null",
    "true": "true",
    "false": "false",
    "null": "null",
}
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_ESCAPES = {"n": r"\n", "t": r"\t", "r": r"\r", "b": r"\b", "f": r"\f", "\n": "", "/": "/"}
_HEX = {"x": 2, "u": 4, "U": 8}
_LONGEST_NAME = 256
_END = "\ud800"  # half of a character, so that no text holds it


def read_pythonic(calls: Calls) -> Reading[str]:
    """A list of calls, from its opening bracket on."""
    if (yield from after_space()) != "[":
        raise NotACall
    char = yield from after_space()
    while True:
        calls.open()
        if char == "{" and calls.opener:  # LFM2 writes JSON between its markers when asked to
            yield from call_object(calls)
        else:
            name, char = yield from _word(char, _LONGEST_NAME)
            if not TOOL_NAME.fullmatch(name) or char != "(":
                raise NotACall
            yield from _arguments(calls, name)
        char = yield from after_space()
        if char == ",":
            char = yield from after_space()
            if char != "]":
                continue
        return "" if char == "]" else char


def python_literal(text: str) -> str:
    """A literal on its own, as the calls' are written; empty where the text is something else."""
    pieces: list[str] = []
    reading = _lone_value(pieces.append)
    next(reading)
    try:
        for char in f"{text}{_END}":
            reading.send(char)
    except StopIteration as stop:
        return "".join(pieces) if stop.value == _END else ""
    except NotACall:
        pass
    return ""


def _lone_value(keep: Callable[[str], None]) -> Reading[str]:
    return (yield from _value((yield from after_space()), keep))


def _arguments(calls: Calls, name: str) -> Reading[None]:
    """Keywords with their values; the opening parenthesis has been read."""
    before = "{"
    char = yield from after_space()
    while char != ")":
        key, char = yield from _word(char, _LONGEST_NAME)
        if not key or char != "=":
            raise NotACall
        if before == "{":
            calls.begin(name)
        calls.arguments(f"{before}{quoted(key)}: ")
        before = ", "
        char = yield from _value((yield from after_space()), calls.arguments)
        if char == ",":
            char = yield from after_space()
        elif char != ")":
            raise NotACall
    if before == "{":
        calls.begin(name)
    calls.arguments("{}" if before == "{" else "}")
    calls.end()


def _value(char: str, keep: Callable[[str], None]) -> Reading[str]:
    """A literal, from its first character; the first character after it, spaces skipped.

    A comma is held back until something follows it, since JSON has none before a closing bracket;
    a brace and what comes first in it, until a colon tells an object from a set.
    """
    closers: list[tuple[str, str]] = []  # one for each open bracket
    comma = ""
    while True:
        if closers and char == closers[-1][0]:
            keep(closers.pop()[1])
            char = yield from after_space()
        elif char in _CLOSERS:
            closer, first = _CLOSERS[char], list[str]()
            char = yield from after_space()
            if closer == _CLOSERS["{"] and char != "}":
                if char not in _CLOSERS:
                    char = yield from _scalar(char, first.append, is_member=True)
                if char != ":":
                    closer = _END_OF_SET
            keep(f"{comma}{'{' if closer[1] == '}' else '['}{''.join(first)}")
            closers.append(closer)
            if not first:
                comma = ""
                continue
        else:
            keep(comma)
            is_member = bool(closers) and closers[-1][1] == "}"
            char = yield from _scalar(char, keep, is_member=is_member)
        comma = ""
        if not closers:
            return char
        if char == ",":
            comma, char = ", ", (yield from after_space())
        elif char == ":" and closers[-1][1] == "}":
            keep(": ")
            char = yield from after_space()
        elif char != closers[-1][0]:
            raise NotACall


def _scalar(char: str, keep: Callable[[str], None], *, is_member: bool) -> Reading[str]:
    """A string, number or word, which may be a key if it `is_member` of an object; the first
    character after it, spaces skipped.
    """
    if char in _QUOTES:
        return (yield from _strings(char, keep))
    word, char = yield from _word(char)
    if not word:
        raise NotACall
    if char in _QUOTES and _PREFIX.fullmatch(word):
        return (yield from _strings(char, keep, is_raw="r" in word.lower()))
    keep(quoted(word) if is_member and char == ":" else _literal(word))
    return char


def _word(char: str, limit: int | None = None) -> Reading[tuple[str, str]]:
    """A name, number or word from its first character; the first character after it, spaces
    skipped. Raises NotACall beyond `limit` characters.
    """
    pieces: list[str] = []
    while is_bare(char):
        pieces.append(char)
        if limit is not None and len(pieces) > limit:
            raise NotACall
        char = yield
    return "".join(pieces), char if char not in SPACE else (yield from after_space())


def _literal(word: str) -> str:
    """A number or word of Python's as JSON; a string where it is neither."""
    if word in _WORDS:
        return _WORDS[word]
    if _NUMBER.fullmatch(word):
        return word
    for convert in (lambda text: int(text, 0), float):
        try:
            value = convert(word)
        except (ValueError, OverflowError):
            continue
        if abs(value) < float("inf"):
            return repr(value)
    return quoted(word)


def _strings(quote: str, keep: Callable[[str], None], *, is_raw: bool = False) -> Reading[str]:
    """Strings one after the other, which are one to Python, from the first opening quote on; the
    first character after them, spaces skipped.
    """
    keep('"')
    char = quote
    while char in _QUOTES:
        char = yield from _string(char, keep, is_raw)
    keep('"')
    return char


def _string(quote: str, keep: Callable[[str], None], is_raw: bool) -> Reading[str]:
    """The text of a string, within quotes of JSON, from its opening quote on; the first character
    after it, spaces skipped. Three quotes open one that ends with three.
    """
    closing, char = quote, (yield)
    if char == quote:
        char = yield
        if char != quote:  # it was an empty one
            return char if char not in SPACE else (yield from after_space())
        closing, char = quote * 3, (yield)
    quotes = ""  # quotes read so far that may close the string
    while True:
        if char == quote:
            quotes += char
            if quotes == closing:
                return (yield from after_space())
            char = yield
            continue
        keep(within_quotes(quotes))
        quotes = ""
        if char != "\\":
            keep(within_quotes(char))
        elif is_raw:
            keep(within_quotes(f"\\{(yield)}"))  # not even before a quote does it vanish
        else:
            keep((yield from _escape()))
        char = yield


def _escape() -> Reading[str]:
    """What a backslash and the characters after it stand for, within quotes."""
    char = yield
    if char in _HEX:
        return (yield from _character(char))
    if char in _ESCAPES:
        return _ESCAPES[char]
    return within_quotes(char if char in "\\'\"" else f"\\{char}")


def _character(kind: str) -> Reading[str]:
    r"""What \x41, \u0041 or \U00000041 stands for; the kind has been read."""
    digits = ""
    while len(digits) < _HEX[kind]:
        digits += yield
    try:
        code = int(digits, 16)
    except ValueError:
        return within_quotes(f"\\{kind}{digits}")
    if kind == "u":
        return f"\\u{code:04x}"  # two of them may make one character
    return within_quotes(chr(code) if code < 0x110000 and not 0xD800 <= code < 0xE000 else "\ufffd")
