"""Who may come in: keys on every route, other origins, other names, TLS; and what is never told."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import logging
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from queue import Queue
from typing import Any
from unittest import mock

import httpx
import pytest
from helpers.fake_service import make_engine
from helpers.live_server import Live, live
from starlette.applications import Starlette
from starlette.routing import Route

from tinyserve.config import ServerConfig
from tinyserve.engine.build import Engine
from tinyserve.errors import ConfigError
from tinyserve.server import guards, run
from tinyserve.server.app import create_app
from tinyserve.server.guards import HostGuard, host_rule, is_local_name
from tinyserve.server.http import given_key
from tinyserve.server.listen import listening
from tinyserve.server.run import GracefulServer
from tinyserve.server.web import PATHS

COMPLETIONS = "/v1/completions"
KEYS = ["first-key", "second-key"]
OPEN = {"/health", "/ping", *PATHS}


@pytest.fixture(scope="module")
def guarded() -> Iterator[Live]:
    with live(make_engine(server={"api_key": KEYS})) as served:
        yield served


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}".strip()}


def raw(served: Live, method: str, target: str, **headers: str) -> tuple[int, dict[str, Any]]:
    """A request whose target goes out exactly as it is spelled."""
    connection = http.client.HTTPConnection(*address(served), timeout=20)
    connection.putrequest(method, target, skip_host="host" in headers)
    for name, value in headers.items():
        connection.putheader(name.replace("_", "-"), value)
    connection.endheaders()
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response.status, json.loads(body) if body.startswith(b"{") else {}


def address(served: Live) -> tuple[str, int]:
    host, _, port = served.base_url.removeprefix("http://").partition(":")
    return host, int(port)


def routes_of(app: Starlette) -> list[tuple[str, str]]:
    """(method, path) of every route that the application has, hidden ones too."""
    found = []
    for route in app.routes:
        assert isinstance(route, Route), f"of {route!r} the test knows no paths"
        path = route.path.replace("{name:path}", "tinyserve")
        assert "{" not in path, path
        found += [(method, path) for method in route.methods or ()]
    return sorted(found)


def test_auth_01_every_route_but_the_open_ones_wants_a_key(guarded: Live) -> None:
    app = create_app(guarded.engine)
    routes = routes_of(app)
    paths = {path for _, path in routes}
    assert {"/v1/models", "/v1/chat/completions", "/docs", "/openapi.json", *OPEN} <= paths
    for _, path in routes:
        for method in ("GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE"):
            for headers in ({}, bearer("wrong")):
                status = guarded.client.request(method, path, headers=headers).status_code
                if path in OPEN:
                    assert status in (200, 405), (method, path)
                else:
                    assert status == 401, (method, path)


@pytest.mark.parametrize(
    "target",
    [
        "/nope",
        "//v1/models",
        "/v1//models",
        "/v1/models/",
        "/v1/models/?x=/health",
        "/v1/models#/health",
        "/%761/models",
        "/v1%2Fmodels",
        "/V1/MODELS",
        "/v1/./models",
        "/health/../v1/models",
        "/health/%2e%2e/v1/models",
        "/health/",
        "/health//",
        "//health",
        "/health%00",
        "/health;x",
        "/HEALTH",
        "/web/../v1/models",
        "/metrics/",
        "*",
        "http://127.0.0.1/v1/models",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "HEAD", "OPTIONS"])
def test_auth_01_odd_spellings_lead_nowhere(guarded: Live, method: str, target: str) -> None:
    assert raw(guarded, method, target)[0] in (400, 401)


def test_auth_01_any_of_the_keys_opens_in_either_header(guarded: Live) -> None:
    for key in KEYS:
        for headers in (
            bearer(key),
            {"authorization": f"bearer  {key}"},
            {"x-api-key": key},
            {"authorization": "Bearer", "x-api-key": key},
        ):
            assert guarded.client.get("/v1/models", headers=headers).status_code == 200
    for headers in (
        bearer(KEYS[0] + "x"),
        bearer(KEYS[0][:-1]),
        bearer("clé"),
        {"authorization": "Bearer"},
        {"x-api-key": ""},
        {"x-api-key": "first-key,second-key"},
        {**bearer("wrong"), "x-api-key": KEYS[0]},
    ):
        encoded = {name: value.encode() for name, value in headers.items()}
        response = guarded.client.get("/v1/models", headers=encoded)
        assert response.status_code == 401, headers
        error = response.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")
        assert response.headers["www-authenticate"] == "Bearer"
    assert given_key([(b"x-api-key", b"key ")]) == b"key"  # the parser leaves the blank
    asked = guarded.client.get("/v1/models", headers={"x-request-id": "abc"})
    assert (asked.status_code, asked.headers["x-request-id"]) == (401, "abc")


def test_keys_are_compared_in_constant_time_with_every_one(
    guarded: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[bytes] = []

    def compare(given: bytes, key: bytes) -> bool:
        compared.append(key)
        return given == key

    monkeypatch.setattr(guards.hmac, "compare_digest", compare)
    for key in (*KEYS, "wrong", ""):
        compared.clear()
        guarded.client.get("/v1/models", headers=bearer(key))
        assert compared == [key.encode() for key in KEYS]


@pytest.mark.parametrize("text", ["# clients\nalpha\n\n  beta  \n", "\ufeffalpha\r\nbeta\r\n"])
def test_keys_from_a_file(tmp_path: Path, text: str) -> None:
    file = tmp_path / "keys"
    file.write_bytes(text.encode())
    engine = make_engine(server={"api_key": "gamma", "api_key_file": str(file)})
    with live(engine) as served:
        for key in ("alpha", "beta", "gamma"):
            assert served.client.get("/v1/models", headers=bearer(key)).status_code == 200
        for key in ("# clients", "", "delta"):
            assert served.client.get("/v1/models", headers=bearer(key)).status_code == 401


@pytest.mark.parametrize("content", [None, "", "# nothing but this\n", b"\xff\xfe"])
def test_a_key_file_without_keys_does_not_open_the_door(
    tmp_path: Path, content: str | bytes | None
) -> None:
    file = tmp_path / "keys"
    if content is not None:
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError, match=r"server\.api_key_file"):
        create_app(config=ServerConfig(api_key_file=str(file)))


def test_cors_is_closed_unless_opened() -> None:
    asked = {"origin": "http://app.example", "access-control-request-method": "POST"}
    with live(make_engine()) as served:
        for path in ("/health", "/v1/models", COMPLETIONS):
            for method in ("GET", "OPTIONS", "POST"):
                response = served.client.request(method, path, headers=asked)
                assert "access-control-allow-origin" not in response.headers


def test_cors_opened_for_one_origin_lets_the_preflight_pass_without_a_key() -> None:
    asked = {
        "origin": "http://app.example",
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type",
    }
    opened = make_engine(server={"allowed_origins": ["http://app.example"], "api_key": ["k"]})
    with live(opened) as served:
        response = served.client.options(COMPLETIONS, headers=asked)
        assert response.status_code == 200
        assert response.headers["access-control-allow-origin"] == "http://app.example"
        assert "authorization" in response.headers["access-control-allow-headers"].lower()
        private = {**asked, "access-control-request-private-network": "true"}
        response = served.client.options(COMPLETIONS, headers=private)
        assert response.status_code == 200  # a public page that calls this machine, in Chrome
        assert response.headers["access-control-allow-private-network"] == "true"
        refused = served.client.get("/v1/models", headers=asked)
        assert refused.status_code == 401  # and the browser may read why
        assert refused.headers["access-control-allow-origin"] == "http://app.example"
        answered = served.client.get("/v1/models", headers={**asked, **bearer("k")})
        assert answered.status_code == 200
        other = served.client.options(
            COMPLETIONS, headers={**private, "origin": "http://evil.example"}
        )
        assert other.status_code == 400
        assert "access-control-allow-origin" not in other.headers


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""]
)
def test_a_form_of_another_site_cannot_post(served: Live, kind: str) -> None:
    """These content types go out without a preflight; JSON does not."""
    headers = {"content-type": kind, "origin": "http://evil.example"}
    response = served.client.post(COMPLETIONS, content=b'{"prompt": "x"}', headers=headers)
    assert response.status_code == 415
    assert served.runner.steps == 0


# -- names ----------------------------------------------------------------------------------------


LOCAL, ALL = "llm.internal", "evil.example"


@pytest.mark.parametrize(
    ("config", "has_keys", "served"),
    [
        ({}, False, {LOCAL}),
        ({"host": "::1"}, False, {LOCAL}),
        ({"host": "localhost"}, False, {LOCAL}),
        ({}, True, {LOCAL, ALL}),
        ({"host": "0.0.0.0"}, False, {LOCAL, ALL}),
        ({"uds": "/tmp/x"}, False, {LOCAL, ALL}),
        ({"allowed_hosts": ["Evil.example"]}, False, {ALL}),
        ({"allowed_hosts": ["llm.internal"]}, True, {LOCAL}),
        ({"allowed_hosts": ["*"]}, False, {LOCAL, ALL}),
    ],
)
def test_names_that_are_served(config: dict[str, Any], has_keys: bool, served: set[str]) -> None:
    knows = host_rule(ServerConfig(**config), has_keys=has_keys)
    assert {name for name in (LOCAL, ALL) if knows is None or knows(name)} == served


@pytest.mark.parametrize(
    ("host", "is_known"),
    [
        (b"localhost", True),
        (b"localhost:8000", True),
        (b"LOCALHOST.:8000", True),
        (b"llm.localhost", True),
        (b"host.docker.internal:8000", True),
        (b"desk.local", True),
        (b"127.0.0.1:1", True),
        (b"192.168.1.5:8000", True),  # an address is no name that could be rebound
        (b"[::1]:8000", True),
        (b"[::1]", True),
        (None, True),
        (b"evil.example", False),
        (b"evil.example:8000", False),
        (b"localhost.evil.example", False),
        (b"127.0.0.1.evil.example:80", False),
        (b"localhost@evil.example", False),
        (b"evillocalhost", False),
        (b"", False),
        (b":8000", False),
        (b"\xff", False),
    ],
)
def test_names_in_the_host_header(host: bytes | None, is_known: bool) -> None:
    passed: list[str] = []
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        passed.append(scope["path"])

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [] if host is None else [(b"host", host)]
    scope = {"type": "http", "path": "/v1/models", "headers": headers}
    asyncio.run(HostGuard(app, is_local_name)(scope, None, send))  # type: ignore[arg-type]
    assert passed == (["/v1/models"] if is_known else [])
    assert [m["status"] for m in sent if "status" in m] == ([] if is_known else [403])


@contextlib.contextmanager
def serving(**config: Any) -> Iterator[str]:
    """`serve` itself on a thread, over a fake engine; the URL."""
    loading: Future[Engine] = Future()
    loading.set_result(make_engine())
    urls: Queue[str] = Queue()
    servers: list[GracefulServer] = []

    class Kept(GracefulServer):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            servers.append(self)

    settings = ServerConfig(**{"port": 0, **config})
    with mock.patch.object(run, "GracefulServer", Kept):
        thread = threading.Thread(
            target=run.serve,
            args=(loading, settings),
            kwargs={"on_ready": lambda engine, url: urls.put(url)},
            daemon=True,
        )
        thread.start()
        yield urls.get(timeout=20)
        servers[0].should_exit = True
        thread.join(20)
    assert not thread.is_alive()


def test_a_name_that_was_rebound_is_refused() -> None:
    with serving() as url, httpx.Client(base_url=url) as client:
        assert client.get("/v1/models").status_code == 200
        response = client.get("/v1/models", headers={"host": "evil.example:8000"})
        assert response.status_code == 403
        assert response.json()["error"]["code"] == "unknown_host"
        assert len(response.headers.get_list("x-request-id")) == 1
    with (
        serving(allowed_hosts=["llm.example"]) as url,
        httpx.Client(base_url=url) as client,
    ):
        assert client.get("/v1/models", headers={"host": "llm.example"}).status_code == 200
        assert client.get("/v1/models").status_code == 403


def test_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "tinyserve.sock"
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(path))
    stale.close()
    config = ServerConfig(uds=str(path))
    with serving(uds=str(path)) as url:
        assert url == f"http+unix:{path}"
        transport = httpx.HTTPTransport(uds=str(path))
        with httpx.Client(transport=transport, base_url="http://any.name") as client:
            answer = client.post(COMPLETIONS, json={"prompt": "x", "max_tokens": 1})
            assert answer.status_code == 200
        with (
            pytest.raises(ConfigError, match=r"server\.uds"),
            listening(ServerConfig(uds=str(path))),
        ):
            pass
    assert not path.exists()
    path.write_text("no socket")
    with pytest.raises(ConfigError, match=r"server\.uds"), listening(config):
        pass
    assert path.read_text() == "no socket"


def test_a_root_path_that_a_proxy_strips_or_keeps() -> None:
    with serving(root_path="/llm", api_key=["k"]) as url:
        assert url.endswith("/llm")
        base = url.removesuffix("/llm")
        with httpx.Client(base_url=base) as client:
            for prefix in ("", "/llm"):
                assert client.get(prefix + "/health").status_code == 200
                assert client.get(prefix + "/v1/models").status_code == 401
                answered = client.get(prefix + "/v1/models", headers=bearer("k"))
                assert answered.status_code == 200
            assert client.get("/llm/llm/health").status_code == 401
            bare = client.get("/llm")
            assert bare.is_redirect
            assert bare.headers["location"] == "/llm/"
            assert client.get("/llm/").status_code == 200
            document = client.get("/openapi.json", headers=bearer("k")).json()
            assert document["servers"] == [{"url": "/llm"}]
            counted = client.get("/metrics", headers=bearer("k")).text
            assert 'http_requests_total{handler="/v1/models"' in counted


# -- TLS ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl makes the certificate of this test")
    folder = tmp_path_factory.mktemp("tls")
    chain, key = folder / "cert.pem", folder / "key.pem"
    command = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    command += ["-keyout", str(key), "-out", str(chain)]
    subprocess.run(command, check=True, capture_output=True)
    return chain, key


def test_https(certificate: tuple[Path, Path]) -> None:
    chain, key = certificate
    with serving(ssl_certfile=str(chain), ssl_keyfile=str(key)) as url:
        assert url.startswith("https://")
        context = ssl.create_default_context(cafile=str(chain))
        with httpx.Client(base_url=url, verify=context) as client:
            body = {"prompt": "x", "max_tokens": 3, "stream": True}
            response = client.post(COMPLETIONS, json=body)
            assert response.text.endswith("data: [DONE]\n\n")
        with httpx.Client(base_url=url) as stranger, pytest.raises(httpx.ConnectError):
            stranger.get("/health")


def test_https_with_certificates_of_clients(certificate: tuple[Path, Path]) -> None:
    chain, key = certificate
    options = {"ssl_ca_certs": str(chain), "ssl_cert_reqs": "required"}
    with serving(ssl_certfile=str(chain), ssl_keyfile=str(key), **options) as url:
        context = ssl.create_default_context(cafile=str(chain))
        with httpx.Client(base_url=url, verify=context) as client, pytest.raises(httpx.HTTPError):
            client.get("/health")
        context.load_cert_chain(chain, key)
        with httpx.Client(base_url=url, verify=context) as client:
            assert client.get("/health").status_code == 200


@pytest.mark.parametrize("name", ["ssl_certfile", "ssl_keyfile", "ssl_ca_certs"])
def test_a_file_that_cannot_be_read_is_named(name: str) -> None:
    options = {"ssl_certfile": __file__, name: "/no/such/file"}
    with pytest.raises(ConfigError, match=rf"server\.{name}: cannot read /no/such/file: No such"):
        run.serve(Future(), ServerConfig(port=0, **options))


@pytest.mark.parametrize(
    "config",
    [
        {"ssl_keyfile": "key.pem"},
        {"ssl_ca_certs": __file__, "ssl_cert_reqs": "required"},  # and no TLS to ask for one in
        {"ssl_certfile": "/no/such/file"},
        {"ssl_certfile": __file__},
        {"ssl_certfile": __file__, "ssl_cert_reqs": "required"},
        {"root_path": "llm"},
    ],
)
def test_settings_that_cannot_work_are_named(config: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"server\.(ssl_|root_path)"):
        run.serve(Future(), ServerConfig(port=0, **config))


def test_a_file_that_is_no_certificate_is_called_so() -> None:
    with pytest.raises(ConfigError, match="no certificate and key in PEM form"):
        run.serve(Future(), ServerConfig(port=0, ssl_certfile=__file__))


def test_an_encrypted_key_is_refused_and_no_terminal_asked(
    certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    chain, key = certificate
    encrypted = tmp_path / "encrypted.pem"
    protect = ["-aes128", "-passout", "pass:secret"]
    subprocess.run(
        ["openssl", "pkey", "-in", key, "-out", encrypted, *protect], check=True, timeout=60
    )
    options = {"ssl_certfile": str(chain), "ssl_keyfile": str(encrypted)}
    with pytest.raises(ConfigError, match=r"server\.ssl_keyfile: .* has a password"):
        run.serve(Future(), ServerConfig(port=0, **options))


# -- logs -----------------------------------------------------------------------------------------

SECRET = "xyzzy-plugh"


def requests_with_a_secret() -> Iterator[tuple[str, Any]]:
    """(path, body), good and bad in every way that might end up in a log."""
    user = {"role": "user", "content": SECRET}
    chat: list[dict[str, Any]] = [
        {"messages": [user]},
        {"messages": [user], "stream": True},
        {"messages": [{"role": SECRET, "content": "x"}]},
        {"messages": [{"role": "user", "content": [{"type": SECRET}]}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": {"a": SECRET}}]}]},
        {"messages": SECRET},
        {"messages": [user], "temperature": SECRET},
        {"messages": [user], "chat_template_kwargs": {"x": SECRET, "fail": SECRET}},
        {"messages": [user], "tools": [{"type": "function", "function": {"name": SECRET}}]},
        {"messages": [user], "response_format": {"type": SECRET}},
        {"messages": [user], "chat_template": SECRET},
        {"messages": [{"role": "system", "content": SECRET}, user, user]},
        {"messages": [user], "unknown_field": SECRET, "model": "tinyserve"},
    ]
    completions: list[dict[str, Any]] = [
        {"prompt": SECRET, "echo": True, "logprobs": 1},
        {"prompt": SECRET, "stream": True},
        {"prompt": SECRET, "max_tokens": 10**6},
        {"prompt": [SECRET, 5]},
        {"prompt": {"a": SECRET}},
        {"prompt": SECRET, "stop": [SECRET, ""]},
        {"prompt": SECRET, "logit_bias": {SECRET: 1}},
        {"prompt": SECRET, "bad_words": [SECRET]},
        {"prompt": SECRET, "user": SECRET, "suffix": SECRET},
        {"prompt": SECRET * 2000},
    ]
    for body in chat:
        yield "/v1/chat/completions", {"max_tokens": 2, **body}
    for body in completions:
        yield COMPLETIONS, {"max_tokens": 2, **body}
    for path in ("/tokenize", "/v1/embeddings", "/v1/responses", "/v1/messages"):
        yield path, {"input": SECRET, "prompt": SECRET, "messages": [user], "max_tokens": 2}
        yield path, {"input": {"a": SECRET}, "prompt": 5, "messages": SECRET}


@pytest.mark.parametrize(
    "template", [None, "{{ raise_exception(messages[0].content) }}", "{{ a.b.c }}"]
)
def test_no_prompt_text_in_the_logs(template: str | None, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    server = {"log_level": "debug", "access_log": True, "api_key": [f"key-{SECRET}"]}
    model = {} if template is None else {"chat_template": template}
    with live(make_engine(server=server, model=model)) as served:
        headers = bearer(f"key-{SECRET}")
        for path, body in requests_with_a_secret():
            response = served.client.post(path, json=body, headers=headers)
            assert response.status_code < 500, (path, body, response.text)
        for content in (SECRET, f'{{"prompt": "{SECRET}', f'{{"prompt": "{SECRET}", "n": }}'):
            json_headers = {**headers, "content-type": "application/json"}
            response = served.client.post(COMPLETIONS, content=content, headers=json_headers)
            assert response.status_code == 400
        served.client.get("/v1/models", headers=bearer(f"wrong-{SECRET}"))
        served.runner.nan_token = served.engine.intake.tokenizer.encode("x")[-1]
        served.client.post(COMPLETIONS, json={"prompt": SECRET + "x"}, headers=headers)
        served.runner.nan_token = None
    told = "\n".join(record.getMessage() + (record.exc_text or "") for record in caplog.records)
    assert len(caplog.records) > 5
    assert SECRET not in told
