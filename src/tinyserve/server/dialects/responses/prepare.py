"""From a Responses request to a chat of the service, and to the writer of its answer."""

from __future__ import annotations

from typing import Any

from tinyserve.server.body import as_chat_request
from tinyserve.server.chat import ChatContext
from tinyserve.server.dialects.extra_fields import own_names, passed_on
from tinyserve.server.dialects.fitting import as_it_is, without_oldest
from tinyserve.server.dialects.json_node import Node
from tinyserve.server.dialects.responses.body import (
    NOT_PASSED_ON,
    ResponsesRequest,
    refuse_unserved,
    response_format,
)
from tinyserve.server.dialects.responses.input import read_input
from tinyserve.server.dialects.responses.object import ResponseObject
from tinyserve.server.dialects.responses.tools import ToolSet, read_choice, read_tools
from tinyserve.server.dialects.responses.writer import ResponseWriter
from tinyserve.server.errors import renamed
from tinyserve.server.protocol import ChatRequest
from tinyserve.server.service import Prepared, Service
from tinyserve.server.writer import Writer

# The chat request's fields by the names that this API's clients know.
_NAMES = {
    "messages": "input",
    "prompt": "input",
    "max_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
}


async def prepare(service: Service, body: ResponsesRequest, client: str) -> Prepared:
    """Raises RequestError naming the field."""
    refuse_unserved(body)
    with renamed(own_names(body, _NAMES)):
        return await _prepared(service, body, client)


async def num_prompt_tokens(service: Service, body: ResponsesRequest) -> int:
    """How long the prompt is. Raises RequestError naming the field."""
    refuse_unserved(body)
    with renamed(own_names(body, _NAMES)):
        chat = _chat_request(service, body, read_tools(body.tools))
        return len(await service.prompt_of(chat))


async def _prepared(service: Service, body: ResponsesRequest, client: str) -> Prepared:
    tools = read_tools(body.tools)
    chat = _chat_request(service, body, tools)
    fit = without_oldest if body.truncation == "auto" else as_it_is
    fitted = await fit(service, chat)
    if fitted.num_dropped:
        service.said_once.message(
            "truncation: auto has left out the oldest messages of a conversation"
        )

    def make_writer(context: ChatContext) -> Writer:
        response = ResponseObject(context.identity, body, tools, context.params, fitted.num_dropped)
        return ResponseWriter(response, context)

    return await service.chat(
        fitted.body,
        client,
        make_writer,
        id_prefix="resp_",
        prompt_ids=fitted.prompt_ids,
    )


def _chat_request(service: Service, body: ResponsesRequest, tools: ToolSet) -> ChatRequest:
    messages, left_out = read_input(body.input, body.instructions, tools)
    service.said_once.left_out("/v1/responses", left_out | tools.left_out)
    choice = read_choice(body.tool_choice, tools)
    extra = passed_on(body, service.said_once, NOT_PASSED_ON)
    fields: dict[str, Any] = {
        "messages": messages,
        "model": body.model,
        "stream": body.stream,
        "user": body.user,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "max_tokens": body.max_output_tokens,
        "logprobs": True if body.wants_logprobs else None,
        "top_logprobs": body.top_logprobs if body.wants_logprobs else None,
        "response_format": response_format(body),
        "reasoning_effort": Node(body.reasoning or {}, "reasoning").get("effort").text_or("")
        or None,
    }
    if tools.functions:
        fields["tools"], fields["tool_choice"] = tools.functions, choice
        fields["parallel_tool_calls"] = body.parallel_tool_calls
    given = {k: v for k, v in fields.items() if v is not None}
    return as_chat_request({**extra, **body.extensions(), **given})
