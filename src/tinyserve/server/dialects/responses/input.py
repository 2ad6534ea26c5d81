"""The items of a Responses request's `input`, read into a conversation.

Messages, function and custom tool calls with their results, and reasoning. Items that other servers
make with tools of their own (searches, generated images, ...) say nothing to a text model and are
left out; their kinds are returned, to be logged. Everything else is refused by its path.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tinyserve.errors import RequestError
from tinyserve.server.dialects.conversation import Conversation, Message
from tinyserve.server.dialects.json_node import Node
from tinyserve.server.dialects.responses.body import unsealed
from tinyserve.server.dialects.responses.tools import ToolSet, custom_arguments
from tinyserve.server.json_text import to_json

ROLES = ("user", "assistant", "system", "developer")

# Items of hosted tools and of the API's own bookkeeping, which a history may hold.
LEFT_OUT = frozenset(
    (
        "additional_tools", "agent_message", "apply_patch_call", "apply_patch_call_output",
        "code_interpreter_call", "compaction", "compaction_summary", "compaction_trigger",
        "computer_call", "computer_call_output", "configuration_update", "file_search_call",
        "ghost_snapshot", "image_generation_call", "mcp_approval_request",
        "mcp_approval_response", "mcp_call", "mcp_list_tools", "program", "program_output",
        "shell_call", "shell_call_output", "tool_search_call", "tool_search_output",
        "web_search_call",
    )
)  # fmt: skip


def read_input(
    value: str | Sequence[Any] | None, instructions: str | None, tools: ToolSet
) -> tuple[list[Message], set[str]]:
    """The messages, and the kinds of items that were left out. Raises RequestError."""
    conversation = Conversation(joins_turns=False)
    if instructions:
        conversation.system(instructions)
    left_out: set[str] = set()
    if isinstance(value, str):
        conversation.user(value)
    elif value is not None:
        for node in Node(list(value), "input").items():
            _item(node, conversation, tools, left_out)
    messages = conversation.messages()
    if all(message["role"] == "system" for message in messages):
        raise RequestError("input is required: a text or a list of items", param="input")
    return messages, left_out


def _item(node: Node, conversation: Conversation, tools: ToolSet, left_out: set[str]) -> None:
    kind = node.get("type").text_or("message")
    if kind == "message":
        _message(node, conversation)
    elif kind == "reasoning":
        text = _thoughts(node)
        if text:
            conversation.reasoning(text)
    elif kind in ("function_call", "custom_tool_call", "local_shell_call"):
        _call(kind, node, conversation, tools)
    elif kind in ("function_call_output", "custom_tool_call_output", "local_shell_call_output"):
        conversation.result(_call_id(node, kind).text(), _content(node.get("output")))
    elif kind in LEFT_OUT:
        left_out.add(kind)
    elif kind == "item_reference":
        raise node.fault(
            "this server keeps nothing between requests; send the item itself, as clients do that "
            "are set to `store: false`"
        )
    else:
        raise node.get("type").fault(f"unknown kind of item {kind[:64]!r}")


def _message(node: Node, conversation: Conversation) -> None:
    role = node.get("role").one_of(ROLES)
    text = _content(node.get("content"))
    if role == "user":
        conversation.user(text)
    elif role == "assistant":
        conversation.assistant(text)
    else:
        conversation.system(text)


def _content(node: Node) -> str:
    if isinstance(node.value, str):
        return node.value
    if not isinstance(node.value, list):
        raise node.fault("must be a string or a list of content parts")
    return "\n".join(_part(part) for part in node.items())


def _part(node: Node) -> str:
    kind = node.get("type").text()
    if kind in ("input_text", "output_text", "text", "reasoning_text", "summary_text"):
        return node.get("text").text()
    if kind == "refusal":
        return node.get("refusal").text()
    raise node.fault(f"has type {kind[:64]!r}; this model reads only text")


def _thoughts(node: Node) -> str:
    """The reasoning itself, in the open or as this server has sealed it, else its summary."""
    content = node.get("content")
    sealed = unsealed(node.get("encrypted_content").text_or(""))
    if sealed and not content.value:
        return sealed
    parts = content if content.value else node.get("summary")
    return "\n".join(_part(part) for part in parts.items()) if parts.value else ""


def _call_id(node: Node, kind: str) -> Node:
    """The id of a call or its result. A local shell's may be its item's, by the client's types."""
    call_id = node.get("call_id")
    is_bare = kind.startswith("local_shell_call") and call_id.value is None
    return node.get("id") if is_bare else call_id


def _call(kind: str, node: Node, conversation: Conversation, tools: ToolSet) -> None:
    if kind == "local_shell_call":
        arguments = to_json(node.get("action").object())
        conversation.call(_call_id(node, kind).text(), "local_shell", arguments)
        return
    name = tools.offered_name(node.get("name").text(), node.get("namespace").text_or(""))
    if kind == "custom_tool_call":
        arguments = custom_arguments(node.get("input").text())
    else:
        arguments = node.get("arguments").text()
    conversation.call(node.get("call_id").text(), name, arguments)
