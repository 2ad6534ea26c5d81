"""HTTP as it comes over the wire: framing, methods, encodings, and bodies that are barely JSON.

After each bad request the next works.
"""

from __future__ import annotations

import gzip
import json
import socket
import time
from typing import Any

import httpx
import pytest
from helpers.fake_service import SpeakingLogits, SpeakingRunner
from helpers.live_server import Live, sse_events, wait_for
from pydantic import BaseModel, ValidationError

from tinyserve.config import ServerConfig
from tinyserve.engine.plan import StepPlan
from tinyserve.server import http as server_http
from tinyserve.server.connection import MAX_HEADER_BYTES
from tinyserve.server.http import MAX_VALUES
from tinyserve.server.protocol import ChatRequest, CompletionRequest
from tinyserve.server.routes.tokenize import DetokenizeRequest
from tinyserve.server.run import web_settings

PATH = "/v1/completions"
BODY = b'{"prompt": "x", "max_tokens": 1}'
JSON = {"content-type": "application/json"}


class Wire:
    """A raw connection."""

    def __init__(self, served: Live) -> None:
        host, _, port = served.base_url.removeprefix("http://").partition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=20)
        self.file = self.socket.makefile("rb")

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()
        self.socket.close()

    def send(self, *lines: str, body: bytes = b"") -> None:
        self.socket.sendall("\r\n".join([*lines, "", ""]).encode("latin-1") + body)

    def post(self, body: bytes = BODY, *lines: str, path: str = PATH) -> None:
        length = f"Content-Length: {len(body)}"
        kind = "Content-Type: application/json"
        self.send(f"POST {path} HTTP/1.1", "Host: x", kind, length, *lines, body=body)

    def read(self) -> tuple[int, dict[str, str], bytes]:
        """One response that says its length, or is chunked."""
        status = int(self.file.readline().split()[1])
        headers = {}
        while line := self.file.readline().strip().decode("latin-1"):
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        if headers.get("transfer-encoding") == "chunked":
            return status, headers, b"".join(self._chunks())
        return status, headers, self.file.read(int(headers.get("content-length", 0)))

    def _chunks(self) -> list[bytes]:
        chunks = []
        while size := int(self.file.readline(), 16):
            chunks.append(self.file.read(size))
            self.file.readline()
        self.file.readline()
        return chunks


def test_several_requests_on_one_connection(served: Live) -> None:
    with Wire(served) as wire:
        for body, expected in [(BODY, 200), (b"{", 400), (BODY, 200), (b"", 400), (BODY, 200)]:
            wire.post(body)
            assert wire.read()[0] == expected


def test_http_1_0_gets_no_chunks(served: Live) -> None:
    """Its clients do not know them: a body without a length ends with the connection."""

    def ask(method: str, target: str, body: bytes = b"") -> tuple[str, bytes]:
        with Wire(served) as wire:
            kind = ("Content-Type: application/json", f"Content-Length: {len(body)}")
            wire.send(f"{method} {target} HTTP/1.0", *kind, body=body)
            head, _, answer = wire.file.read().partition(b"\r\n\r\n")
            return head.decode().lower(), answer

    head, answer = ask("POST", PATH, b'{"prompt": "x", "max_tokens": 3, "stream": true}')
    assert "transfer-encoding" not in head
    assert "connection: close" in head
    assert sse_events(answer.decode())[-1] == "[DONE]"
    for method, target, body in (("POST", PATH, BODY), ("GET", "/v1/models", b"")):
        head, answer = ask(method, target, body)
        assert f"content-length: {len(answer)}" in head
        assert json.loads(answer)
    assert ask("HEAD", "/v1/models")[1] == b""
    assert b"error" in ask("POST", PATH, b"{")[1]


def test_pipelined_requests_are_answered_in_order(served: Live) -> None:
    with Wire(served) as wire:
        for length in (3, 1, 2):
            body = {"prompt": "x", "max_tokens": length, "ignore_eos": True}
            wire.post(json.dumps(body).encode(), f"X-Request-Id: r{length}")
        for length in (3, 1, 2):
            status, headers, body = wire.read()
            assert (status, headers["x-request-id"]) == (200, f"r{length}")
            assert json.loads(body)["usage"]["completion_tokens"] == length


def test_a_stream_and_then_another_request(served: Live) -> None:
    with Wire(served) as wire:
        wire.post(b'{"prompt": "x", "max_tokens": 3, "stream": true}')
        status, headers, body = wire.read()
        assert status == 200
        assert headers["content-type"] == "text/event-stream; charset=utf-8"
        assert headers["cache-control"] == "no-cache"
        assert sse_events(body.decode())[-1] == "[DONE]"
        wire.post()
        assert wire.read()[0] == 200


def test_expect_100_continue(served: Live) -> None:
    with Wire(served) as wire:
        kind, length = "Content-Type: application/json", f"Content-Length: {len(BODY)}"
        wire.send(f"POST {PATH} HTTP/1.1", "Host: x", kind, length, "Expect: 100-continue")
        assert wire.file.readline() == b"HTTP/1.1 100 Continue\r\n"
        assert wire.file.readline() == b"\r\n"
        wire.socket.sendall(BODY)
        assert wire.read()[0] == 200


def test_http_01_a_chunked_body_byte_by_byte(served: Live) -> None:
    with Wire(served) as wire:
        kind = "Content-Type: application/json"
        wire.send(f"POST {PATH} HTTP/1.1", "Host: x", kind, "Transfer-Encoding: chunked")
        for byte in BODY:
            wire.socket.sendall(b"1\r\n" + bytes([byte]) + b"\r\n")
        wire.socket.sendall(b"0\r\n\r\n")
        assert wire.read()[0] == 200


def test_http_1_0_closes(served: Live) -> None:
    with Wire(served) as wire:
        wire.send("GET /health HTTP/1.0")
        assert wire.read()[0] == 200
        assert wire.file.read() == b""


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", PATH, "POST"),
        ("PUT", PATH, "POST"),
        ("DELETE", PATH, "POST"),
        ("HEAD", PATH, "POST"),
        ("OPTIONS", PATH, "POST"),
        ("POST", "/health", "GET"),
        ("DELETE", "/v1/models", "GET"),
    ],
)
def test_http_01_a_wrong_method_is_told_the_right_one(
    served: Live, method: str, path: str, allowed: str
) -> None:
    response = served.client.request(method, path)
    assert response.status_code == 405
    assert allowed in response.headers["allow"]
    if method != "HEAD":
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("path", ["/nope", "/v1", "/v1/nope", "/v2/models", "/v1/completions/x"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_http_01_an_unknown_route(served: Live, method: str, path: str) -> None:
    response = served.client.request(method, path, json={} if method == "POST" else None)
    assert response.status_code == 404
    assert response.json()["error"]["type"] == "not_found_error"


def test_head_has_no_body(served: Live) -> None:
    with Wire(served) as wire:
        wire.send("HEAD /health HTTP/1.1", "Host: x")
        assert wire.file.readline().split()[1] == b"200"
        while wire.file.readline().strip():
            pass
        wire.post()
        assert wire.read()[0] == 200


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "gzip, identity", "x" * 1000])
def test_encoded_bodies_are_refused_clearly(served: Live, coding: str) -> None:
    headers = {**JSON, "content-encoding": coding}
    response = served.client.post(PATH, content=gzip.compress(BODY), headers=headers)
    assert response.status_code == 415
    assert "content encoding" in response.json()["error"]["message"]
    identity = {**JSON, "content-encoding": "identity"}
    assert served.client.post(PATH, content=BODY, headers=identity).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        b"\xef\xbb\xbf" + BODY,
        b'{"prompt": "\xff"}',
        b'{"prompt": "\xed\xa0\x80"}',
        BODY.decode().encode("utf-16"),
        b'{"prompt": "x", "temperature": NaN}',
        b'{"prompt": "x", "temperature": -Infinity}',
        b'{"prompt": "x", "temperature": 1e999}',
        b'{"prompt": "x", "logit_bias": {"1": NaN}}',
        b'{"prompt": "x", "seed": 1' + b"0" * 400 + b"}",
        b'{"prompt": "x", "max_tokens": 1' + b"0" * 5000 + b"}",
        b'{"prompt": [1' + b"0" * 5000 + b"]}",
        b'{"prompt": "x", "n": 1e2}',
        b'{"prompt": "x",}',
        b"{'prompt': 'x'}",
        b'{"prompt": "x"} {"prompt": "y"}',
        b'{"prompt": "x"',
        b'{"prompt": "\\ud800"}',
        b'{"prompt": "x", "stop": ["\\ud800"]}',
        b'{"prompt": "x", "user": "\\udc00"}',
        b'{"prompt": "\\x00"}',
        b'{"prompt": "\x00"}',
        b"[" * 100_000,
        b'{"prompt": ' + b"[" * 5000 + b"]" * 5000 + b"}",
        b"\x00",
        b"true",
        b'[{"prompt": "x"}]',
    ],
)
def test_bodies_that_are_barely_json(served: Live, body: bytes) -> None:
    response = served.client.post(PATH, content=body, headers=JSON)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert served.client.post(PATH, content=BODY, headers=JSON).status_code == 200


@pytest.mark.parametrize(
    ("kind", "entry"),
    [
        (CompletionRequest, '{"prompt": "x", "stop_token_ids": [%s]}' % ("null," * 9999 + "null")),
        (CompletionRequest, '{"prompt": "x", "allowed_token_ids": [%s]}' % ('"",' * 9999 + '""')),
        (ChatRequest, '{"messages": [%s]}' % ('{"role": 1},' * 9999 + "0")),
        (ChatRequest, '{"messages": [], "tools": [%s]}' % ("1," * 9999 + "1")),
        (DetokenizeRequest, '{"tokens": [%s]}' % ('"x",' * 9999 + '"x"')),
    ],
)
def test_a_list_of_wrong_entries_is_one_error(kind: type[BaseModel], entry: str) -> None:
    """One for each of millions held up the event loop for most of a minute."""
    with pytest.raises(ValidationError) as caught:
        kind.model_validate_json(entry)
    assert caught.value.error_count() < 5


def test_bodies_of_too_many_values_are_refused_unread(served: Live) -> None:
    for many in (b"[" * 1000 + b"1," * MAX_VALUES, b'{"":' * MAX_VALUES):
        response = served.client.post(PATH, content=b'{"prompt":' + many, headers=JSON)
        assert response.status_code == 413
        assert response.json()["error"]["code"] == "request_too_large"
    served.complete(max_tokens=1)


@pytest.mark.parametrize(
    "body",
    [
        b' \r\n\t{"prompt": "x", "max_tokens": 1}\n ',
        b'{"prompt": "y", "prompt": "x", "max_tokens": 1}',  # the last of a name counts
        b'{"prompt": "\\u0000\\ud83d\\ude00", "max_tokens": 1}',
        b'{"prompt": "x", "max_tokens": 1, "unknown": 1' + b"0" * 1000 + b"}",
        b'{"prompt": "x", "max_tokens": 1, "": null, "\\u0000": {}}',
        b'{"prompt": "x", "max_tokens": 1, "temperature": 1}',
    ],
)
def test_bodies_that_are_odd_but_good(served: Live, body: bytes) -> None:
    assert served.client.post(PATH, content=body, headers=JSON).status_code == 200


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "it is empty"),
        (b" \r\n", "it is empty"),
        (b"\xef\xbb\xbf" + BODY, "byte order mark"),
        (BODY.decode().encode("utf-16"), "byte order mark"),
        (b"\xfe\xff" + BODY.decode().encode("utf-16-be"), "byte order mark"),
        (b"{prompt: 1}", "key must be a string at line 1 column 2"),
    ],
)
def test_what_is_wrong_with_a_body_is_said(served: Live, body: bytes, said: str) -> None:
    for path in (PATH, "/v1/responses", "/v1/embeddings", "/tokenize", "/v1/messages"):
        response = served.client.post(path, content=body, headers=JSON)
        assert response.status_code == 400
        message = response.json()["error"]["message"]
        assert message.startswith("The request body is not valid JSON: ")
        assert said in message
        assert "Invalid JSON" not in message


def test_http_01_unknown_routes_and_methods_are_named(served: Live) -> None:
    def said(method: str, path: str) -> str:
        message: str = served.client.request(method, path).json()["error"]["message"]
        return message

    assert "/v1/images" in said("POST", "/v1/images")
    assert said("GET", PATH) == f"GET is not allowed at {PATH}: POST"
    assert "/v1/messages/nope" in said("POST", "/v1/messages/nope")
    assert len(said("GET", "/" + "x" * 5000)) < 300


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("/chat/completions", "/v1/chat/completions"),
        ("/v1/v1/messages", "/v1/messages"),
        ("/v1/completion", "/v1/completions"),
        ("/wp-login.php", None),
    ],
)
def test_a_base_url_with_v1_left_out_or_twice_is_told(
    served: Live, asked: str, meant: str | None
) -> None:
    message = served.client.post(asked, json={}).json()["error"]["message"]
    assert asked in message
    assert ("did you mean" in message) == (meant is not None)
    assert meant is None or f"'{meant}'" in message


def test_text_that_no_tokenizer_should_choke_on(served: Live) -> None:
    for text in ("\x00", "\ufffe", "\U0010ffff", "a\u0301" * 50, "\u202e\u2066", "\ufeff", "﷽" * 9):
        answer = served.complete(text, max_tokens=1, echo=True, stop=[text + "x"])
        assert answer["choices"][0]["text"].startswith(text)


@pytest.mark.parametrize(
    "lines",
    [
        ("GARBAGE",),
        ("POST /v1/completions HTTP/1.1", "Host: x", "Content-Length: -5"),
        ("POST /v1/completions HTTP/1.1", "Host: x", "Content-Length: 5", "Content-Length: 6"),
        ("POST /v1/completions HTTP/9.9", "Host: x"),
        ("GET /health HTTP/1.1", "Host: x", "X: " + "y" * (2 * MAX_HEADER_BYTES)),
        ("GET /health HTTP/1.1", "Host: x", *[f"X{i}: y" for i in range(20_000)]),
        ("GET /" + "x" * (2 * MAX_HEADER_BYTES) + " HTTP/1.1", "Host: x"),
    ],
)
def test_what_is_no_http_is_400_and_the_end(served: Live, lines: tuple[str, ...]) -> None:
    with Wire(served) as wire:
        try:
            wire.send(*lines)
            status, headers, body = wire.read()
            assert status in (400, 431)
            assert headers["content-type"] == "application/json"
            assert json.loads(body)["error"]["type"] == "invalid_request_error"
            assert wire.file.read() == b""
        except ConnectionError:  # it was closed while much more was sent
            assert len("".join(lines)) > MAX_HEADER_BYTES
    served.complete(max_tokens=1)


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (
            b"\x16\x03\x01\x02\x00\x01\x00",
            "127.0.0.1 sent TLS (https://), which is not spoken here",
        ),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "127.0.0.1 sent what is no HTTP"),
    ],
)
def test_the_log_tells_who_sent_what_is_no_http(
    served: Live, caplog: pytest.LogCaptureFixture, sent: bytes, said: str
) -> None:
    with caplog.at_level("WARNING"), Wire(served) as wire:
        wire.socket.sendall(sent)
        assert wire.read()[0] == 400
        assert caplog.messages == [said]


def test_headers_just_below_the_limit(served: Live) -> None:
    with Wire(served) as wire:
        wire.send("GET /health HTTP/1.1", "Host: x", "X: " + "y" * (MAX_HEADER_BYTES - 200))
        assert wire.read()[0] == 200


def test_headers_that_trickle_are_given_up(served: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tinyserve.server.connection.HEADER_TIMEOUT_S", 0.2)
    with Wire(served) as silent, Wire(served) as slow:
        slow.socket.sendall(b"POST /v1/completions HTTP/1.1\r\nHost")
        for wire in (silent, slow):
            assert wire.socket.recv(100) == b""


def test_a_body_that_trickles_is_408(served: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_http, "BODY_TIMEOUT_S", 0.2)
    with Wire(served) as wire:
        kind = "Content-Type: application/json"
        wire.send(f"POST {PATH} HTTP/1.1", "Host: x", kind, "Content-Length: 50", body=b"{")
        status, _, body = wire.read()
        assert status == 408
        assert "did not arrive" in json.loads(body)["error"]["message"]
    monkeypatch.undo()
    served.complete(max_tokens=1)


def test_a_client_that_leaves_before_its_body_is_there(served: Live) -> None:
    for _ in range(3):
        with Wire(served) as wire:
            kind = "Content-Type: application/json"
            wire.send(f"POST {PATH} HTTP/1.1", "Host: x", kind, "Content-Length: 50", body=b"{")
            time.sleep(0.01)
    served.complete(max_tokens=1)


def test_garbage_after_a_request_does_not_fall_into_its_answer(
    served: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even where it comes in the middle of a stream: the connection ends instead."""
    runner, begun = served.runner, served.runner.steps

    def run(plan: StepPlan) -> SpeakingLogits:
        if runner.steps == begun + 2:  # the stream stays in its middle
            runner.gate.clear()
        return SpeakingRunner.run(runner, plan)

    monkeypatch.setattr(runner, "run", run)
    with Wire(served) as wire:
        wire.post(b'{"prompt": "x", "max_tokens": 50, "ignore_eos": true, "stream": true}')
        assert b"200" in wire.file.readline()
        wire.socket.sendall(b"GARBAGE\r\n\r\n")
        assert b"HTTP/1.1" not in wire.file.read()
    runner.gate.set()
    wait_for(lambda: served.bridge.num_open == 0)


OFFERS = {
    "h2c": ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAEAAEAA"),
    "websocket": ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: eHg="),
    "tls": ("Upgrade: TLS/1.0", "Connection: keep-alive, upgrade"),
}


@pytest.mark.parametrize("name", OFFERS)
@pytest.mark.parametrize("is_chunked", [False, True])
@pytest.mark.parametrize("is_split", [False, True])
def test_a_body_beside_an_offer_to_upgrade_is_read(
    served: Live, name: str, is_chunked: bool, is_split: bool
) -> None:
    """Java's HTTP client offers h2c with each request; the body was lost, and with it the rest."""
    framing = "Transfer-Encoding: chunked" if is_chunked else f"Content-Length: {len(BODY)}"
    body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY) if is_chunked else BODY
    head = (f"POST {PATH} HTTP/1.1", "Host: x", "Content-Type: application/json", framing)
    with Wire(served) as wire:
        for _ in range(2):
            wire.send(*head, *OFFERS[name], body=b"" if is_split else body)
            if is_split:
                time.sleep(0.01)
                wire.socket.sendall(body[:5])
                time.sleep(0.01)
                wire.socket.sendall(body[5:])
            assert wire.read()[0] == 200
        wire.post()
        assert wire.read()[0] == 200


def test_pipelined_requests_beside_offers_to_upgrade(served: Live) -> None:
    head = (f"POST {PATH} HTTP/1.1", "Host: x", "Content-Type: application/json", *OFFERS["h2c"])
    one = "\r\n".join([*head, f"Content-Length: {len(BODY)}", "", ""]).encode() + BODY
    with Wire(served) as wire:
        wire.socket.sendall(one * 3)
        assert [wire.read()[0] for _ in range(3)] == [200, 200, 200]


def test_a_tunnel_is_refused(served: Live) -> None:
    with Wire(served) as wire:
        wire.send("CONNECT example.org:443 HTTP/1.1", "Host: example.org")
        assert wire.read()[0] == 400


def test_an_upgrade_to_websockets_is_not_followed(served: Live) -> None:
    with Wire(served) as wire:
        upgrade = ("Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13")
        wire.send("GET /v1/models HTTP/1.1", "Host: x", *upgrade, "Sec-WebSocket-Key: eHg=")
        assert wire.read()[0] == 200


def test_request_ids_come_back_on_errors_too_if_they_are_fit(served: Live) -> None:
    def echoed(request_id: str, **body: Any) -> str | None:
        headers = {"x-request-id": request_id}
        return served.client.post(PATH, json=body, headers=headers).headers.get("x-request-id")

    assert echoed("abc", prompt="x", max_tokens=1) == "abc"
    assert echoed("abc", prompt="x", max_tokens=1, stream=True) == "abc"
    assert echoed("abc", prompt=5) == "abc"
    for unfit in ("x" * 129, "a\tb", ""):
        own = echoed(unfit, prompt="x", max_tokens=1)
        assert own is not None
        assert own.startswith("cmpl-")


def test_every_response_has_an_id(served: Live) -> None:
    """The answer's own, so that the log's line is found by it; else one of its own."""
    whole = served.post(PATH, prompt="x", max_tokens=1)
    assert whole.headers.get_list("x-request-id") == [whole.json()["id"]]
    stream = served.post(PATH, prompt="x", max_tokens=1, stream=True)
    assert json.loads(sse_events(stream.text)[0])["id"] == stream.headers["x-request-id"]
    seen = [whole.headers["x-request-id"], stream.headers["x-request-id"]]
    others = [
        served.post(PATH, prompt=5),
        served.client.post(PATH, content=b"x"),
        served.client.delete(PATH),
        *map(served.client.get, ("/health", "/nowhere", "/", "/openapi.json")),
    ]
    for response in others:
        (request_id,) = response.headers.get_list("x-request-id")
        assert request_id.startswith("req_"), response.url
        assert "request-id" not in response.headers
        seen.append(request_id)
    assert len(set(seen)) == len(seen)


def test_a_crash_has_an_id_too(served: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(served.state, "ready", broken)
    response = httpx.get(f"{served.base_url}/v1/models")  # the server closes this connection
    assert response.status_code == 500
    assert len(response.headers.get_list("x-request-id")) == 1


def test_request_ids_come_back_from_every_endpoint(served: Live) -> None:
    """CON-17: those that only count tokens, or tell of the server, too."""
    headers = {"x-request-id": "abc"}
    messages = {"messages": [{"role": "user", "content": "x"}]}
    bodies: dict[str, dict[str, Any]] = {
        "/tokenize": {"prompt": "x"},
        "/detokenize": {"tokens": [1]},
        "/v1/embeddings": {"input": "x"},
        "/v1/responses/input_tokens": {"input": "x"},
        "/v1/messages/count_tokens": messages,
        "/v1/chat/completions/render": messages,
    }
    for path, body in bodies.items():
        response = served.client.post(path, json=body, headers=headers)
        assert (response.status_code, response.headers["x-request-id"]) == (200, "abc"), path
    for path in ("/health", "/metrics/", "/v1/models", "/engine/state", "/version", "/nowhere"):
        assert served.client.get(path, headers=headers).headers["x-request-id"] == "abc", path


def test_idle_connections_are_left_to_the_client_to_close(served: Live) -> None:
    """uvicorn's 5 s are also httpx's, of which one in so many requests met a closed connection;
    behind proxies, which keep them for up to ten minutes, they end as 502.
    """
    settings = web_settings(served.server.config.app, ServerConfig())
    assert settings.timeout_keep_alive > 600
