"""`ResponseWriter`: one answer of `/v1/responses`, whole or as its stream of typed events.

Every event has a number, one more than the last. An item's events are: added, (content part added,)
pieces, done, (content part done,) item done. A piece of text costs one formatted string: what is
the same in all pieces of a block is put together once.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from json.encoder import encode_basestring as quote
from typing import Any

from tinyserve.server.chat import ChatContext
from tinyserve.server.choice_reader import ChoiceReader
from tinyserve.server.deltas import Delta, DeltaMaker, ScoredToken, Usage
from tinyserve.server.dialects.content_blocks import Block, BlockEvent, BlockReader, Change, Kind
from tinyserve.server.dialects.responses.object import (
    PREFIXES,
    Item,
    ResponseObject,
    logprob_entries,
    output_text,
    reasoning_text,
)
from tinyserve.server.dialects.responses.tools import custom_input
from tinyserve.server.errors import HTTPFailure
from tinyserve.server.json_text import to_json

_PIECE = {
    Kind.TEXT: "response.output_text.delta",
    Kind.REASONING: "response.reasoning_text.delta",
    Kind.CALL: "response.function_call_arguments.delta",
}


class ResponseWriter:
    """Writes the single choice of a chat. `response` is what stays the same of it."""

    def __init__(self, response: ResponseObject, context: ChatContext) -> None:
        self._response = response
        self._reader = BlockReader(ChoiceReader(context))
        self._tokenizer = context.tokenizer
        self._items: list[Item] = []
        self._number = 0
        self._piece_head = ""

    def opening(self, maker: DeltaMaker) -> bytes:
        picture = self._response.picture("in_progress")
        return (
            self._event("response.created", response=picture)
            + self._event("response.in_progress", response=picture)
        ).encode()

    def frames(self, deltas: Sequence[Delta], usage: Usage) -> bytes:
        events = self._reader.feed(deltas)
        return "".join([self._change(event) for event in events]).encode()

    def closing(self, usage: Usage) -> bytes:
        begun = len(self._items)
        final = self._final(usage)
        tail = "".join(self._unseen(item) for item in self._items[begun:])
        return (tail + self._event(f"response.{final['status']}", response=final)).encode()

    def error(self, told: HTTPFailure) -> bytes:
        """The failed response, then the error as clients raise it: never a silent end."""
        error = told.body["error"]
        code = "rate_limit_exceeded" if told.status == 429 else "server_error"
        picture = self._response.picture(
            "failed", self._output(), error={"code": code, "message": error["message"]}
        )
        fields = {"code": error["code"], "message": error["message"], "param": error["param"]}
        return (
            self._event("response.failed", response=picture)
            + self._event("error", **fields, error=error)
        ).encode()

    def whole(self, deltas: Sequence[Delta], maker: DeltaMaker) -> dict[str, Any]:
        for event in self._reader.feed(deltas):
            if event.change is Change.BEGINS:
                self._begin(event.block)
        return self._final(maker.usage)

    def _final(self, usage: Usage) -> dict[str, Any]:
        """The final snapshot. An answer of no items becomes one empty message."""
        is_cut = self._reader.ending.finish_reason == "length"
        if not self._reader.blocks:
            self._begin(Block(0, Kind.TEXT, is_open=False, is_cut=is_cut))
        return self._response.picture(
            "incomplete" if is_cut else "completed",
            self._output(),
            incomplete_details={"reason": "max_output_tokens"} if is_cut else None,
            usage=self._response.usage(usage, self._reader.reasoning_tokens),
        )

    def _output(self) -> list[dict[str, Any]]:
        return [self._done(item) for item in self._items]

    def _done(self, item: Item) -> dict[str, Any]:
        status = "incomplete" if item.block.is_open or item.block.is_cut else "completed"
        return self._response.item(item, status, self._logprobs(item.block))

    def _logprobs(self, block: Block) -> list[dict[str, Any]] | None:
        if not self._response.body.wants_logprobs:
            return None
        return logprob_entries(block.logprobs, self._tokenizer)

    def _begin(self, block: Block) -> Item:
        call_id = block.call_id or f"call_{secrets.token_hex(12)}"
        prefix = "ctc" if self._is_custom(block) else PREFIXES[block.kind]
        item_id = f"{prefix}_{secrets.token_hex(16)}"
        item = Item(block, item_id, call_id if block.kind is Kind.CALL else "")
        self._items.append(item)
        return item

    # Events

    def _change(self, event: BlockEvent) -> str:
        if event.change is Change.GROWS:
            return self._grow(event)
        if event.change is Change.BEGINS:
            return self._added(self._begin(event.block))
        return self._ended(self._items[event.block.index])

    def _grow(self, event: BlockEvent) -> str:
        block = event.block
        if self._is_custom(block):
            return ""  # its free text is known when the arguments are whole
        tail = ""
        if block.kind is Kind.TEXT:
            scored = self._event_logprobs(event.logprobs)
            tail = f',"logprobs":{to_json(scored) if scored else "[]"}'
        number, self._number = self._number, self._number + 1
        return (
            f'{self._piece_head},"delta":{quote(event.text)}{tail},"sequence_number":{number}}}\n\n'
        )

    def _added(self, item: Item) -> str:
        index, kind = item.block.index, item.block.kind
        name = _PIECE[kind]
        place: dict[str, Any] = {"item_id": item.item_id, "output_index": index}
        if kind is not Kind.CALL:
            place["content_index"] = 0
        self._piece_head = f"event: {name}\ndata: {to_json({'type': name, **place})[:-1]}"
        shown = self._response.item(item, "in_progress")
        text = self._event("response.output_item.added", output_index=index, item=shown)
        if kind is not Kind.CALL:
            text += self._event("response.content_part.added", **place, part=self._part(item, True))
        return text

    def _ended(self, item: Item) -> str:
        block = item.block
        place: dict[str, Any] = {"item_id": item.item_id, "output_index": block.index}
        if self._is_custom(block):
            value = custom_input(block.text)
            text = self._event("response.custom_tool_call_input.delta", **place, delta=value)
            text += self._event("response.custom_tool_call_input.done", **place, input=value)
        elif block.kind is Kind.CALL:
            name = "response.function_call_arguments.done"
            text = self._event(name, **place, arguments=block.text)
        else:
            place["content_index"] = 0
            part = self._part(item, False)
            name = "response.reasoning_text.done"
            fields: dict[str, Any] = {"text": block.text}
            if block.kind is Kind.TEXT:
                name = "response.output_text.done"
                fields["logprobs"] = self._event_logprobs(block.logprobs)
            text = self._event(name, **place, **fields)
            text += self._event("response.content_part.done", **place, part=part)
        done = self._done(item)
        return text + self._event("response.output_item.done", output_index=block.index, item=done)

    def _unseen(self, item: Item) -> str:
        """All events of an item that had none."""
        return self._added(item) + self._ended(item)

    def _part(self, item: Item, is_new: bool) -> dict[str, Any]:
        text = "" if is_new else item.block.text
        if item.block.kind is Kind.REASONING:
            return reasoning_text(text)
        logprobs = self._logprobs(item.block)
        return output_text(text, [] if is_new and logprobs is not None else logprobs)

    def _event_logprobs(self, tokens: Sequence[ScoredToken]) -> list[dict[str, Any]]:
        return logprob_entries(tokens, self._tokenizer, with_bytes=False) if tokens else []

    def _is_custom(self, block: Block) -> bool:
        return block.kind is Kind.CALL and self._response.tools.origin(block.name or "").is_custom

    def _event(self, kind: str, **fields: Any) -> str:
        number, self._number = self._number, self._number + 1
        data = {"type": kind, "sequence_number": number, **fields}
        return f"event: {kind}\ndata: {to_json(data)}\n\n"
