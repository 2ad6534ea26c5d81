"""The messages of a request in the one form that chat templates expect.

Owns what a message may look like; everything else is refused by its path. Renders nothing.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from tinyserve.errors import RequestError

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_RENAMED_ROLES = {"developer": "system", "function": "tool"}
TEXT_PARTS = ("text", "input_text", "output_text", "refusal")


def normalise_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Copies of the messages in the form that templates expect.

    Content becomes a string: text parts are joined by newlines, null (allowed beside tool calls
    and thinking) is empty, or the refusal that came instead. "developer" becomes "system".
    Arguments of tool calls, JSON text in OpenAI's API, become objects. The older `function_call`
    and role "function" become tool calls and "tool"; `reasoning` becomes `reasoning_content`, and
    so do an assistant's parts of thinking (Mistral's API). Other keys stay, unless they are null:
    templates test whether a key is there. Raises RequestError naming the message at fault.
    """
    if not isinstance(messages, (list, tuple)) or not messages:
        raise RequestError("messages must be a list with at least one message", param="messages")
    return [_normalise(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _normalise(message: Any, where: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise RequestError(f"{where} must be an object", param=where)
    role = message.get("role")
    if role not in ROLES:
        raise RequestError(
            f"{where}.role must be one of {', '.join(ROLES)}, not {role!r:.100}",
            param=f"{where}.role",
        )
    result = {key: value for key, value in message.items() if value is not None}
    result["role"] = _RENAMED_ROLES.get(role, role)
    function_call = result.pop("function_call", None)
    calls = message.get("tool_calls")
    if not calls and function_call:
        calls = [{"type": "function", "function": function_call}]
    content, may_be_null = message.get("content"), False
    is_assistant = role == "assistant"
    if is_assistant:
        may_be_null = any((calls, message.get("reasoning_content"), message.get("reasoning")))
        if content is None and isinstance(message.get("refusal"), str):
            content = message["refusal"]
    result["content"] = content_text(
        content, f"{where}.content", may_be_null=may_be_null, may_think=is_assistant
    )
    if calls:
        if not isinstance(calls, (list, tuple)):
            raise RequestError(f"{where}.tool_calls must be a list", param=f"{where}.tool_calls")
        result["tool_calls"] = [
            _with_parsed_arguments(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(calls)
        ]
    elif "tool_calls" in result:
        del result["tool_calls"]  # empty: templates test whether the key is there
    if "reasoning" in result:
        result.setdefault("reasoning_content", result.pop("reasoning"))
    if is_assistant and (thoughts := _thoughts(content, f"{where}.content")):
        result.setdefault("reasoning_content", thoughts)
    return result


def content_text(
    content: Any, where: str = "content", *, may_be_null: bool = False, may_think: bool = False
) -> str:
    """The text of a message's content, as templates see it, without parts of thinking where there
    may be any. Raises RequestError naming the part.
    """
    if isinstance(content, str):
        return content
    if content is None and may_be_null:
        return ""
    if not isinstance(content, (list, tuple)):
        raise RequestError(f"{where} must be a string or a list of text parts", param=where)
    return "\n".join(
        _part(part, f"{where}[{i}]")
        for i, part in enumerate(content)
        if not (may_think and _is_thinking(part))
    )


def _thoughts(content: Any, where: str) -> str:
    """The text of the parts of thinking."""
    if not isinstance(content, (list, tuple)):
        return ""
    return "\n".join(
        content_text(part.get("thinking"), f"{where}[{i}].thinking")
        for i, part in enumerate(content)
        if _is_thinking(part)
    )


def _is_thinking(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "thinking"


def _part(part: Any, where: str) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind not in TEXT_PARTS:
        raise RequestError(
            f"{where} has type {kind!r:.100}; this model reads only text", param=where
        )
    field = "refusal" if kind == "refusal" else "text"
    text = part.get(field)
    if not isinstance(text, str):
        raise RequestError(f"{where}.{field} must be a string", param=f"{where}.{field}")
    return text


def _with_parsed_arguments(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise RequestError(f"{where}.function must be an object with a name", param=where)
    arguments = function.get("arguments", "")
    if arguments is not None and not isinstance(arguments, (str, Mapping)):
        raise RequestError(f"{where}.function.arguments must be a string of JSON", param=where)
    if not isinstance(arguments, Mapping):
        # A model may have written no JSON, or escapes of no character; the template then gets the
        # text itself.
        with contextlib.suppress(ValueError, RecursionError):
            parsed = json.loads(arguments) if arguments and arguments.strip() else {}
            json.dumps(parsed, ensure_ascii=False).encode()
            arguments = parsed
    return {**call, "function": {**function, "arguments": arguments}}
