"""`Connection`: an HTTP/1.1 connection with the bounds that uvicorn does not set.

Headers are bounded in size and in time, and the application may abort the connection: closing it
would first wait for the client to read what was sent.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tinyserve.server.outlet import ABORT

MAX_HEADER_BYTES = 1 << 16
HEADER_TIMEOUT_S = 60.0  # from the connection, or a request's first byte, to the end of its headers


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
        super().data_received(data)
        if self._header_bytes is not None and not self.transport.is_closing():
            self._header_bytes += len(data)
            if self._header_bytes > MAX_HEADER_BYTES:
                self.send_400_response("The request's headers are too large.")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._header_bytes = 0
        self._expect_headers()
        extensions: dict[str, Any] = {ABORT: self.transport.abort}
        self.scope["extensions"] = extensions

    def on_headers_complete(self) -> None:
        self._header_bytes = None
        self._stop_timer()
        super().on_headers_complete()

    def _expect_headers(self) -> None:
        self._stop_timer()
        self._header_timer = self.loop.call_later(HEADER_TIMEOUT_S, self.transport.abort)

    def _stop_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None
