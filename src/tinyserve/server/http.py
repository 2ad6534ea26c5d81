"""HTTP odds and ends: reading a body within its limit, who the client is, the key at the door."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any

from starlette.requests import ClientDisconnect, Request

from tinyserve.server.errors import HTTPError, failure
from tinyserve.server.session import ClientGoneError, Receive
from tinyserve.server.sse import Send, send_failure

Scope = MutableMapping[str, Any]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

OPEN_PATHS = frozenset({"/health"})


async def read_json(request: Request, limit: int) -> bytes:
    """The body of a JSON request, chunked or not. Raises HTTPError 415 or 413, ClientGoneError."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not (
        kind.startswith("application/") and kind.endswith("+json")
    ):
        raise HTTPError(415, f"the content type must be application/json, got {kind or 'none'}")
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > limit:
        raise _too_large(limit)
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > limit:
                raise _too_large(limit)
    except ClientDisconnect:
        raise ClientGoneError from None
    return bytes(body)


def _too_large(limit: int) -> HTTPError:
    return HTTPError(413, f"the request body exceeds {limit} bytes", code="request_too_large")


def bearer_key(headers: Sequence[tuple[bytes, bytes]]) -> bytes | None:
    """The key of an `Authorization: Bearer` header."""
    for name, value in headers:
        if name == b"authorization":
            scheme, _, key = value.partition(b" ")
            return key.strip() if scheme.lower() == b"bearer" else None
    return None


def client_of(request: Request, user: str | None) -> str:
    """Whom fairness counts a request against: key, else X-Client-ID, else `user`, else address."""
    key = bearer_key(request.scope["headers"])
    if key:
        return "key:" + hashlib.sha256(key).hexdigest()[:16]
    named = request.headers.get("x-client-id")
    if named:
        return f"id:{named[:256]}"
    if user:
        return f"user:{user[:256]}"
    return f"address:{request.client.host if request.client else ''}"


def request_id_header(request: Request) -> list[tuple[bytes, bytes]]:
    """X-Request-Id goes back as it came, if it is fit to."""
    value = request.headers.get("x-request-id", "")
    if 0 < len(value) <= 128 and value.isascii() and value.isprintable():
        return [(b"x-request-id", value.encode())]
    return []


class KeyGuard:
    """Asks for an API key on every path but /health. Compares in constant time, with every key."""

    def __init__(self, app: App, keys: Sequence[str]) -> None:
        self._app = app
        self._keys = [key.encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            given = bearer_key(scope["headers"])
            matches = [hmac.compare_digest(given or b"", key) for key in self._keys]
            if not any(matches):
                told = failure(
                    HTTPError(
                        401,
                        "no API key was given (Authorization: Bearer ...)"
                        if given is None
                        else "the API key is not valid",
                        code="invalid_api_key",
                    )
                )
                await send_failure(send, told, [(b"www-authenticate", b"Bearer")])
                return
        await self._app(scope, receive, send)
