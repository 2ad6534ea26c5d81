"""`MessageWriter`: one answer of `/v1/messages`, whole or as its stream of named events.

A stream is message_start, then start, deltas and stop of each block, then message_delta with
the reason of the end, and message_stop. message_start waits for the first deltas, since it tells
how much of the prompt was cached.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Sequence
from json.encoder import encode_basestring as quote
from typing import Any

import pydantic_core

from tinyserve.server.chat import ChatContext
from tinyserve.server.choice_reader import ChoiceReader
from tinyserve.server.deltas import Delta, DeltaMaker, Usage
from tinyserve.server.dialects.content_blocks import Block, BlockEvent, BlockReader, Change, Kind
from tinyserve.server.errors import HTTPFailure
from tinyserve.server.json_text import to_json
from tinyserve.text.tool_json import whole_characters

_PIECE = {
    Kind.TEXT: ("text_delta", "text"),
    Kind.REASONING: ("thinking_delta", "thinking"),
    Kind.CALL: ("input_json_delta", "partial_json"),
}


class MessageWriter:
    """Writes the single choice of a chat.

    `is_clamped`: the client's max_tokens was beyond the room, so that an end at the limit is the
    end of the context. `is_warming`: the client wants the prompt in the prefix cache and no answer
    (`max_tokens` 0); nothing is shown of the token that was drawn.
    """

    def __init__(
        self, context: ChatContext, *, is_clamped: bool = False, is_warming: bool = False
    ) -> None:
        self._identity = context.identity
        self._reader = BlockReader(ChoiceReader(context))
        self._is_clamped = is_clamped
        self._is_warming = is_warming
        self._has_begun = False
        self._piece_head = ""

    def opening(self, maker: DeltaMaker) -> bytes:
        return b""

    def frames(self, deltas: Sequence[Delta], usage: Usage) -> bytes:
        head = self._begin(usage)
        events = [] if self._is_warming else self._reader.feed(deltas)
        return (head + "".join([self._change(event) for event in events])).encode()

    def closing(self, usage: Usage) -> bytes:
        changes = {"delta": self._ending(), "usage": self._usage(usage)}
        tail = _event("message_delta", **changes) + _event("message_stop")
        return (self._begin(usage) + tail).encode()

    def error(self, told: HTTPFailure) -> bytes:
        return f"event: error\ndata: {to_json(told.body)}\n\n".encode()

    def whole(self, deltas: Sequence[Delta], maker: DeltaMaker) -> dict[str, Any]:
        if not self._is_warming:
            self._reader.feed(deltas)
        content = [_whole_block(block) for block in self._reader.blocks]
        return self._message(content, self._ending(), self._usage(maker.usage))

    def _begin(self, usage: Usage) -> str:
        if self._has_begun:
            return ""
        self._has_begun = True
        nothing = {"stop_reason": None, "stop_sequence": None}
        counts = {**self._usage(usage), "output_tokens": 0}
        message = self._message([], nothing, counts)
        return _event("message_start", message=message) + _event("ping")

    def _message(
        self, content: list[dict[str, Any]], ending: dict[str, Any], usage: dict[str, Any]
    ) -> dict[str, Any]:
        return {
            "id": self._identity.response_id,
            "type": "message",
            "role": "assistant",
            "model": self._identity.model,
            "content": content,
            **ending,
            "usage": usage,
        }

    def _ending(self) -> dict[str, Any]:
        ending = self._reader.ending
        reason, sequence = "end_turn", None
        if ending.finish_reason == "length" or self._is_warming:
            reason = "model_context_window_exceeded" if self._is_clamped else "max_tokens"
        elif ending.has_calls:
            reason = "tool_use"
        elif isinstance(ending.stop_reason, str):
            reason, sequence = "stop_sequence", ending.stop_reason
        return {"stop_reason": reason, "stop_sequence": sequence}

    def _usage(self, usage: Usage) -> dict[str, Any]:
        """Token counts; what was read from the cache counts apart from the rest of the input."""
        return {
            "input_tokens": usage.prompt_tokens - usage.cached_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": usage.cached_tokens,
            "output_tokens": 0 if self._is_warming else usage.completion_tokens,
            "output_tokens_details": {"thinking_tokens": self._reader.reasoning_tokens},
        }

    def _change(self, event: BlockEvent) -> str:
        block = event.block
        if event.change is Change.GROWS:
            return f"{self._piece_head}{quote(event.text)}}}}}\n\n"
        if event.change is Change.BEGINS:
            if block.kind is Kind.CALL and block.call_id is None:
                block.call_id = _new_call_id()
            kind, member = _PIECE[block.kind]
            self._piece_head = (
                f'event: content_block_delta\ndata: {{"type":"content_block_delta",'
                f'"index":{block.index},"delta":{{"type":"{kind}","{member}":'
            )
            return _event("content_block_start", index=block.index, content_block=_empty(block))
        stop = _event("content_block_stop", index=block.index)
        if block.kind is not Kind.REASONING:
            return stop
        delta = {"type": "signature_delta", "signature": _signature(block)}
        return _event("content_block_delta", index=block.index, delta=delta) + stop


def _event(kind: str, **fields: Any) -> str:
    return f"event: {kind}\ndata: {to_json({'type': kind, **fields})}\n\n"


def _new_call_id() -> str:
    return f"toolu_{secrets.token_hex(12)}"


def _signature(block: Block) -> str:
    """Clients send thinking back as thinking only where it is signed; else some make it text. Here
    it says nothing and is not checked.
    """
    return hashlib.sha256(block.text.encode()).hexdigest()


def _empty(block: Block) -> dict[str, Any]:
    if block.kind is Kind.TEXT:
        return {"type": "text", "text": ""}
    if block.kind is Kind.REASONING:
        return {"type": "thinking", "thinking": "", "signature": ""}
    return {"type": "tool_use", "id": block.call_id, "name": block.name or "", "input": {}}


def _whole_block(block: Block) -> dict[str, Any]:
    if block.kind is Kind.TEXT:
        return {"type": "text", "text": block.text}
    if block.kind is Kind.REASONING:
        return {"type": "thinking", "thinking": block.text, "signature": _signature(block)}
    call_id = block.call_id or _new_call_id()
    arguments = _arguments(block.text)
    return {"type": "tool_use", "id": call_id, "name": block.name or "", "input": arguments}


def _arguments(text: str) -> dict[str, Any]:
    """The arguments as an object: of JSON that was cut off, what is there; else nothing."""
    try:
        value = pydantic_core.from_json(text, allow_partial=True)
    except ValueError:
        value = _with_whole_characters(text)
    return value if isinstance(value, dict) else {}


def _with_whole_characters(text: str) -> Any:
    """The value of JSON whose escapes spell half a character; None of what is no JSON at all."""
    try:
        spelled = json.dumps(json.loads(text), ensure_ascii=False)
        return pydantic_core.from_json(whole_characters(spelled))
    except (ValueError, RecursionError):
        return None
