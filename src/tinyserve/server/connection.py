"""`Connection`: an HTTP/1.1 connection with the bounds that uvicorn does not set.

Headers are bounded in size and in time, and the application may abort the connection: closing it
would first wait for the client to read what was sent. HTTP/1.0 gets no chunks. Input that is not
HTTP gets an error in the usual shape. An offer to speak another protocol (Java's client makes one
with each request: `Upgrade: h2c`) is passed over, as RFC 9110 allows, and the request answered.
"""

from __future__ import annotations

import asyncio
import http
import json
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from tinyserve.server.errors import error_object
from tinyserve.server.outlet import ABORT

MAX_HEADER_BYTES = 1 << 16
TLS_HELLO = b"\x16\x03"  # what a TLS connection begins with (RFC 8446, section 5.1)
HEADER_TIMEOUT_S = 60.0  # from the connection, or a request's first byte, to the end of its headers


class _UnchunkedCycle(RequestResponseCycle):
    """An answer whose body, where it has no length, ends with the connection: HTTP/1.0 knows no
    chunks (RFC 9112, section 6.1).
    """

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.body":  # what uvicorn still waits for: this piece
            self.expected_content_length = len(message.get("body", b""))
        await super().send(message)


class Connection(HttpToolsProtocol):
    """One client's connection."""

    _header_bytes: int | None = None  # so far; None: no request is being announced
    _header_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            self.data_received(self._head_without_offer() + data[offer.args[0] :])
            return
        except httptools.HttpParserError:
            host = self.client[0] if self.client else "a client"
            is_tls = data.startswith(TLS_HELLO)  # the most common one: https:// in a client's URL
            what = "TLS (https://), which is not spoken here" if is_tls else "what is no HTTP"
            self.logger.warning("%s sent %s", host, what)
            self._refuse(400, "this is not a valid HTTP/1.1 request")
            return
        if self._header_bytes is not None and not self.transport.is_closing():
            self._header_bytes += len(data)
            if self._header_bytes > MAX_HEADER_BYTES:
                self._refuse(431, f"the request's headers exceed {MAX_HEADER_BYTES} bytes")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._header_bytes = 0
        self._expect_headers()
        extensions: dict[str, Any] = {ABORT: self.transport.abort}
        self.scope["extensions"] = extensions

    def on_headers_complete(self) -> None:
        if self._is_offer():
            return  # the parser skips the body now, and stops
        self._header_bytes = None
        self._stop_timer()
        super().on_headers_complete()
        if self.parser.get_http_version() == "1.0":
            self.cycle.chunked_encoding = False
            self.cycle.__class__ = _UnchunkedCycle  # uvicorn has made it, and not begun to send

    def on_message_complete(self) -> None:
        if not self._is_offer():
            super().on_message_complete()

    def _is_offer(self) -> bool:
        return self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"

    def _head_without_offer(self) -> bytes:
        """The request's head once more, for the parser to go on from there with the body."""
        version = self.parser.get_http_version().encode()
        lines = [self.parser.get_method() + b" " + self.url + b" HTTP/" + version]
        lines += [name + b": " + value for name, value in self.headers if name != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])

    def _refuse(self, status: int, message: str) -> None:
        """Say what is wrong, unless that would fall into the middle of an answer, and end."""
        is_answering = self.cycle is not None and self.cycle.response_started
        if not is_answering or self.cycle.response_complete:
            body = json.dumps(error_object(status, message)).encode()
            head = (
                f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}\r\n"
                f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
                "connection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
        self.transport.close()

    def _expect_headers(self) -> None:
        self._stop_timer()
        self._header_timer = self.loop.call_later(HEADER_TIMEOUT_S, self.transport.abort)

    def _stop_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None
