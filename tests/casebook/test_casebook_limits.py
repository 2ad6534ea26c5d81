"""The casebook on limits: the edge of the context, and texts far beyond it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from helpers.fake_service import make_engine, tokenizer
from helpers.live_server import Live, live, ok

from tinyserve.text import tokenizer as tokenizer_module

PATH = "/v1/completions"
ROOM = 512  # of the fake engine: 128 blocks of 4


@pytest.fixture(scope="module")
def served() -> Iterator[Live]:
    with live(make_engine()) as running:
        yield running


@pytest.mark.parametrize("max_tokens", [0, 1, 2, 15, 16, 17])
@pytest.mark.parametrize("over", [-1, 0, 1])
def test_the_edge_of_the_context(served: Live, max_tokens: int, over: int) -> None:
    """LIM-01, LIM-09: to the token, whatever the block or the step is a multiple of."""
    prompt = [65] * (ROOM - max_tokens + over)
    body: dict[str, Any] = {"max_tokens": max_tokens, "ignore_eos": True, "temperature": 0}
    response = served.post(PATH, prompt=prompt, **body)
    if over <= 0:
        usage = response.json()["usage"]
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (len(prompt), max_tokens)
    else:
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (400, "context_length_exceeded")
        assert str(ROOM) in error["message"]
        assert str(len(prompt)) in error["message"]


@pytest.mark.parametrize(("length", "made"), [(1, 16), (496, 16), (497, 15), (510, 2), (511, 1)])
def test_a_length_that_nobody_named_fits_the_room(served: Live, length: int, made: int) -> None:
    """LIM-01: sixteen tokens by default, fewer where there is no room; each prompt by itself."""
    body: dict[str, Any] = {"ignore_eos": True, "temperature": 0}
    answer = served.complete([[65] * length, [66]], **body)
    assert answer["usage"]["completion_tokens"] == made + 16
    assert [c["finish_reason"] for c in answer["choices"]] == ["length"] * 2
    for named in ({"max_tokens": 16}, {"min_tokens": 16}):
        response = served.post(PATH, prompt=[65] * length, **body, **named)
        assert response.status_code == (200 if made == 16 else 400)
    assert served.post(PATH, prompt=[65] * ROOM, **body).status_code == 400


def test_a_long_text_lets_others_go_on() -> None:
    """CON-12, CON-19, MET-04: one that held the interpreter stopped every stream and /health."""
    text = "hello there, " * 25_000
    ticks, done = [0], threading.Event()

    def tick() -> None:
        while not done.is_set():
            time.sleep(0.0005)
            ticks[0] += 1

    model = tokenizer()
    other = threading.Thread(target=tick)
    other.start()
    try:
        before = ticks[0]
        ids = model.encode(text)
        during = ticks[0] - before
    finally:
        done.set()
        other.join()
    assert during > 5
    assert model.decode(ids) == text


def test_short_and_long_texts_are_encoded_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [
        "",
        "a",
        "the é 日本 😀 <|im_start|>user",
        " \n\t" * 9,
        "<|im_end|>" * 5,
        "é\u0301\x00",
    ]
    expected = [tokenizer().encode(text) for text in texts]
    monkeypatch.setattr(tokenizer_module, "SHORT", -1)
    assert [tokenizer().encode(text) for text in texts] == expected


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/"])
def test_the_list_of_models_with_and_without_a_slash(served: Live, path: str) -> None:
    """CHAT-12"""
    assert served.client.get(path).json()["data"][0]["id"] == "synthetic"


def test_a_slash_at_the_end_is_no_other_place(served: Live) -> None:
    """HTTP-03: nobody is sent elsewhere, which behind a proxy would be another host or scheme."""
    body = {"prompt": "a", "max_tokens": 1}
    for path in ("/v1/completions", "/v1/completions/"):
        assert len(ok(served.post(path, **body))["choices"]) == 1
    for path in ("/health/", "/version/", "/docs/"):
        assert served.client.get(path, follow_redirects=path == "/docs/").status_code == 200
    for path, status in (("/v1/nothing/", 404), ("/v1/completions/", 405)):
        response = served.client.get(path)
        assert response.status_code == status
        assert path in response.json()["error"]["message"]
