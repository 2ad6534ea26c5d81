"""What the server lets one see of its inside: metrics, the engine's state, a trace of its steps."""

from __future__ import annotations

from fastapi import FastAPI, Response

from tinyserve.server.answer import json_response
from tinyserve.server.state import ServerState


def add_routes(app: FastAPI, state: ServerState) -> None:
    @app.get("/engine/state")
    async def engine_state() -> Response:
        """Requests, blocks and counters at one moment between two steps."""
        return json_response(await state.observer.view())
