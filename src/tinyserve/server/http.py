"""What an HTTP request carries: its body, within limits, its key, its client and its id."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Sequence

from starlette.requests import ClientDisconnect, Request
from starlette.types import Scope

from tinyserve.server.errors import HTTPError
from tinyserve.server.session import ClientGoneError

MAX_VALUES = 1 << 18  # per body; parsing millions of them would hold up the loop for seconds
ANSWER_ID = "tinyserve.answer_id"  # key in the scope: the answer's id, once there is one
BODY_TIMEOUT_S = 60.0  # for a body to arrive, whatever its size


async def body_bytes(request: Request, limit: int) -> bytes:
    """The bytes of a JSON request's body, chunked or not; they are parsed elsewhere.

    Raises HTTPError 415, 413 or 408, ClientGoneError.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not (
        kind.startswith("application/") and kind.endswith("+json")
    ):
        raise HTTPError(415, f"the content type must be application/json, got {kind or 'none'}")
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("", "identity"):
        raise HTTPError(
            415, f"the content encoding {coding[:64]!r} is not supported; send plain JSON"
        )
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > limit:
        raise _too_large(limit)
    try:
        body = await asyncio.wait_for(_read(request, limit), BODY_TIMEOUT_S)
    except asyncio.TimeoutError:
        raise HTTPError(
            408, f"the request body did not arrive within {BODY_TIMEOUT_S:g} seconds"
        ) from None
    except ClientDisconnect:
        raise ClientGoneError from None
    num_values = sum(body.count(mark) for mark in b",[{")  # commas of texts count, too
    if num_values > MAX_VALUES:
        raise HTTPError(
            413, f"the request body holds more than {MAX_VALUES} values", code="request_too_large"
        )
    return body


async def _read(request: Request, limit: int) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise _too_large(limit)
    return bytes(body)


def _too_large(limit: int) -> HTTPError:
    return HTTPError(413, f"the request body exceeds {limit} bytes", code="request_too_large")


def given_key(headers: Sequence[tuple[bytes, bytes]]) -> bytes | None:
    """The key that a request shows: `Authorization: Bearer`, else Anthropic's `x-api-key`. Clients
    that were given no key for the one may send it empty.
    """
    named = dict(reversed(headers))  # the first of two headers of one name counts
    scheme, _, key = named.get(b"authorization", b"").partition(b" ")
    if scheme.lower() == b"bearer" and key.strip():
        return key.strip()
    other = named.get(b"x-api-key")
    return None if other is None else other.strip()


def client_of(request: Request, user: str | None) -> str:
    """The client that a request counts for in fair scheduling. Its key, where the server asks for
    keys; elsewhere what it says of itself: a key (which may be the same dummy for everyone)
    together with its X-Client-ID, else `user`, else its address.
    """
    key = given_key(request.scope["headers"])
    label = "key:" + hashlib.sha256(key).hexdigest()[:16] if key else ""
    if label and request.app.state.tinyserve.keys:
        return label
    named = request.headers.get("x-client-id")
    address = request.client.host if request.client else ""
    name = f"id:{named[:256]}" if named else f"user:{user[:256]}" if user else f"address:{address}"
    return f"{label} {name}".strip()


def request_id_headers(scope: Scope) -> list[tuple[bytes, bytes]]:
    """The id that every response carries: the request's X-Request-Id, if it is short and printable,
    else the id of the answer, else a fresh one. Anthropic's clients look for it under another name.
    """
    named = dict(reversed(scope["headers"]))
    request_id: bytes = named.get(b"x-request-id", b"")
    if not (0 < len(request_id) <= 128 and all(0x20 <= byte < 0x7F for byte in request_id)):
        request_id = (scope.get(ANSWER_ID) or f"req_{secrets.token_hex(12)}").encode()
    names = [b"x-request-id"]
    if b"anthropic-version" in named:
        names.append(b"request-id")
    return [(name, request_id) for name in names]
