"""The request bodies for the OpenAPI document. The routes read and check bodies themselves."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel


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
