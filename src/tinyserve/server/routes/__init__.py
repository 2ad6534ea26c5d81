"""The routes, one file per area; each adds its own endpoints."""

from __future__ import annotations

from collections.abc import Callable

from tinyserve.server.endpoints import Endpoints
from tinyserve.server.routes import (
    embeddings,
    messages,
    observe,
    openai,
    responses,
    status,
    tokenize,
    web,
)
from tinyserve.server.state import ServerState

ROUTES: tuple[Callable[[Endpoints, ServerState], None], ...] = (
    status.add_routes,
    observe.add_routes,
    openai.add_routes,
    embeddings.add_routes,
    responses.add_routes,
    messages.add_routes,
    tokenize.add_routes,
    web.add_routes,
)
