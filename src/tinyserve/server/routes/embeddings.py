"""OpenAI's embeddings."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from tinyserve.server.answer import collect
from tinyserve.server.body import read_body
from tinyserve.server.dialects.openai.embeddings import (
    EmbeddingRequest,
    embedding_answer,
    embedding_requests,
)
from tinyserve.server.endpoints import Endpoints
from tinyserve.server.http import client_of
from tinyserve.server.state import ServerState


def add_routes(routes: Endpoints, state: ServerState) -> None:
    @routes.post("/v1/embeddings", body=EmbeddingRequest)
    async def embeddings(request: Request) -> Response:
        service, bridge = state.ready()
        body = await read_body(request, EmbeddingRequest)
        model = service.resolve_model(body.model)
        group = await embedding_requests(service, body, client_of(request, body.user))
        deltas = await collect(state, bridge, request, group)
        text = await embedding_answer(body, model, deltas, group.maker.usage)
        return Response(text, media_type="application/json")
