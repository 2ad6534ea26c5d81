"""Who may use the server: API keys, and the host names under which it may be addressed.

Plain ASGI around the whole application, so that no route is added past them. `KeyGuard` refuses by
default: what needs no key is listed here. Keys are compared in constant time, each with every one.
"""

from __future__ import annotations

import base64
import contextlib
import hmac
import ipaddress
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

from starlette.types import ASGIApp, Receive, Scope, Send

from tinyserve.config import ServerConfig
from tinyserve.errors import ConfigError, reason_of
from tinyserve.files import read_text
from tinyserve.server.errors import HTTPError, failure
from tinyserve.server.http import given_key, request_id_headers
from tinyserve.server.sse import send_failure
from tinyserve.server.web import PATHS

# The page's files are no secret; the requests that it makes need the key.
OPEN_PATHS = frozenset({"/health", "/ping"}) | PATHS
# A browser sends no bearer token of its own accord: on these pages it may ask for the key as a
# password.
DOC_PATHS = frozenset({"/docs", "/openapi.json"})


def load_keys(config: ServerConfig) -> tuple[str, ...]:
    """All keys that are valid, the file's too. Raises ConfigError."""
    if config.api_key_file is None:
        return config.api_key
    try:
        lines = read_text(Path(config.api_key_file)).splitlines()
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"server.api_key_file: cannot read {config.api_key_file}: {reason_of(error)}"
        ) from None
    keys = [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]
    if not keys:  # an empty file must not mean "no key needed"
        raise ConfigError(f"server.api_key_file: no key in {config.api_key_file}")
    return (*config.api_key, *keys)


class KeyGuard:
    """Asks for an API key on every path that is not open."""

    def __init__(self, app: ASGIApp, keys: Sequence[str], root_path: str = "") -> None:
        self._app = app
        self._keys = [key.encode() for key in keys]
        self._root_path = root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or self._is_among(OPEN_PATHS, scope["path"]):
            await self._app(scope, receive, send)
            return
        is_doc = self._is_among(DOC_PATHS, scope["path"])
        given = given_key(scope["headers"])
        if given is None and is_doc:
            given = _basic_password(scope["headers"])
        matches = [hmac.compare_digest(given or b"", key) for key in self._keys]
        if any(matches):
            await self._app(scope, receive, send)
            return
        message = "no API key was given (Authorization: Bearer)"
        if given is not None:
            message = "the API key is not valid"
        challenge = b'Basic realm="any name, and the API key"' if is_doc else b"Bearer"
        headers = [(b"www-authenticate", challenge)]
        await _refuse(scope, send, _unauthorized(message), headers)

    def _is_among(self, paths: frozenset[str], path: str) -> bool:
        return path in paths or (path.removeprefix(self._root_path) or "/") in paths


def _basic_password(headers: Sequence[tuple[bytes, bytes]]) -> bytes | None:
    """The password of `Authorization: Basic`, whatever the user's name (RFC 7617)."""
    scheme, _, value = dict(reversed(headers)).get(b"authorization", b"").partition(b" ")
    if scheme.lower() != b"basic":
        return None
    try:
        _, colon, password = base64.b64decode(value, validate=True).partition(b":")
    except ValueError:
        return None
    return password if colon else None


class HostGuard:
    """Answers only where the Host header holds a name that `knows` approves of.

    A page from elsewhere can have its own name resolved to this machine's address (DNS rebinding)
    and would then be of the same origin as the server; but it cannot hide its own name.
    """

    def __init__(self, app: ASGIApp, knows: Callable[[str], bool]) -> None:
        self._app = app
        self._knows = knows

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or self._is_known(dict(scope["headers"]).get(b"host")):
            await self._app(scope, receive, send)
            return
        message = "the Host header names another server (see --allowed-hosts)"
        error = HTTPError(403, message, code="unknown_host")
        await _refuse(scope, send, error, request_id_headers(scope))  # outside of the meter

    def _is_known(self, host: bytes | None) -> bool:
        if host is None:  # HTTP/1.0; browsers always send it
            return True
        name = host.decode("latin-1").lower()
        if not name.endswith("]"):  # a bare IPv6 address has colons of its own
            name = name.rpartition(":")[0] or name
        return self._knows(name.strip("[]").rstrip("."))


def is_open(config: ServerConfig) -> bool:
    """May anyone who reaches the address use it, and may others than this machine reach it?"""
    asks = config.api_key or config.api_key_file or config.ssl_cert_reqs == "required"
    return not asks and config.uds is None and not _is_loopback(config.host)


def host_rule(config: ServerConfig, *, has_keys: bool) -> Callable[[str], bool] | None:
    """Which names in the Host header are served; None: all."""
    if config.allowed_hosts:
        named = {name.lower() for name in config.allowed_hosts}
        return None if "*" in named else lambda name: name in named
    if has_keys or config.uds is not None or not _is_loopback(config.host):
        return None
    return is_local_name


def is_local_name(name: str) -> bool:
    """A name that nobody elsewhere can own: an address, this machine, or one of a local network."""
    with contextlib.suppress(ValueError):
        return bool(ipaddress.ip_address(name))
    own = ("localhost", socket.gethostname().lower())
    return name in own or name.endswith((".localhost", ".local", ".internal"))


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _unauthorized(message: str) -> HTTPError:
    return HTTPError(401, message, code="invalid_api_key")


async def _refuse(
    scope: Scope, send: Send, error: HTTPError, headers: list[tuple[bytes, bytes]]
) -> None:
    if scope["type"] == "websocket":  # there is none
        await send({"type": "websocket.close", "code": 1008})
        return
    await send_failure(send, failure(error, scope["path"]), headers)
