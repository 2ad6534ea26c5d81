"""OpenAI's completions and chat completions."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from tinyserve.server.answer import answer
from tinyserve.server.body import read_body
from tinyserve.server.dialects.openai.chat_writer import ChatWriter
from tinyserve.server.dialects.openai.completion_writer import completion_writer
from tinyserve.server.endpoints import Endpoints
from tinyserve.server.http import client_of
from tinyserve.server.protocol import ChatRequest, CompletionRequest
from tinyserve.server.state import ServerState


def add_routes(routes: Endpoints, state: ServerState) -> None:
    @routes.post("/v1/completions", body=CompletionRequest)
    async def completions(request: Request) -> Response:
        service, bridge = state.ready()
        body = await read_body(request, CompletionRequest)
        client = client_of(request, body.user)
        prepared = await service.completion(body, client, completion_writer)
        return await answer(state, bridge, request, prepared)

    @routes.post("/v1/chat/completions", body=ChatRequest)
    async def chat_completions(request: Request) -> Response:
        service, bridge = state.ready()
        body = await read_body(request, ChatRequest)
        prepared = await service.chat(body, client_of(request, body.user), ChatWriter)
        return await answer(state, bridge, request, prepared)
