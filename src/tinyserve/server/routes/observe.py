"""What the server lets one see of its inside: metrics, the engine's state, a trace of its steps."""

from __future__ import annotations

from fastapi import FastAPI, Response

from tinyserve.server.answer import json_response
from tinyserve.server.state import ServerState

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def add_routes(app: FastAPI, state: ServerState) -> None:
    @app.get("/metrics/", include_in_schema=False)
    @app.get("/metrics")
    async def metrics() -> Response:
        """Prometheus text: vLLM's metric names, and tinyserve's own."""
        return Response(await state.observer.exposition(), headers={"content-type": CONTENT_TYPE})

    @app.get("/engine/state")
    async def engine_state() -> Response:
        """Requests, blocks and counters at one moment between two steps."""
        return json_response(await state.observer.view())
