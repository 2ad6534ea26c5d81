"""Anthropic's Messages API, and its count of tokens."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tinyserve.errors import ContextLengthError
from tinyserve.server.answer import answer, json_response
from tinyserve.server.chat import ChatContext
from tinyserve.server.dialects.messages import body as messages_body
from tinyserve.server.dialects.messages.body import CountRequest, MessagesRequest
from tinyserve.server.dialects.messages.input import read_conversation
from tinyserve.server.dialects.messages.writer import MessageWriter
from tinyserve.server.endpoints import Endpoints
from tinyserve.server.errors import renamed
from tinyserve.server.fitting import with_lower_max_tokens
from tinyserve.server.http import client_of, read_body
from tinyserve.server.protocol import as_chat_request, read_model
from tinyserve.server.service import Prepared, Service
from tinyserve.server.state import ServerState
from tinyserve.server.writer import Writer

# The chat request's fields by the names that this API's clients know.
_NAMES = {"stop": "stop_sequences", "response_format": "output_config.format"}


def _names(body: MessagesRequest) -> dict[str, str]:
    """Without those that the client itself has used."""
    return {name: own for name, own in _NAMES.items() if getattr(body, name) is None}


def add_routes(routes: Endpoints, state: ServerState) -> None:
    @routes.post("/v1/messages", body=MessagesRequest)
    async def messages(request: Request) -> Response:
        service, bridge = state.ready()
        body = read_model(MessagesRequest, await read_body(request, state.config.max_body_size))
        service.resolve_model(body.model)
        messages_body.check(body)
        with renamed(_names(body)):
            prepared = await _prepared(service, body, client_of(request, body.user_id))
        return await answer(state, bridge, request, prepared)

    @routes.post("/v1/messages/count_tokens", body=CountRequest)
    async def count_tokens(request: Request) -> Response:
        service, _ = state.ready()
        body = read_model(CountRequest, await read_body(request, state.config.max_body_size))
        service.resolve_model(body.model)
        with renamed(_NAMES):
            chat = as_chat_request(_fields(service, body))
            ids = await service.encode_chat(chat)
        return json_response({"input_tokens": len(ids)})


async def _prepared(service: Service, body: MessagesRequest, client: str) -> Prepared:
    extra = service.passed_on(body, messages_body.NOT_PASSED_ON, messages_body.HARMLESS)
    fields = {
        **_fields(service, body),
        "stream": body.stream,
        "max_tokens": body.max_tokens,
        "stop": body.stop_sequences,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "response_format": messages_body.response_format(body),
    }
    given = {k: v for k, v in fields.items() if v is not None}
    chat = as_chat_request({**extra, **body.extensions(), **given})
    fitted = await with_lower_max_tokens(service, chat, _too_long)
    is_clamped = fitted.body.max_tokens != body.max_tokens

    def make_writer(context: ChatContext) -> Writer:
        return MessageWriter(context, is_clamped=is_clamped)

    return await service.chat(
        fitted.body,
        client,
        make_writer=make_writer,
        id_prefix="msg_",
        prompt_ids=fitted.prompt_ids,
    )


def _too_long(num_tokens: int, limit: int) -> ContextLengthError:
    """In the words that make Claude Code shorten its conversation."""
    return ContextLengthError(f"prompt is too long: {num_tokens} tokens > {limit - 1} maximum")


def _fields(service: Service, body: CountRequest) -> dict[str, Any]:
    """The fields of the chat request that decide the prompt."""
    messages_body.refuse_threads(body)
    conversation, is_open = read_conversation(body.system, body.messages)
    fields: dict[str, Any] = {"messages": conversation}
    if body.model is not None:
        fields["model"] = body.model
    if is_open:
        fields["continue_final_message"] = True
    functions, left_out = messages_body.read_tools(body.tools)
    for kind in sorted(left_out):
        service.said_once.message(
            f"/v1/messages: leaving out {kind[:64]!r}, which this server cannot offer"
        )
    names = [f["function"]["name"] for f in functions]
    choice, is_parallel = messages_body.read_choice(body.tool_choice, names)
    if functions:
        fields["tools"] = functions
        if choice is not None:
            fields["tool_choice"] = choice
        if is_parallel is not None:
            fields["parallel_tool_calls"] = is_parallel
    kwargs = (body.model_extra or {}).get("chat_template_kwargs")
    thinks = messages_body.thinks(body.thinking)
    if thinks is not None and isinstance(kwargs, dict | None):
        kwargs = {"enable_thinking": thinks, **(kwargs or {})}
    if kwargs is not None:
        fields["chat_template_kwargs"] = kwargs
    return fields
