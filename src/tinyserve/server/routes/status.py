"""What the server says of itself: health, load, version and models."""

from __future__ import annotations

from fastapi import FastAPI, Response

import tinyserve
from tinyserve.errors import UnknownModelError
from tinyserve.server.answer import json_response
from tinyserve.server.service import ALIAS
from tinyserve.server.state import ServerState


def add_routes(app: FastAPI, state: ServerState) -> None:
    @app.post("/ping", include_in_schema=False)
    @app.get("/ping")
    @app.head("/health", include_in_schema=False)
    @app.get("/health")
    async def health() -> Response:
        status, body = state.health()
        return json_response(body, status)

    @app.get("/version")
    async def version() -> Response:
        return json_response({"version": tinyserve.__version__})

    @app.get("/load")
    async def load() -> Response:
        """How many requests are under way, those that wait included."""
        _, bridge = state.ready()
        return json_response({"server_load": bridge.num_open})

    @app.get("/v1/models")
    async def models() -> Response:
        service, _ = state.ready()
        data = [service.model_object(name) for name in service.names]
        return json_response({"object": "list", "data": data})

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> Response:
        if not name:  # /v1/models/
            return await models()
        service, _ = state.ready()
        if name not in (*service.names, ALIAS):
            raise UnknownModelError(name)
        return json_response(service.model_object(name))
