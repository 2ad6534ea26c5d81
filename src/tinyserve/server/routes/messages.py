"""Anthropic's Messages API, and its count of tokens."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from tinyserve.server.answer import answer, json_response
from tinyserve.server.body import read_body
from tinyserve.server.dialects.messages.body import CountRequest, MessagesRequest
from tinyserve.server.dialects.messages.prepare import num_prompt_tokens, prepare
from tinyserve.server.endpoints import Endpoints
from tinyserve.server.http import client_of
from tinyserve.server.state import ServerState


def add_routes(routes: Endpoints, state: ServerState) -> None:
    @routes.post("/v1/messages", body=MessagesRequest)
    async def messages(request: Request) -> Response:
        service, bridge = state.ready()
        body = await read_body(request, MessagesRequest)
        service.resolve_model(body.model)
        prepared = await prepare(service, body, client_of(request, body.user_id))
        return await answer(state, bridge, request, prepared)

    @routes.post("/v1/messages/count_tokens", body=CountRequest)
    async def count_tokens(request: Request) -> Response:
        service, _ = state.ready()
        body = await read_body(request, CountRequest)
        service.resolve_model(body.model)
        return json_response({"input_tokens": await num_prompt_tokens(service, body)})
