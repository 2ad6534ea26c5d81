"""Reading a call in Qwen3-Coder's notation while it is written, character by character.

    <tool_call>
    <function=get_weather>
    <parameter=city>
    Paris
    </parameter>
    </function>
    </tool_call>

A value is the text between two line breaks, whatever it holds; the tool's schema tells which are
strings, and those stream as they are written. Common slips are taken: the first line left out, a
value without its closing tag; arguments as one JSON object, too (Functionary 3.1). A closing tag
on a line with text before it may be a part of that text: it ends the value only where another tag
follows.
"""

from __future__ import annotations

from collections.abc import Callable

from tinyserve.text.markers import num_held
from tinyserve.text.tool_json import (
    SPACE,
    TOOL_NAME,
    Calls,
    NotACall,
    Reading,
    quoted,
    rest_of_arguments,
    within_quotes,
)
from tinyserve.text.tool_values import STRING, as_json

FUNCTION, PARAMETER = "<function=", "<parameter="
END_OF_CALL, END_OF_VALUE = "</function>", "</parameter>"
_ENDS = (f"\n{END_OF_VALUE}", f"\n{PARAMETER}", f"\n{END_OF_CALL}")
_TAGS = (PARAMETER, END_OF_CALL, "</tool_call>")  # what may follow a value
_MAX_NAME = 256


def read_xml(calls: Calls) -> Reading[str]:
    """Read one call, from what follows its opener. Returns what was read beyond it."""
    if calls.opener != FUNCTION and (yield from _tag(FUNCTION)) != FUNCTION:
        raise NotACall
    calls.open()
    name = (yield from _until_bracket(_MAX_NAME)).strip("\"' ")
    if not TOOL_NAME.fullmatch(name):
        raise NotACall
    calls.begin(name)
    before = "{"
    tag = yield from _tag(PARAMETER, END_OF_CALL)
    if tag == "{":
        yield from rest_of_arguments(calls)
        tag = yield from _tag(END_OF_CALL)
        return "" if tag == END_OF_CALL else tag
    while tag == PARAMETER:
        key = (yield from _until_bracket()).strip("\"' ")
        calls.arguments(f"{before}{quoted(key)}: ")
        before = ", "
        end = yield from _argument(calls, name, key)
        if end.endswith(END_OF_VALUE):
            tag = yield from _tag(PARAMETER, END_OF_CALL)
        else:
            tag = end.strip()
    calls.arguments("{}" if before == "{" else "}")
    calls.end()
    return "" if tag == END_OF_CALL else tag


def _tag(*tags: str) -> Reading[str]:
    """The tag that comes next, white space skipped; or what comes instead of one."""
    return (yield from _space_and_tag(*tags))[1]


def _space_and_tag(*tags: str) -> Reading[tuple[str, str]]:
    """As `_tag`, with the white space that came before."""
    space = ""
    while (held := (yield)) in SPACE:
        space += held
    while held not in tags and any(tag.startswith(held) for tag in tags):
        held += yield
    return space, held


def _until_bracket(limit: int | None = None) -> Reading[str]:
    """The rest of an opening tag. Raises NotACall beyond `limit` characters."""
    pieces: list[str] = []
    while (char := (yield)) != ">":
        pieces.append(char)
        if limit is not None and len(pieces) > limit:
            raise NotACall
    return "".join(pieces)


def _argument(calls: Calls, name: str, key: str) -> Reading[str]:
    """Read one value, from what follows its opening tag. Returns what ended it."""
    types = calls.types(name, key)
    if types == STRING:
        calls.arguments('"')
        end = yield from _value(lambda piece: calls.arguments(within_quotes(piece)))
        calls.arguments('"')
        return end
    pieces: list[str] = []
    end = yield from _value(pieces.append)
    calls.arguments(as_json("".join(pieces), types))
    return end


def _value(keep: Callable[[str], None]) -> Reading[str]:
    """Hand on the text of a value; what ended it. The line break before it is not of it."""
    held = yield
    if held == "\n":
        held = yield
    while True:
        for end in _ENDS:
            if held.endswith(end):
                keep(held.removesuffix(end))
                return end
        if held.endswith(END_OF_VALUE):
            space, tag = yield from _space_and_tag(*_TAGS)
            if tag in _TAGS:
                keep(held.removesuffix(END_OF_VALUE))
                return tag
            held += space + tag
        certain = len(held) - num_held(held, (*_ENDS, END_OF_VALUE))
        if certain:
            keep(held[:certain])
            held = held[certain:]
        held += yield
