"""Texts as models write them, cut at will, for tests of message parsing."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from tinyserve.text.message_parser import MessageParser
from tinyserve.text.messages import Part, ReasoningPart, TextPart, ToolCallPart
from tinyserve.text.tool_formats import ToolFormat
from tinyserve.text.tool_reader import CallReader, joined
from tinyserve.text.tool_use import Function

NAMES = ("f", "get_weather")
# What the schema says decides how a value that is written as plain text is read.
KINDS = {"s": "string", "i": "integer", "b": "boolean", "l": "array", "o": "object", "n": "null"}
PARAMETERS = {"type": "object", "properties": {key: {"type": kind} for key, kind in KINDS.items()}}
FUNCTIONS = tuple(Function(name, PARAMETERS) for name in NAMES)

# What texts are made of: whole calls, halves of them, markers and ordinary characters.
PIECES = (
    "<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]",
    "<think>", "</think>", '{"name": "f", ', '"arguments": ', '"parameters": ', '{"a": 1}', "{}",
    '"arguments": {"x": "<tool_call>", "y": [1, {"z": null}]}', '"name": "get_weather"', "{", "}",
    "[", "]", ",", ";", ":", '"', "\\", "\n", " ", "a", "é", "f", "null", "'", "<", "</", "[TOOL",
    "<function=f>", "<function=", "</function>", "<parameter=s>", "<parameter=i>", "</parameter>",
    "<parameter=", ">", "\n</parameter>\n", "\ntext\n", "<|python_start|>", "<|python_end|>",
    "[f(", "[f(s=", "get_weather(", "f()", "(", ")", ")]", "=", "i=5", "b=True", "s='x'", ", ",
    "\\x4", "[f(s='a\\'b', o={'k': (1, None)}), get_weather()]", "<|tool_call_start|>",
    "<tool_call>\n<function=f>\n<parameter=s>\na</parameter>\n</function>\n</tool_call>",
    '{"name": "f", "arguments": {"a": "b"}}', '{"name": "f", "parameters": {"q": "line\nbreak"}}',
)  # fmt: skip
wild_texts = st.lists(st.sampled_from(PIECES), max_size=14).map("".join)


def cuts_of(text: str) -> st.SearchStrategy[list[str]]:
    """The text in pieces, some of them empty."""
    places = st.lists(st.integers(0, len(text)), max_size=len(text) + 2).map(sorted)
    return places.map(lambda at: [text[a:b] for a, b in itertools.pairwise([0, *at, len(text)])])


# Few and fixed, since drawing JSON at random takes far longer than reading it.
ARGUMENTS: tuple[dict[str, Any], ...] = (
    {},
    {"a": 1},
    {"city": "Paris", "days": [1, 2.5e-3, -4], "metric": True, "note": None},
    {"": "", "nested": {"deep": {"er": [{}, [], [[]]]}}},
    {"quotes": 'say "hi" \\ and {"a": 1}]}', "é\u2028": "naïve 😀\n\t\u0000"},
    {"name": "f", "arguments": {"name": "g"}, "parameters": "x"},
    {"code": "<tool_call></tool_call>[TOOL_CALLS][ARGS]<|python_tag|><think>; </think>"},
)
argument_objects = st.sampled_from(ARGUMENTS)
calls = st.tuples(st.sampled_from(NAMES), argument_objects)


def write_calls(form: ToolFormat, written: Sequence[tuple[str, dict[str, Any]]]) -> str:
    """The calls as the format writes them."""
    before, between, after = form.call
    write = _NOTATIONS[form.notation]
    texts = [
        before
        + (json.dumps(name) if form.is_name_quoted else name)
        + between
        + write(arguments)
        + after
        for name, arguments in written
    ]
    return form.first + form.separator.join(texts) + form.last


def _as_xml(arguments: dict[str, Any]) -> str:
    texts = {k: v if isinstance(v, str) else json.dumps(v) for k, v in arguments.items()}
    return "".join(f"<parameter={k}>\n{text}\n</parameter>\n" for k, text in texts.items())


def _as_python(arguments: dict[str, Any]) -> str:
    texts = {k: json.dumps(v) if isinstance(v, str) else repr(v) for k, v in arguments.items()}
    return ", ".join(f"{k}={text}" for k, text in texts.items())


_NOTATIONS = {"json": json.dumps, "xml": _as_xml, "python": _as_python}


def new_reader(form: ToolFormat, **options: Any) -> CallReader:
    """A reader whose ids are id0, id1, ..."""
    count = itertools.count()
    form = dataclasses.replace(form, new_id=lambda: f"id{next(count)}")
    return CallReader(form, FUNCTIONS, **options)


def read(parser: MessageParser | CallReader, pieces: Sequence[str]) -> list[Part]:
    """All parts of a message, neighbours joined."""
    parts: list[Part] = []
    for piece in pieces:
        parts += parser.push(piece)
    return joined(parts + parser.flush())


def text_in(parts: Sequence[Part]) -> str:
    return "".join(part.text for part in parts if isinstance(part, TextPart))


def reasoning_in(parts: Sequence[Part]) -> str:
    return "".join(part.text for part in parts if isinstance(part, ReasoningPart))


def calls_in(parts: Sequence[Part]) -> list[tuple[str | None, str]]:
    """(name, arguments) of each call; the rules of the parts are checked."""
    found: list[tuple[str | None, str]] = []
    for part in parts:
        if not isinstance(part, ToolCallPart):
            continue
        is_first = part.index == len(found)
        assert is_first == (part.id is not None) == (part.name is not None)
        if is_first:
            found.append((part.name, part.arguments))
        else:
            assert part.index == len(found) - 1, "calls come one after the other"
            found[-1] = (found[-1][0], found[-1][1] + part.arguments)
    return found
