"""`POST /v1/responses`: OpenAI's Responses API, without its memory."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from tinyserve.server.answer import answer, json_response
from tinyserve.server.body import read_body
from tinyserve.server.dialects.responses.body import ResponsesRequest
from tinyserve.server.dialects.responses.prepare import num_prompt_tokens, prepare
from tinyserve.server.endpoints import Endpoints
from tinyserve.server.http import client_of
from tinyserve.server.state import ServerState


def add_routes(routes: Endpoints, state: ServerState) -> None:
    @routes.post("/v1/responses", body=ResponsesRequest)
    async def responses(request: Request) -> Response:
        service, bridge = state.ready()
        body = await read_body(request, ResponsesRequest)
        service.resolve_model(body.model)
        client = client_of(request, body.user or body.safety_identifier)
        prepared = await prepare(service, body, client)
        return await answer(state, bridge, request, prepared)

    @routes.post("/v1/responses/input_tokens", body=ResponsesRequest)
    async def input_tokens(request: Request) -> Response:
        """How many tokens the prompt of such a request has."""
        service, _ = state.ready()
        body = await read_body(request, ResponsesRequest)
        service.resolve_model(body.model)
        num_tokens = await num_prompt_tokens(service, body)
        return json_response({"object": "response.input_tokens", "input_tokens": num_tokens})
