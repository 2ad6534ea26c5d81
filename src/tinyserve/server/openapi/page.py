"""The API reference as one static page, written from the OpenAPI document.

No script, and nothing from elsewhere: it is there on machines without a network, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from typing import Any

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
_STYLE = """
:root { color-scheme: light dark }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
details { border-top: 1px solid #8884; padding: .5rem 0 }
summary { cursor: pointer }
summary b { display: inline-block; width: 4rem }
code { font: 14px ui-monospace, monospace; overflow-wrap: anywhere }
table { border-collapse: collapse; margin: .5rem 0 1rem; width: 100% }
td { border-top: 1px solid #8882; padding: .2rem .5rem .2rem 0; vertical-align: top }
td:first-child { width: 18rem }
h2 { font-size: 1rem; margin: 1rem 0 0 }
"""


def reference_page(document: Mapping[str, Any], document_url: str) -> str:
    """HTML. `document_url` is where programs find `document`."""
    info = document["info"]
    operations = (
        _operation(method, path, operation)
        for path, item in document["paths"].items()
        for method, operation in item.items()
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(info['title'])}: the API</title><style>{_STYLE}</style></head><body>"
        f"<h1>{escape(info['title'])} {escape(info['version'])}</h1>"
        f'<p>The same for programs: <a href="{escape(document_url)}">openapi.json</a></p>'
        f"{''.join(operations)}</body></html>"
    )


def _operation(method: str, path: str, operation: Mapping[str, Any]) -> str:
    parts = [
        f"<details><summary><b>{method.upper()}</b><code>{escape(path)}</code></summary>",
        _paragraph(operation.get("description", "")),
    ]
    asked = ((p["name"], p["schema"], p.get("required")) for p in operation.get("parameters", ()))
    parts.append(_table("Parameters", (_field(*field) for field in asked)))
    if "requestBody" in operation:
        parts.append(_table("Body", _properties(operation["requestBody"])))
    responses = operation["responses"]
    parts.append(_table("Answer", _properties(responses["200"])))
    errors = ((status, told["description"]) for status, told in responses.items() if status > "3")
    return "".join([*parts, _table("Errors", errors), "</details>"])


def _properties(content: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    schema = content["content"].get("application/json", {}).get("schema", {})
    required = schema.get("required", ())
    for name, value in schema.get("properties", {}).items():
        yield _field(name, value, name in required)


def _field(name: str, schema: Mapping[str, Any], is_required: bool | None) -> tuple[str, str]:
    return name, _kind(schema) + ("" if is_required else ", optional")


def _table(title: str, rows: Iterable[tuple[str, str]]) -> str:
    lines = [
        f"<tr><td><code>{escape(name)}</code></td><td>{_text(told)}</td></tr>"
        for name, told in rows
    ]
    return f"<h2>{title}</h2><table>{''.join(lines)}</table>" if lines else ""


def _kind(schema: Mapping[str, Any]) -> str:
    """A schema in words, such as `integer, -1 to 5` or `string or list of string`."""
    if "anyOf" in schema:
        return " or ".join(_kind(s) for s in schema["anyOf"] if s.get("type") != "null")
    if "enum" in schema:
        return " | ".join(map(repr, schema["enum"]))
    kind = schema.get("type", "anything")
    if isinstance(kind, list):
        return " or ".join(kind)
    if kind == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    if kind == "object" and "properties" in schema:
        return f"object of {', '.join(schema['properties'])}"
    low, high = schema.get("minimum", schema.get("exclusiveMinimum")), schema.get("maximum")
    return f"{kind}, {low:.10g} to {high:.10g}" if None not in (low, high) else str(kind)


def _paragraph(text: str) -> str:
    return f"<p>{_text(text)}</p>" if text else ""


def _text(text: str) -> str:
    """HTML of `text`, with what stands between backticks as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))
