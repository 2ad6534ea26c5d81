"""HTTP itself: bodies, methods, unknown routes, keys, origins.

After each bad request the next works.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from helpers.fake_service import make_engine
from helpers.live_server import Live, live

JSON = {"content-type": "application/json"}
ROUTES = ("/v1/completions", "/v1/chat/completions")


def is_error(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(
    "body",
    [b"[]", b"5", b"{:", b"", b"null", b'"a"', b"{", b"\xff\xfe", b'{"prompt": "\\ud800"}', b"{}"],
)
def test_lim_05_bodies_that_are_no_request(served: Live, path: str, body: bytes) -> None:
    """LIM-05."""
    error = is_error(served.client.post(path, content=body, headers=JSON), 400)
    assert error["type"] == "invalid_request_error"
    served.complete(max_tokens=1)


@pytest.mark.parametrize("path", ROUTES)
def test_deeply_nested_body(served: Live, path: str) -> None:
    body = b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    is_error(served.client.post(path, content=body, headers=JSON), 400)
    served.complete(max_tokens=1)


def test_http_01_chunked_body(served: Live) -> None:
    """HTTP-01."""

    def pieces() -> Iterator[bytes]:
        yield b'{"prompt": "he'
        yield b'llo", "max_tokens": 1}'

    response = served.client.post(ROUTES[0], content=pieces(), headers=JSON)
    assert "content-length" not in response.request.headers
    assert response.status_code == 200


def test_http_01_body_without_a_length(served: Live) -> None:
    """HTTP-01."""
    host, _, port = served.base_url.removeprefix("http://").partition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=30)
    connection.putrequest("POST", ROUTES[0])
    connection.putheader("Content-Type", "application/json")
    connection.endheaders()
    assert connection.getresponse().status == 400
    connection.close()


@pytest.mark.parametrize("is_chunked", [False, True])
def test_http_01_body_above_the_limit(is_chunked: bool) -> None:
    """HTTP-01."""
    engine = make_engine(server={"max_body_size": "64KiB"})
    with live(engine) as served:
        big = json.dumps({"prompt": "x" * 100_000}).encode()
        content = iter([big[:50_000], big[50_000:]]) if is_chunked else big
        error = is_error(served.client.post(ROUTES[0], content=content, headers=JSON), 413)
        assert error["code"] == "request_too_large"
        served.complete(max_tokens=1)


def test_http_01_methods_and_unknown_routes(served: Live) -> None:
    """HTTP-01."""
    for path in ROUTES:
        is_error(served.client.get(path), 405)
    is_error(served.client.get("/nope"), 404)
    is_error(served.client.post("/v1/nope", json={}), 404)
    head = served.client.head("/health")
    assert head.status_code == 200
    assert head.content == b""


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_json_content_type_is_required(served: Live, kind: str) -> None:
    response = served.client.post(
        ROUTES[0], content=b'{"prompt": "x"}', headers={"content-type": kind}
    )
    is_error(response, 415)


def test_content_type_with_a_charset(served: Live) -> None:
    headers = {"content-type": "Application/JSON; charset=utf-8"}
    response = served.client.post(ROUTES[0], content=b'{"prompt": "x"}', headers=headers)
    assert response.status_code == 200


def test_con_17_request_ids_come_back_and_may_repeat(served: Live) -> None:
    """CON-17."""
    for _ in range(2):
        response = served.client.post(
            ROUTES[0], json={"prompt": "x", "max_tokens": 1}, headers={"X-Request-Id": "a"}
        )
        assert response.headers["x-request-id"] == "a"


def test_openapi_document_describes_the_bodies(served: Live) -> None:
    document = served.client.get("/openapi.json").json()
    body = document["paths"]["/v1/completions"]["post"]["requestBody"]
    schema = body["content"]["application/json"]["schema"]
    assert "prompt" in schema["properties"]
    chat = document["paths"]["/v1/chat/completions"]["post"]
    assert "$ref" not in json.dumps(chat["requestBody"])
