"""The page's bytes: which paths, which headers, who may have them."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import httpx
import pytest
from fastapi.testclient import TestClient
from helpers.fake_service import make_engine
from helpers.live_server import Live, live

from tinyserve.config import ServerConfig
from tinyserve.server.app import create_app
from tinyserve.server.web import FILES, PATHS

DIRECTIVES = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self'",
    "connect-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
    "require-trusted-types-for": "'script'",
    "trusted-types": "'none'",
}


class Page(HTMLParser):
    """What index.html refers to, and what a strict policy would not run."""

    def __init__(self) -> None:
        super().__init__()
        self.references: list[str] = []
        self.inline: list[str] = []
        self._in_script = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.inline += [name for name, _ in attrs if name.startswith("on") or name == "style"]
        self.inline += ["style"] if tag == "style" else []
        self._in_script = tag == "script"
        for name, value in attrs:
            if name in ("src", "href") and value and not value.startswith("#"):
                self.references.append(value)

    def handle_data(self, data: str) -> None:
        if self._in_script and data.strip():
            self.inline.append(data)


def parsed() -> Page:
    page = Page()
    page.feed(FILES["/"].read_text(encoding="utf-8"))
    return page


@pytest.mark.parametrize("path", sorted(PATHS))
def test_every_file_has_strict_headers(served: Live, path: str) -> None:
    response = served.client.get(path)
    assert response.status_code == 200
    assert response.content == FILES[path].read_bytes()
    policy = dict(
        d.strip().split(" ", 1) for d in response.headers["content-security-policy"].split(";")
    )
    assert policy == DIRECTIVES
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["referrer-policy"] == "no-referrer"
    kinds = {
        "html": "text/html",
        "css": "text/css",
        "js": "text/javascript",
        "svg": "image/svg+xml",
    }
    kind = kinds[FILES[path].suffix.removeprefix(".")]
    assert response.headers["content-type"].startswith(kind)


@pytest.mark.parametrize("path", ["/", "/web/app.js"])
def test_head_answers_like_get_without_the_body(served: Live, path: str) -> None:
    whole, head = served.client.get(path), served.client.head(path)
    assert head.status_code == 200
    assert head.content == b""
    different = {"date", "x-request-id"}
    kept = lambda headers: {k: v for k, v in headers.items() if k not in different}  # noqa: E731
    assert kept(head.headers) == kept(whole.headers)


def test_what_the_browser_has_is_not_sent_again(served: Live) -> None:
    first = served.client.get("/web/style.css")
    assert first.headers["cache-control"] == "no-cache"
    tag = first.headers["etag"]
    for wanted in (tag, f'"other", W/{tag}', "*"):
        again = served.client.get("/web/style.css", headers={"if-none-match": wanted})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["etag"] == tag
    other = served.client.get("/web/style.css", headers={"if-none-match": '"other"'})
    assert other.content == first.content


def test_the_page_refers_to_its_own_files_and_to_nothing_else() -> None:
    page = parsed()
    assert page.references
    assert {"/" + reference for reference in page.references} <= PATHS
    assert not page.inline
    scripts = {path for path in PATHS if path.endswith(".js")}
    assert scripts <= {"/" + reference for reference in page.references}, "preload them all"
    imported = {
        f"/web/{name}"
        for file in FILES.values()
        if file.suffix == ".js"
        for name in re.findall(r'from "\./([\w.]+)"', file.read_text(encoding="utf-8"))
    }
    assert (
        imported | {"/", "/web/style.css", "/web/icon.svg", "/web/app.js", "/web/theme.js"} == PATHS
    )


@pytest.mark.parametrize("path", sorted(PATHS))
def test_no_string_becomes_markup_and_nothing_is_loaded_from_elsewhere(path: str) -> None:
    text = FILES[path].read_text(encoding="utf-8")
    sinks = ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function(")
    assert not [sink for sink in (*sinks, "setHTMLUnsafe", "@import") if sink in text]
    addresses = set(re.findall(r"https?://[\w.]+", text))
    assert addresses <= {"http://www.w3.org"}  # a namespace


def test_the_page_needs_no_key_and_its_data_does() -> None:
    with live(make_engine(server={"api_key": ["secret"]})) as running:
        for path in PATHS:
            assert running.client.get(path).status_code == 200
            assert running.client.head(path).status_code == 200
        closed = (
            "/engine/state",
            "/v1/models",
            "/web",
            "/web/",
            "/web/__init__.py",
            "/web/../v1/models",
        )
        for path in (
            *closed,
            "/web/app.js/",
            "/web//app.js",
            "/web/%2e%2e/v1/models",
            "/web/app.js%00",
        ):
            assert running.client.get(path).status_code == 401, path


@pytest.mark.parametrize("path", ["/web/__init__.py", "/web/../__init__.py", "/web/", "/web/x.js"])
def test_nothing_beside_the_files_is_served(served: Live, path: str) -> None:
    response = served.client.get(path)
    assert response.status_code == 404
    assert response.json()["error"]["type"] == "not_found_error"


def test_other_methods_are_refused(served: Live) -> None:
    assert served.client.post("/", json={}).status_code == 405


def test_the_page_is_there_while_the_model_loads_and_can_be_turned_off() -> None:
    with TestClient(create_app(config=ServerConfig())) as client:
        assert client.get("/").status_code == 200
        assert client.get("/health").status_code == 503
    with TestClient(create_app(config=ServerConfig(web_page=False))) as client:
        assert {client.get(path).status_code for path in PATHS} == {404}


def test_the_page_is_no_part_of_the_api(served: Live) -> None:
    described: httpx.Response = served.client.get("/openapi.json")
    assert not PATHS & set(described.json()["paths"])
