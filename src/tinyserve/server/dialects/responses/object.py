"""The objects of the Responses API: the response itself and its output items.

Following the OpenAI API reference; the tests hold every object against the official client's types.
Members that the Open Responses specification requires are there even where they say nothing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tinyserve.engine.sampling import SamplingParams
from tinyserve.server.deltas import ScoredToken, Usage
from tinyserve.server.dialects.content_blocks import Block, Kind
from tinyserve.server.dialects.responses.body import ResponsesRequest, sealed
from tinyserve.server.dialects.responses.tools import ToolSet, custom_input
from tinyserve.server.writer import Identity
from tinyserve.text.tokenizer import Tokenizer

PREFIXES = {Kind.TEXT: "msg", Kind.REASONING: "rs", Kind.CALL: "fc"}  # how item ids begin


@dataclass(frozen=True)
class Item:
    """An output item: its block, and the ids that stay the same from its first event on."""

    block: Block
    item_id: str
    call_id: str = ""


@dataclass(frozen=True)
class ResponseObject:
    """What stays the same in every snapshot of one response."""

    identity: Identity
    body: ResponsesRequest
    tools: ToolSet
    params: SamplingParams
    num_dropped: int = 0  # messages that truncation has taken away

    def picture(
        self, status: str, output: Sequence[dict[str, Any]] = (), **changes: Any
    ) -> dict[str, Any]:
        """The response as it stands; `changes` are members that differ from an empty one's."""
        body = self.body
        reasoning = body.reasoning or {}
        form = (body.text or {}).get("format") or {"type": "text"}
        return {
            "id": self.identity.response_id,
            "object": "response",
            "created_at": self.identity.created,
            "status": status,
            "background": False,
            "completed_at": int(time.time()) if status == "completed" else None,
            "error": None,
            "frequency_penalty": self.params.frequency_penalty,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "max_tool_calls": body.max_tool_calls,
            "metadata": body.metadata or {},
            "model": self.identity.model,
            "output": list(output),
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "presence_penalty": self.params.presence_penalty,
            "previous_response_id": None,
            "prompt_cache_key": body.prompt_cache_key,
            "reasoning": {"effort": reasoning.get("effort"), "summary": None},
            "safety_identifier": body.safety_identifier,
            "service_tier": "default",
            "store": False,
            "temperature": self.params.temperature,
            "text": {**(body.text or {}), "format": form},
            "tool_choice": "auto" if body.tool_choice is None else body.tool_choice,
            "tools": self.tools.echoed,
            "top_logprobs": body.top_logprobs or 0,
            "top_p": self.params.top_p,
            "truncation": body.truncation or "disabled",
            "usage": None,
            "user": body.user,
            **changes,
        }

    def usage(self, usage: Usage, reasoning_tokens: int) -> dict[str, Any]:
        """Token counts. `truncated_messages` is there when the oldest messages have gone."""
        details: dict[str, Any] = {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0}
        if self.num_dropped:
            details["truncated_messages"] = self.num_dropped
        return {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": details,
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": reasoning_tokens},
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        }

    def item(
        self, item: Item, status: str, logprobs: list[dict[str, Any]] | None = None
    ) -> dict[str, Any]:
        """An output item; `in_progress` it is still empty."""
        block, is_open = item.block, status == "in_progress"
        if block.kind is Kind.CALL:
            return self._call(item, status)
        if block.kind is Kind.REASONING:
            content = [] if is_open else [reasoning_text(block.text)]
            common = {"id": item.item_id, "type": "reasoning", "summary": [], "status": status}
            if self.body.seals_reasoning and not is_open:
                common["encrypted_content"] = sealed(block.text)
            return {**common, "content": content}
        content = [] if is_open else [output_text(block.text, logprobs)]
        common = {"id": item.item_id, "type": "message", "role": "assistant", "status": status}
        return {**common, "content": content}

    def _call(self, item: Item, status: str) -> dict[str, Any]:
        origin = self.tools.origin(item.block.name or "")
        arguments = "" if status == "in_progress" else item.block.text
        call: dict[str, Any] = {"id": item.item_id, "call_id": item.call_id, "name": origin.name}
        if origin.namespace:
            call["namespace"] = origin.namespace
        if origin.is_custom:
            return {**call, "type": "custom_tool_call", "input": custom_input(arguments)}
        return {**call, "type": "function_call", "arguments": arguments, "status": status}


def output_text(text: str, logprobs: list[dict[str, Any]] | None) -> dict[str, Any]:
    """A content part of a message. `logprobs` only where they were asked for."""
    part: dict[str, Any] = {"type": "output_text", "text": text, "annotations": []}
    return part if logprobs is None else {**part, "logprobs": logprobs}


def reasoning_text(text: str) -> dict[str, Any]:
    return {"type": "reasoning_text", "text": text}


def logprob_entries(
    tokens: Sequence[ScoredToken], tokenizer: Tokenizer, *, with_bytes: bool = True
) -> list[dict[str, Any]]:
    """Each token with its logprob and the likeliest at its place; events leave the bytes out."""

    def entry(token_id: int, logprob: float | None, strip: int) -> dict[str, Any]:
        told: dict[str, Any] = {"token": tokenizer.token_label(token_id, strip), "logprob": logprob}
        if with_bytes:
            told["bytes"] = list(tokenizer.token_bytes(token_id, strip))
        return told

    return [
        {
            **entry(t.token_id, t.logprob, t.strip),
            "top_logprobs": [entry(i, p, t.strip) for i, p in t.top],
        }
        for t in tokens
    ]
