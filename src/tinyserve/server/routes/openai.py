"""OpenAI's completions and chat completions."""

from __future__ import annotations

from fastapi import FastAPI, Request, Response

from tinyserve.server.answer import answer
from tinyserve.server.http import client_of, read_json
from tinyserve.server.openapi import body_schema
from tinyserve.server.protocol import ChatRequest, CompletionRequest, parse_body
from tinyserve.server.state import ServerState


def add_routes(app: FastAPI, state: ServerState) -> None:
    @app.post("/v1/completions", openapi_extra=body_schema(CompletionRequest))
    async def completions(request: Request) -> Response:
        service, bridge = state.ready()
        body = parse_body(CompletionRequest, await read_json(request, state.config.max_body_size))
        prepared = await service.completion(body, client_of(request, body.user))
        return await answer(state, bridge, request, prepared)

    @app.post("/v1/chat/completions", openapi_extra=body_schema(ChatRequest))
    async def chat_completions(request: Request) -> Response:
        service, bridge = state.ready()
        body = parse_body(ChatRequest, await read_json(request, state.config.max_body_size))
        prepared = await service.chat(body, client_of(request, body.user))
        return await answer(state, bridge, request, prepared)
