"""The `system` and `messages` of a Messages request, read into a conversation.

Text, thinking, tool calls and their results; neighbouring turns of one speaker are one turn, as
Anthropic's API has it. Blocks of tools that only Anthropic could run are left out. Everything else
is refused by its path.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tinyserve.errors import RequestError
from tinyserve.server.dialects.conversation import Conversation, Message
from tinyserve.server.dialects.json_node import Node
from tinyserve.server.json_text import to_json

# Claude Code puts this line, which changes with every request, before its instructions. Nothing
# after it could ever be found in the prefix cache.
_BILLING = "x-anthropic-billing-header:"

# Blocks of hosted tools, which a history may hold, and thinking that another server has encrypted.
LEFT_OUT = frozenset(
    (
        "advisor_tool_result", "bash_code_execution_tool_result", "code_execution_tool_result",
        "compaction", "container_upload", "fallback", "mcp_tool_listing", "mcp_tool_result",
        "mcp_tool_use", "redacted_thinking", "server_tool_use",
        "text_editor_code_execution_tool_result", "tool_search_tool_result",
        "web_fetch_tool_result", "web_search_tool_result",
    )
)  # fmt: skip


def read_conversation(
    system: str | Sequence[Any] | None, messages: Sequence[Any]
) -> tuple[list[Message], bool]:
    """The messages, and whether the last one, the assistant's, is to be continued. Raises
    RequestError.
    """
    if not messages:
        raise RequestError("messages must have at least one message", param="messages")
    conversation = Conversation(joins_turns=True)
    instructions = _system(Node(system, "system"))
    if instructions:
        conversation.system(instructions)
    for node in Node(list(messages), "messages").items():
        _message(node, conversation)
    result = conversation.messages()
    if all(message["role"] == "system" for message in result):  # one may well come last
        raise RequestError("messages must hold something to answer", param="messages")
    is_open = result[-1]["role"] == "assistant"
    if is_open and "tool_calls" in result[-1]:
        raise RequestError(
            "messages ends with a tool_use: a tool_result must follow", param="messages"
        )
    return result, is_open


def _system(node: Node) -> str:
    if node.value is None or isinstance(node.value, str):
        return node.value or ""
    texts = [_text(block) for block in node.items()]
    return "\n\n".join(text for text in texts if text and not text.startswith(_BILLING))


def _message(node: Node, conversation: Conversation) -> None:
    role = node.get("role").one_of(("user", "assistant", "system"))
    content = node.get("content")
    if isinstance(content.value, str):
        if role == "user":
            conversation.user(content.value)
        elif role == "assistant":
            conversation.assistant(content.value)
        else:
            conversation.system(content.value)
        return
    if not isinstance(content.value, list):
        raise content.fault("must be a string or a list of content blocks")
    if role == "system":
        conversation.system(_system(content))
        return
    read = _assistant_block if role == "assistant" else _user_block
    for block in content.items():
        if block.get("type").text() not in LEFT_OUT:
            read(block, conversation)


def _user_block(node: Node, conversation: Conversation) -> None:
    if node.value["type"] == "tool_result":
        text = _result(node.get("content"))
        if node.get("is_error").flag_or(False) and not text:
            text = "error"
        conversation.result(node.get("tool_use_id").text(), text)
    else:
        conversation.user(_text(node))


def _assistant_block(node: Node, conversation: Conversation) -> None:
    kind = node.value["type"]
    if kind == "tool_use":
        arguments = to_json(node.get("input").object())
        conversation.call(node.get("id").text(), node.get("name").text(), arguments)
    elif kind == "thinking":
        thoughts = node.get("thinking").text()
        if thoughts:
            conversation.reasoning(thoughts)
    else:
        conversation.assistant(_text(node))


def _result(node: Node) -> str:
    if node.value is None or isinstance(node.value, str):
        return node.value or ""
    if not isinstance(node.value, list):
        raise node.fault("must be a string or a list of content blocks")
    return "\n".join(_text(block) for block in node.items())


def _text(node: Node) -> str:
    """A block of text, or one that holds text: a plain document, a search result."""
    kind = node.get("type").text()
    if kind == "text":
        return node.get("text").text()
    if kind == "tool_reference":
        return node.get("tool_name").text()
    if kind == "search_result":
        parts = [_text(block) for block in node.get("content").items()]
        return "\n".join([node.get("title").text(), node.get("source").text(), *parts])
    if kind == "document":
        source = node.get("source")
        source_kind = source.get("type").text()
        if source_kind == "text":
            return source.get("data").text()
        if source_kind == "content":
            return _result(source.get("content"))
        raise source.get("type").fault(f"cannot read {source_kind[:64]!r}; only text")
    raise node.fault(f"has type {kind[:64]!r}; this model reads only text")
