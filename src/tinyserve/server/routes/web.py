"""The web page at `/`: static bytes with strict headers. They need no key; the data they ask for
does.

Nothing from elsewhere is loaded and no inline script runs: the policy says so, and forbids turning
strings into markup as well (trusted types), so that text of a model cannot become code.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from tinyserve.server.endpoints import Endpoints
from tinyserve.server.state import ServerState
from tinyserve.server.web import FILES, MEDIA_TYPES

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",  # kept, but checked by its ETag: an upgrade shows at once
}


def add_routes(routes: Endpoints, state: ServerState) -> None:
    if not state.config.web_page:
        return
    for path, file in FILES.items():
        _serve(routes, path, file)


def _serve(routes: Endpoints, path: str, file: Path) -> None:
    body = file.read_bytes()
    tag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
    headers = {**HEADERS, "ETag": tag}

    @routes.get(path, in_document=False)
    async def static(request: Request) -> Response:
        if _holds(request.headers.get("if-none-match", ""), tag):
            return Response(status_code=304, headers=headers)
        return Response(body, headers=headers, media_type=MEDIA_TYPES[file.suffix])


def _holds(wanted: str, tag: str) -> bool:
    """Whether an If-None-Match header names `tag` (RFC 9110, section 13.1.2: weak comparison)."""
    tags = [item.strip().removeprefix("W/") for item in wanted.split(",")]
    return "*" in tags or tag in tags
