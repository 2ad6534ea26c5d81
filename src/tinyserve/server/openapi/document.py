"""The OpenAPI document, made by FastAPI for the first who asks, and the page that shows it.

What endpoints, which read and check bodies themselves, leave unsaid is added here: request bodies
(`body_schema`), answers, errors and keys (`complete_document`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel
from starlette.responses import HTMLResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

import tinyserve
from tinyserve.server.endpoints import Endpoint, Endpoints, NamedRoute
from tinyserve.server.errors import speaks_messages
from tinyserve.server.guards import DOC_PATHS
from tinyserve.server.openapi.page import HEADERS, reference_page
from tinyserve.server.openapi.schemas import (
    ANSWERS,
    BOUNDS,
    ERROR,
    MESSAGES_ERROR,
    PLAIN_TEXT,
    PROBES,
    STREAMING,
    Schema,
)

if TYPE_CHECKING:
    from fastapi import FastAPI

_KEYS = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}
_ERRORS = {
    "400": "The request is wrong; `param` names the field.",
    "401": "The API key is missing or wrong.",
    "403": "The Host header is not one of the names that are served.",
    "404": "The model, or what else was asked for, does not exist.",
    "408": "The request took too long.",
    "413": "The body is too large.",
    "415": "The content type or encoding is not plain JSON.",
    "429": "Too much is waiting; `Retry-After` says when to try again.",
    "500": "The server is at fault.",
    "503": "The server is loading, ending, or broken.",
}
_WITHOUT_BODY = ("400", "401", "403", "404", "500", "503")
_JSON = "application/json"
_MODELS = "#/components/schemas/"


class Reference:
    """`/docs` and `/openapi.json`, as an ASGI application.

    `open_paths`: those that need no key; None where the server asks for none.
    """

    def __init__(self, endpoints: Endpoints, open_paths: AbstractSet[str] | None) -> None:
        self._endpoints = endpoints
        self._open_paths = open_paths
        self._app: FastAPI | None = None

    def routes(self) -> list[Route]:
        return [NamedRoute(path, self, methods=["GET"]) for path in sorted(DOC_PATHS)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._app is None:
            for endpoint in self._endpoints.all:
                if endpoint.body is not None:  # validators are made on this thread alone
                    endpoint.body.model_rebuild()
                    await asyncio.sleep(0)
            # Takes half a second, mostly FastAPI's import.
            self._app = await asyncio.to_thread(self._make)
        if scope["route"].path == "/docs":
            url = scope.get("root_path", "") + "/openapi.json"
            page = await asyncio.to_thread(reference_page, self._app.openapi(), url)
            response = HTMLResponse(page, headers=HEADERS)
            await response(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _make(self) -> FastAPI:
        from fastapi import FastAPI

        app = FastAPI(
            title="tinyserve", version=tinyserve.__version__, docs_url=None, redoc_url=None
        )
        for endpoint in self._endpoints.all:
            if endpoint.in_document:
                app.add_api_route(
                    endpoint.path,
                    endpoint.handler,
                    methods=[endpoint.method],
                    openapi_extra=_told(endpoint),
                )
        complete_document(app.openapi(), self._open_paths)  # the app keeps it, and serves it
        return app


def _told(endpoint: Endpoint) -> dict[str, Any]:
    """What FastAPI cannot read off a handler."""
    told: dict[str, Any] = {}
    if endpoint.body is not None:
        told |= body_schema(endpoint.body)
    if endpoint.parameters:
        told["parameters"] = list(endpoint.parameters)
    return told


def complete_document(document: dict[str, Any], open_paths: AbstractSet[str] | None) -> None:
    """State answers and errors; and keys, on every path but `open_paths`.

    `open_paths` None: the server asks for no keys.
    """
    components = document.setdefault("components", {})
    components["schemas"] = {"Error": ERROR, "MessagesError": MESSAGES_ERROR}
    for path, item in document["paths"].items():
        for operation in item.values():
            _describe_answers(path, operation)
    if open_paths is not None:
        _describe_keys(document, open_paths)


def _describe_answers(path: str, operation: dict[str, Any]) -> None:
    answer = _content(ANSWERS.get(path, {"type": "object"}))
    if path in STREAMING:
        # No schema: before OpenAPI 3.2 it could mean the whole text or one event.
        answer["text/event-stream"] = {}
    if path in PLAIN_TEXT:
        answer = {"text/plain": {"schema": {"type": "string"}}}
    responses = {"200": {"description": "Successful", "content": answer}}
    statuses = _ERRORS if "requestBody" in operation else _WITHOUT_BODY
    kind = "MessagesError" if speaks_messages(path) else "Error"
    for status in statuses:
        content = _content({"$ref": _MODELS + kind})
        if path in PROBES and status == "503":
            content = answer
        responses[status] = {"description": _ERRORS[status], "content": content}
    if "429" in responses:
        seconds = {"schema": {"type": "integer"}, "description": "seconds"}
        responses["429"]["headers"] = {"Retry-After": seconds}
    operation["responses"] = responses


def _content(schema: Schema) -> dict[str, Any]:
    return {_JSON: {"schema": schema}}


def _describe_keys(document: dict[str, Any], open_paths: AbstractSet[str]) -> None:
    document["components"]["securitySchemes"] = _KEYS
    document["security"] = [{name: []} for name in _KEYS]
    for path in open_paths & document["paths"].keys():
        for operation in document["paths"][path].values():
            operation["security"] = []


def body_schema(kind: type[BaseModel]) -> dict[str, Any]:
    """The part of an endpoint's entry that says what its body is."""
    schema = kind.model_json_schema(ref_template=_MODELS + "{model}")
    definitions = schema.pop("$defs", {})
    for name, definition in definitions.items():
        _inline(schema, _MODELS + name, definition)
    for name in BOUNDS.keys() & schema["properties"].keys():
        _bound(schema["properties"][name], *BOUNDS[name])
    return {"requestBody": {"required": True, "content": _content(schema)}}


def _bound(node: dict[str, Any], low: float, high: float) -> None:
    """State the range of a number, or of the numbers among several types, that has none yet."""
    for kind in node.get("anyOf", [node]):
        if kind.get("type") in ("integer", "number") and "maximum" not in kind:
            kind.update(minimum=low, maximum=high)


def _inline(node: Any, reference: str, definition: Any) -> None:
    """Replace references by what they name, so that the schema stands alone."""
    children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    for child in list(children):
        _inline(child, reference, definition)
    if isinstance(node, dict) and node.get("$ref") == reference:
        del node["$ref"]
        node.update(definition)
