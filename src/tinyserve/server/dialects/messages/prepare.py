"""From a Messages request to a chat of the service, and to the writer of its answer."""

from __future__ import annotations

from typing import Any

from tinyserve.errors import ContextLengthError
from tinyserve.server.body import as_chat_request
from tinyserve.server.chat import ChatContext
from tinyserve.server.dialects.extra_fields import own_names, passed_on
from tinyserve.server.dialects.fitting import with_lower_max_tokens
from tinyserve.server.dialects.messages.body import (
    HARMLESS,
    NOT_PASSED_ON,
    CountRequest,
    MessagesRequest,
    check,
    read_choice,
    read_tools,
    refuse_threads,
    response_format,
    thinks,
)
from tinyserve.server.dialects.messages.input import read_conversation
from tinyserve.server.dialects.messages.writer import MessageWriter
from tinyserve.server.errors import renamed
from tinyserve.server.service import Prepared, Service
from tinyserve.server.writer import Writer

# The chat request's fields by the names that this API's clients know.
_NAMES = {"stop": "stop_sequences", "response_format": "output_config.format"}


async def prepare(service: Service, body: MessagesRequest, client: str) -> Prepared:
    """Raises RequestError naming the field."""
    check(body)
    with renamed(own_names(body, _NAMES)):
        return await _prepared(service, body, client)


async def num_prompt_tokens(service: Service, body: CountRequest) -> int:
    """How long the prompt is. Raises RequestError naming the field."""
    with renamed(_NAMES):
        return len(await service.prompt_of(as_chat_request(_fields(service, body))))


async def _prepared(service: Service, body: MessagesRequest, client: str) -> Prepared:
    extra = passed_on(body, service.said_once, NOT_PASSED_ON, HARMLESS)
    fields = {
        **_fields(service, body),
        "stream": body.stream,
        "max_tokens": body.max_tokens or 1,  # a prompt is computed for a token's sake
        "stop": body.stop_sequences,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "response_format": response_format(body),
    }
    given = {k: v for k, v in fields.items() if v is not None}
    chat = as_chat_request({**extra, **body.extensions(), **given})
    fitted = await with_lower_max_tokens(service, chat, _too_long)
    is_warming = body.max_tokens == 0
    is_clamped = fitted.body.max_tokens != body.max_tokens and not is_warming

    def make_writer(context: ChatContext) -> Writer:
        return MessageWriter(context, is_clamped=is_clamped, is_warming=is_warming)

    return await service.chat(
        fitted.body,
        client,
        make_writer,
        id_prefix="msg_",
        prompt_ids=fitted.prompt_ids,
    )


def _too_long(num_tokens: int, limit: int) -> ContextLengthError:
    """The error in the words that make Claude Code shorten its conversation."""
    return ContextLengthError(f"prompt is too long: {num_tokens} tokens > {limit - 1} maximum")


def _fields(service: Service, body: CountRequest) -> dict[str, Any]:
    """The fields of the chat request that decide the prompt."""
    refuse_threads(body)
    conversation, is_open = read_conversation(body.system, body.messages)
    fields: dict[str, Any] = {"messages": conversation}
    if body.model is not None:
        fields["model"] = body.model
    if is_open:
        fields["continue_final_message"] = True
    functions, left_out = read_tools(body.tools)
    service.said_once.left_out("/v1/messages", left_out)
    names = [f["function"]["name"] for f in functions]
    choice, is_parallel = read_choice(body.tool_choice, names)
    if functions:
        fields["tools"] = functions
        if choice is not None:
            fields["tool_choice"] = choice
        if is_parallel is not None:
            fields["parallel_tool_calls"] = is_parallel
    kwargs = (body.model_extra or {}).get("chat_template_kwargs")
    is_thinking = thinks(body.thinking)
    if is_thinking is not None and isinstance(kwargs, dict | None):
        kwargs = {"enable_thinking": is_thinking, **(kwargs or {})}
    if kwargs is not None:
        fields["chat_template_kwargs"] = kwargs
    return fields
