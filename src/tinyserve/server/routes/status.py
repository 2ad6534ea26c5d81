"""What the server says of itself: health and models."""

from __future__ import annotations

from fastapi import FastAPI, Response

from tinyserve.errors import UnknownModelError
from tinyserve.server.answer import json_response
from tinyserve.server.service import ALIAS
from tinyserve.server.state import ServerState


def add_routes(app: FastAPI, state: ServerState) -> None:
    @app.head("/health", include_in_schema=False)
    @app.get("/health")
    async def health() -> Response:
        status, body = state.health()
        return json_response(body, status)

    @app.get("/v1/models")
    async def models() -> Response:
        service, _ = state.ready()
        data = [service.model_object(name) for name in service.names]
        return json_response({"object": "list", "data": data})

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> Response:
        service, _ = state.ready()
        if name not in (*service.names, ALIAS):
            raise UnknownModelError(name)
        return json_response(service.model_object(name))
