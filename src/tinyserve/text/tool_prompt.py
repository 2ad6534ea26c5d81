"""Tools for models whose chat template knows none: the conversation rewritten so that it needs no
help from the template.

The tools are described in the system message in Hermes' words (NousResearch, "Hermes function
calling"), calls of earlier turns are written out as Hermes writes them, and results come as the
user's messages. The format to read is then `tool_formats.HERMES`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

_NAMES_TOOLS = re.compile(r"\btools\b")
_NAMES_CALLS = re.compile(r"\btool_calls\b")


def template_knows_tools(source: str) -> bool:
    """Whether a template shows the tools that it is given."""
    return _NAMES_TOOLS.search(source) is not None


def template_knows_calls(source: str) -> bool:
    """Whether a template shows the calls of earlier turns."""
    return _NAMES_CALLS.search(source) is not None


def describe_tools(tools: Sequence[Mapping[str, Any]]) -> str:
    """What a model is told of the tools and of how to call them."""
    lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    return (
        "You may call one or more functions to help with the user's request. "
        f"The functions are described within <tools></tools>:\n<tools>\n{lines}\n</tools>\n\n"
        "To call a function, write a JSON object with its name and arguments within "
        "<tool_call></tool_call>:\n"
        '<tool_call>\n{"name": <function name>, "arguments": <arguments object>}\n</tool_call>'
    )


def with_tools(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    *,
    in_user: bool = False,
) -> list[dict[str, Any]]:
    """The messages with the tools described in the system message, or in the first user's.

    `in_user` is for templates that refuse system messages. The messages are normalised: their
    content is a string.
    """
    text = describe_tools(tools)
    result = [dict(message) for message in messages]
    role = "user" if in_user else "system"
    found = next((m for m in result[: None if in_user else 1] if m["role"] == role), None)
    if found is None:
        return [{"role": role, "content": text}, *result]
    own = found["content"]
    found["content"] = f"{text}\n\n{own}" if in_user else f"{own}\n\n{text}"
    return result


def with_calls_written_out(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages without calls and results: both have become text. Results that follow each other
    are one message.
    """
    result: list[dict[str, Any]] = []
    was_result = False
    for message in messages:
        is_result = message["role"] == "tool"
        if is_result:
            text = f"<tool_response>\n{message['content']}\n</tool_response>"
            if was_result:
                result[-1]["content"] += f"\n{text}"
            else:
                result.append({"role": "user", "content": text})
        elif message.get("tool_calls"):
            result.append(_with_calls_as_text(message))
        else:
            result.append(dict(message))
        was_result = is_result
    return result


def _with_calls_as_text(message: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in message.items() if key != "tool_calls"}
    texts = [kept["content"]] if kept["content"] else []
    for call in message["tool_calls"]:
        function = call.get("function", {})
        name = json.dumps(function.get("name"), ensure_ascii=False)
        arguments = function.get("arguments", {})
        if not isinstance(arguments, str):  # else it is no JSON: shown as the model wrote it
            arguments = json.dumps(arguments, ensure_ascii=False)
        texts.append(f'<tool_call>\n{{"name": {name}, "arguments": {arguments}}}\n</tool_call>')
    kept["content"] = "\n".join(texts)
    return kept
