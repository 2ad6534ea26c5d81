"""The routes, one file per area; each adds its own to an application."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import FastAPI

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

ROUTES: tuple[Callable[[FastAPI, ServerState], None], ...] = (
    status.add_routes,
    observe.add_routes,
    openai.add_routes,
    embeddings.add_routes,
    responses.add_routes,
    messages.add_routes,
    tokenize.add_routes,
    web.add_routes,
)
