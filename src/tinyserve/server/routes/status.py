"""What the server says of itself: health, load, version and models."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

import tinyserve
from tinyserve.errors import UnknownModelError
from tinyserve.server.answer import json_response
from tinyserve.server.endpoints import Endpoints
from tinyserve.server.service import ALIAS
from tinyserve.server.state import ServerState

NAME = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}


def add_routes(routes: Endpoints, state: ServerState) -> None:
    @routes.post("/ping", in_document=False)
    @routes.get("/ping")
    @routes.get("/health")
    async def health(request: Request) -> Response:
        status, body = state.health()
        return json_response(body, status)

    @routes.get("/version")
    async def version(request: Request) -> Response:
        return json_response({"version": tinyserve.__version__})

    @routes.get("/load")
    async def load(request: Request) -> Response:
        """How many requests are under way, those that wait included."""
        _, bridge = state.ready()
        return json_response({"server_load": bridge.num_open})

    @routes.get("/v1/models")
    async def models(request: Request) -> Response:
        service, _ = state.ready()
        data = [service.model_object(name) for name in service.names]
        ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"], "has_more": False}
        return json_response({"object": "list", "data": data, **ends})

    @routes.get("/v1/models/{name:path}", parameters=[NAME])
    async def model(request: Request) -> Response:
        name = request.path_params["name"]
        service, _ = state.ready()
        names = (*service.names, ALIAS)
        if name not in names:
            name = name.rstrip("/")  # a slash at the end is ignored on other paths, too
        if name not in names:
            raise UnknownModelError(name)
        return json_response(service.model_object(name))
