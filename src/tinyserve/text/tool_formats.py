"""How models write tool calls: one `ToolFormat` each, and which of them a chat template uses.

A format says what announces a call, how it is read while it is written, and how its text is put
together, from which a grammar is made where a call is demanded (`text/tool_grammar.py`).

hermes       <tool_call>{"name": "f", "arguments": {...}}</tool_call>, repeated (Qwen, Hermes)
llama3_json  {"name": "f", "parameters": {...}}, several separated by ";", <|python_tag|> before it
mistral      [TOOL_CALLS][{"name": "f", "arguments": {...}}, ...]; newer: [TOOL_CALLS]f[ARGS]{...}
qwen3_coder  <tool_call><function=f><parameter=a>1</parameter></function></tool_call>, repeated
pythonic     [f(a=1), g(b="x")] (Llama 3.2 and 4); LFM2 writes markers around it, or around JSON
"""

from __future__ import annotations

import re
import secrets
import string
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from tinyserve.text.tool_json import (
    SPACE,
    TOOL_NAME,
    Calls,
    NotACall,
    Reading,
    after_space,
    arguments_object,
    call_object,
)
from tinyserve.text.tool_pythonic import read_pythonic
from tinyserve.text.tool_xml import END_OF_CALL, FUNCTION, read_xml

MAX_HEAD = 256  # characters; Mistral's newer form: a name, an id and two markers


def openai_id() -> str:
    """A new id in OpenAI's form."""
    return f"call_{secrets.token_hex(12)}"


def mistral_id() -> str:
    """A new id that Mistral's templates accept: nine letters and digits."""
    letters = string.ascii_letters + string.digits
    return "".join(secrets.choice(letters) for _ in range(9))


@dataclass(frozen=True)
class ToolFormat:
    """One way to write calls: how they are read, and how a grammar has them written."""

    name: str
    # Reading. Openers announce a call anywhere in a text, closers end one.
    openers: tuple[str, ...]
    closers: tuple[str, ...]
    read: Callable[[Calls], Reading[str]]  # what follows the opener; returns what it read too much
    # Writing: what stands before a call's name, between the name and the arguments, and after them.
    call: tuple[str, str, str]
    first: str = ""  # before the first call
    separator: str = ""  # between calls
    last: str = ""  # after the last call
    bare: str = ""  # the character by which a line may begin with a call that nothing announces
    is_name_quoted: bool = True  # the name is written as JSON
    notation: Literal["json", "xml", "python"] = "json"  # in which arguments are written
    more_markers: tuple[str, ...] = ()  # beside openers and closers; see `markers`
    new_id: Callable[[], str] = openai_id

    @property
    def markers(self) -> tuple[str, ...]:
        """Everything that may be a special token and must be seen to read the format."""
        return (*self.openers, *self.closers, *self.more_markers)


def _read_hermes(calls: Calls) -> Reading[str]:
    """One call; or, as some models write several, one after another, or in a list."""
    char = yield from after_space()
    if char == "[":
        return (yield from _read_list(calls))
    if char != "{":
        raise NotACall
    while char == "{":
        calls.open()
        yield from call_object(calls)
        while (char := (yield)) in SPACE or char == "}":  # a brace too many is a common slip
            pass
    return char


def _read_llama(calls: Calls) -> Reading[str]:
    if (yield from after_space()) != "{":
        raise NotACall
    while True:
        calls.open()
        yield from call_object(calls)
        char = yield from after_space()
        if char == ";":
            char = yield from after_space()
            if char != "{":
                return f";{char}"
        elif char != "{":
            return char


def _read_mistral(calls: Calls) -> Reading[str]:
    char = yield from after_space()
    if char == "[":
        return (yield from _read_list(calls))
    if char == "{":
        calls.open()
        yield from call_object(calls)
        return ""
    head = ""
    while char != "{":
        head += char
        if len(head) > MAX_HEAD:
            raise NotACall
        char = yield
    name = re.split(r"\[(?:ARGS|CALL_ID)\]", head)[0].strip()
    if not TOOL_NAME.fullmatch(name):
        raise NotACall
    calls.open()
    yield from arguments_object(calls, name)
    return ""


def _read_list(calls: Calls) -> Reading[str]:
    """Calls separated by commas; the opening bracket has been read."""
    is_first = True
    while True:
        char = yield from after_space()
        if char != "{":
            if is_first:
                raise NotACall
            return "" if char == "]" else char
        is_first = False
        calls.open()
        yield from call_object(calls)
        char = yield from after_space()
        if char != ",":
            return "" if char == "]" else char


HERMES = ToolFormat(
    name="hermes",
    openers=("<tool_call>",),
    closers=("</tool_call>",),
    read=_read_hermes,
    call=('<tool_call>\n{"name": ', ', "arguments": ', "}\n</tool_call>"),
    separator="\n",
)
LLAMA3_JSON = ToolFormat(
    name="llama3_json",
    openers=("<|python_tag|>",),
    closers=(),
    read=_read_llama,
    call=('{"name": ', ', "parameters": ', "}"),
    separator="; ",
    bare="{",
)
MISTRAL = ToolFormat(
    name="mistral",
    openers=("[TOOL_CALLS]",),
    closers=(),
    read=_read_mistral,
    call=('{"name": ', ', "arguments": ', "}"),
    first="[TOOL_CALLS][",
    separator=", ",
    last="]",
    more_markers=("[ARGS]", "[CALL_ID]"),
    new_id=mistral_id,
)
MISTRAL_ARGS = replace(
    MISTRAL,
    call=("[TOOL_CALLS]", "[ARGS]", ""),
    first="",
    separator="",
    last="",
    is_name_quoted=False,
)
QWEN3_CODER = ToolFormat(
    name="qwen3_coder",
    openers=("<tool_call>", FUNCTION),
    closers=("</tool_call>",),
    read=read_xml,
    call=(f"<tool_call>\n{FUNCTION}", ">\n", f"{END_OF_CALL}\n</tool_call>"),
    separator="\n",
    is_name_quoted=False,
    notation="xml",
)
PYTHONIC = ToolFormat(
    name="pythonic",
    openers=("<|python_start|>",),
    closers=("<|python_end|>",),
    read=read_pythonic,
    call=("", "(", ")"),
    first="[",
    separator=", ",
    last="]",
    bare="[",
    is_name_quoted=False,
    notation="python",
)
PYTHONIC_MARKED = replace(
    PYTHONIC,
    openers=("<|tool_call_start|>",),
    closers=("<|tool_call_end|>",),
    first="<|tool_call_start|>[",
    last="]<|tool_call_end|>",
)

_PYTHONIC_EXAMPLE = re.compile(r"\[\w+\(\w+=\w+")  # a template's example for the model


def detect_tool_format(source: str | None, parser: str = "auto") -> ToolFormat | None:
    """The format named by the setting `parser`, or the one that a template's text shows.

    A template that shows none of them gets Hermes', which is also the one taught to models whose
    template knows no tools (`text/tool_prompt.py`). None for "none".
    """
    source = source or ""
    if parser == "none":
        return None
    if parser == "auto":
        parser = _shown(source)
    if parser == "mistral":
        return MISTRAL_ARGS if "[ARGS]" in source else MISTRAL
    if parser == "pythonic":
        return PYTHONIC_MARKED if "<|tool_call_start|>" in source else PYTHONIC
    return {form.name: form for form in (LLAMA3_JSON, QWEN3_CODER)}.get(parser, HERMES)


def _shown(source: str) -> str:
    """The parser of the format that a template's text shows."""
    if "[TOOL_CALLS]" in source:
        return "mistral"
    if FUNCTION in source:
        return "qwen3_coder"
    if "<tool_call>" in source:
        return "hermes"
    if "<|tool_call_start|>" in source or _PYTHONIC_EXAMPLE.search(source):
        return "pythonic"
    if "<|python_tag|>" in source or '"name": function name, "parameters"' in source:
        return "llama3_json"
    return "pythonic" if "<|python_start|>" in source else "hermes"
