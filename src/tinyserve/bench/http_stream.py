"""A lean HTTP client for load: one POST, its server-sent events stamped as they arrive.

Written over httptools' parser, so that the client takes little of the cores that the server under
test runs on. Speaks HTTP/1.1, one connection a request.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httptools


@dataclass
class Answer:
    """What came back: the status, and each event's data with the time of its arrival. What is no
    stream of events, errors above all, is in `body`.
    """

    status: int = 0  # 0: the connection ended before it
    content_type: bytes = b""
    events: list[tuple[float, bytes]] = field(default_factory=list)
    body: bytes = b""
    is_complete: bool = False

    @property
    def is_stream(self) -> bool:
        return self.status == 200 and self.content_type.startswith(b"text/event-stream")


class _Collector:
    """Callbacks of the parser. Lines end with LF, CR or both, and wherever the network cuts them:
    an event has arrived with the end of its empty line.
    """

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.parser = httptools.HttpResponseParser(self)
        self._rest = b""  # the beginning of a line
        self._data: list[bytes] = []  # the event's data lines so far
        self._after_cr = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"content-type":
            self._answer.content_type = value.lower()

    def on_headers_complete(self) -> None:
        self._answer.status = self.parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        if not self._answer.is_stream:
            self._answer.body += data
            return
        now = time.perf_counter()
        if self._after_cr and data.startswith(b"\n"):
            data = data[1:]
        self._after_cr = data.endswith(b"\r")
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                self._data.append(line[5:].strip())
            elif not line and self._data:
                self._answer.events.append((now, b"\n".join(self._data)))
                self._data = []

    def on_message_complete(self) -> None:
        self._answer.is_complete = True

    def finish(self) -> None:
        """The connection is at its end: so is the last event."""
        if self._rest or self._data:
            self.on_body(b"\n\n")


async def post(
    url: str, body: Mapping[str, Any], headers: Mapping[str, str], timeout_s: float
) -> Answer:
    """POST JSON and collect the answer. Raises OSError, TimeoutError, HttpParserError."""
    try:
        return await asyncio.wait_for(_post(url, body, headers), timeout_s)
    except asyncio.TimeoutError:  # not the built-in TimeoutError before Python 3.11
        raise TimeoutError(f"no answer within {timeout_s:g} s") from None


async def _post(url: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> Answer:
    place = urllib.parse.urlsplit(url)
    is_https = place.scheme == "https"
    host, port = place.hostname or "127.0.0.1", place.port or (443 if is_https else 80)
    reader, writer = await asyncio.open_connection(host, port, ssl=is_https or None)
    try:
        payload = json.dumps(body).encode()
        lines = [
            f"POST {place.path} HTTP/1.1",
            f"Host: {place.netloc.rpartition('@')[2]}",
            "Content-Type: application/json",
            f"Content-Length: {len(payload)}",
            "Connection: close",
            *(f"{name}: {value}" for name, value in headers.items()),
        ]
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + payload)
        answer = Answer()
        collector = _Collector(answer)
        while not answer.is_complete and (data := await reader.read(65536)):
            collector.parser.feed_data(data)
        collector.finish()
        return answer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
