"""A lean HTTP client for load: one POST, its server-sent events stamped as they arrive.

Written over httptools' parser, so that the client takes little of the cores that the server under
test runs on. Speaks HTTP/1.1 without TLS, one connection a request.
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
    """What came back: the status, and each event's data with the time of its arrival."""

    status: int = 0
    events: list[tuple[float, bytes]] = field(default_factory=list)
    body: bytes = b""
    is_complete: bool = False


class _Collector:
    """Callbacks of the parser."""

    def __init__(self, parser_answer: Answer) -> None:
        self._answer = parser_answer
        self._rest = b""
        self._is_stream = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"content-type":
            self._is_stream = value.startswith(b"text/event-stream")

    def on_body(self, data: bytes) -> None:
        if not self._is_stream:
            self._answer.body += data
            return
        now = time.perf_counter()
        *events, self._rest = (self._rest + data.replace(b"\r\n", b"\n")).split(b"\n\n")
        for event in events:
            for line in event.split(b"\n"):
                if line.startswith(b"data:"):
                    self._answer.events.append((now, line[5:].strip()))

    def on_message_complete(self) -> None:
        self._answer.is_complete = True


async def post(
    url: str, body: Mapping[str, Any], headers: Mapping[str, str], timeout_s: float
) -> Answer:
    """POST JSON and collect the answer. Raises OSError, TimeoutError, HttpParserError."""
    place = urllib.parse.urlsplit(url)
    host, port = place.hostname or "127.0.0.1", place.port or 80
    async with _deadline(timeout_s):
        reader, writer = await asyncio.open_connection(host, port)
        try:
            payload = json.dumps(body).encode()
            lines = [
                f"POST {place.path} HTTP/1.1",
                f"Host: {host}:{port}",
                "Content-Type: application/json",
                f"Content-Length: {len(payload)}",
                "Connection: close",
                *(f"{name}: {value}" for name, value in headers.items()),
            ]
            writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + payload)
            answer = Answer()
            parser = httptools.HttpResponseParser(_Collector(answer))
            while not answer.is_complete and (data := await reader.read(65536)):
                parser.feed_data(data)
            answer.status = parser.get_status_code()
            return answer
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


class _deadline:
    """`asyncio.timeout`, which Python 3.10 lacks."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._is_over = False

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._expire)

    async def __aexit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self._timer.cancel()
        if self._is_over and kind is asyncio.CancelledError:
            raise TimeoutError(f"no answer within {self._seconds:g} s")

    def _expire(self) -> None:
        self._is_over = True
        self._task.cancel()
