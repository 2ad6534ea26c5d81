"""One conversation in the several forms that chat templates ask for.

Templates disagree on what a call's arguments are (an object, or its JSON text), on how many calls a
message may have, and on what a tool's schema always or never holds. Many take one system message,
at the start, where agents send several, and some between turns. What a template wants, only
rendering tells: the first form is the conversation as it came, and the others are for templates
that refuse it; contents as parts (`with_parts`) for those that show nothing else. Only that a
template wants short call ids, as Mistral's do (`with_short_ids`), shows in its text. Messages are
normalised (`text/normalise.py`). Renders nothing.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

_WANTS_NINE = re.compile(r"\|\s*length\s*[!=]=\s*9\b")

Objects = list[dict[str, Any]]
Form = tuple[Objects, Objects | None]  # the messages, and the tools


def forms(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None
) -> Iterator[Form]:
    """The conversation as it is, then in each other form that differs from those before."""
    original = [dict(message) for message in messages]
    given = [dict(tool) for tool in tools] if tools else None
    tried: list[Form] = []
    every = (_tool_forms(m, given) for m in (original, _with_instructions_first(original)))
    for form in itertools.chain.from_iterable(every):
        if form not in tried:
            tried.append(form)
            yield form


def _tool_forms(messages: Objects, tools: Objects | None) -> Iterator[Form]:
    yield messages, tools
    tools = None if tools is None else [_plain_tool(tool) for tool in tools]
    with_objects = _with_arguments(messages, _as_object)
    yield with_objects, tools
    yield _with_single_calls(with_objects), tools
    yield _with_arguments(messages, _as_text), tools


def with_parts(messages: Sequence[Mapping[str, Any]]) -> Objects:
    """The messages with a list of one part as the content of each."""
    return [{**m, "content": [{"type": "text", "text": m["content"]}]} for m in messages]


def _plain_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A tool with the fields that may be left out, and one type for each parameter."""
    function = tool["function"]
    parameters = {"type": "object", "properties": {}, **_plain(function.get("parameters"))}
    return {**tool, "function": {"description": "", **function, "parameters": parameters}}


def _plain(schema: Any) -> dict[str, Any]:
    if not isinstance(schema, Mapping):
        return {}
    result = {key: value for key, value in schema.items() if value is not None}
    if isinstance(result.get("type"), list):
        result["type"] = next((kind for kind in result["type"] if kind != "null"), "null")
    if "items" in result:
        result["items"] = _plain(result["items"])
    if isinstance(result.get("properties"), Mapping):
        properties = {name: _plain(inner) for name, inner in result["properties"].items()}
        result["properties"] = {name: {"description": "", **p} for name, p in properties.items()}
    return result


def _with_arguments(messages: Objects, convert: Callable[[Any], Any]) -> Objects:
    """The messages with the arguments of their calls converted."""
    return [
        {**message, "tool_calls": [_converted(call, convert) for call in message["tool_calls"]]}
        if message.get("tool_calls")
        else message
        for message in messages
    ]


def _converted(call: Mapping[str, Any], convert: Callable[[Any], Any]) -> dict[str, Any]:
    function = call["function"]
    return {**call, "function": {**function, "arguments": convert(function.get("arguments"))}}


def _as_object(arguments: Any) -> Any:
    """What a model wrote in place of an object, as the only member of one."""
    if arguments is None:
        return {}
    return arguments if isinstance(arguments, Mapping) else {"arguments": arguments}


def _as_text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _with_single_calls(messages: Objects) -> Objects:
    """The messages with one call in each, followed by its result."""
    result: Objects = []
    rest = messages
    while rest:
        message, *rest = rest
        calls = message.get("tool_calls") or []
        if len(calls) < 2:
            result.append(message)
            continue
        results = list(itertools.takewhile(lambda m: m["role"] == "tool", rest))
        rest = rest[len(results) :]
        for call in calls:
            result.append({**message, "tool_calls": [call]})
            message = {"role": "assistant", "content": ""}
            own = [r for r in results if r.get("tool_call_id") == call.get("id")]
            results = [r for r in results if r not in own]
            result += own
        result += results  # those that belong to no call of this message
    return result


def _with_instructions_first(messages: Objects) -> Objects:
    """The messages with one system message at most, the first. Later instructions become words of
    the user's, in one message with those before or after them, so that turns still alternate.
    """
    result: Objects = []
    was_late = False
    for message in messages:
        is_system = message["role"] == "system"
        is_late = is_system and any(m["role"] != "system" for m in result)
        told = {**message, "role": "user" if is_late else message["role"]}
        if result and result[-1]["role"] == told["role"] and (is_system or was_late):
            before = result.pop()
            told = {**before, **told, "content": f"{before['content']}\n\n{told['content']}"}
        result.append(told)
        was_late = is_late
    return result


def template_wants_short_ids(source: str) -> bool:
    """Whether a template refuses ids of calls that are not nine letters and digits (Mistral's)."""
    return _WANTS_NINE.search(source) is not None


def with_short_ids(messages: Sequence[Mapping[str, Any]]) -> Objects:
    """The messages with ids of nine letters and digits: other servers' are replaced, always alike,
    so that a conversation may have begun elsewhere.
    """
    result = [dict(message) for message in messages]
    for message in result:
        if isinstance(message.get("tool_call_id"), str):
            message["tool_call_id"] = _short(message["tool_call_id"])
        if message.get("tool_calls"):
            calls = message["tool_calls"]
            message["tool_calls"] = [{**call, "id": _short(str(call.get("id")))} for call in calls]
    return result


def _short(call_id: str) -> str:
    if len(call_id) == 9 and call_id.isascii() and call_id.isalnum():
        return call_id
    return hashlib.sha256(call_id.encode(errors="replace")).hexdigest()[:9]
