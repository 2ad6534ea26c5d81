"""The OpenAPI document: request bodies, which the routes read and check themselves, and keys."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}


def describe_keys(app: FastAPI, open_paths: AbstractSet[str]) -> None:
    """Let the document say that every path needs a key but `open_paths`."""
    make = app.openapi

    def document() -> dict[str, Any]:
        is_new = app.openapi_schema is None
        made = make()
        if is_new:
            made.setdefault("components", {})["securitySchemes"] = _SCHEMES
            made["security"] = [{name: []} for name in _SCHEMES]
            for path in open_paths & made["paths"].keys():
                for operation in made["paths"][path].values():
                    operation["security"] = []
        return made

    app.openapi = document  # type: ignore[method-assign]  # FastAPI's way to change it


def body_schema(kind: type[BaseModel]) -> dict[str, Any]:
    """What a route adds to its entry in the document."""
    schema = kind.model_json_schema(ref_template="#/components/schemas/{model}")
    definitions = schema.pop("$defs", {})
    for name, definition in definitions.items():
        _inline(schema, f"#/components/schemas/{name}", definition)
    content = {"application/json": {"schema": schema}}
    return {"requestBody": {"required": True, "content": content}}


def _inline(node: Any, reference: str, definition: Any) -> None:
    """Replace references by what they name, so that the schema stands alone."""
    children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    for child in list(children):
        _inline(child, reference, definition)
    if isinstance(node, dict) and node.get("$ref") == reference:
        del node["$ref"]
        node.update(definition)
