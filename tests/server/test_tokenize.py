"""`/tokenize`, `/detokenize`, rendered prompts, and what the server says of itself."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest
from helpers.fake_service import make_engine, tokenizer
from helpers.live_server import Live, live, ok
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tinyserve
from tinyserve.server.openapi.page import reference_page

HELLO = [{"role": "user", "content": "hello"}]


def refused(served: Live, path: str, status: int = 400, **body: Any) -> dict[str, Any]:
    response = served.post(path, **body)
    assert response.status_code == status, response.text
    served.complete(max_tokens=1)
    error: dict[str, Any] = response.json()["error"]
    return error


def test_tokens_of_a_prompt(served: Live) -> None:
    ids = tokenizer().encode("hello 😀")
    for path in ("/tokenize", "/v1/tokenize"):
        answer = ok(served.post(path, prompt="hello 😀"))
        assert answer == {
            "count": len(ids), "max_model_len": 512, "tokens": ids, "token_strs": None,
        }  # fmt: skip
    answer = ok(served.post("/tokenize", prompt="hello", return_token_strs=True))
    assert "".join(answer["token_strs"]) == "hello"
    answer = ok(served.post("/tokenize", prompt="a😀", return_token_strs=True))  # LOG-04
    parts = ["bytes:\\xf0", "bytes:\\x9f", "bytes:\\x98", "bytes:\\x80"]
    assert answer["token_strs"] == ["a", *parts]
    assert ok(served.post("/tokenize", prompt=""))["count"] == 0


def test_load_09_special_tokens() -> None:
    """LOAD-09: special text is read as special tokens; BOS is added unless it is not wanted."""
    text = "<|im_start|>x"
    with live(make_engine()) as served:
        bare = ok(served.post("/tokenize", prompt=text, add_special_tokens=False))["tokens"]
        assert bare == tokenizer().encode(text, add_special_tokens=False)
        assert bare[0] == tokenizer().special_id("<|im_start|>")
        full = ok(served.post("/tokenize", prompt=text))["tokens"]
        assert full == tokenizer().encode(text)
        assert ok(served.post("/detokenize", tokens=bare))["prompt"] == text


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(st.characters(codec="utf-8"), max_size=40))
def test_detokenized_tokens_are_the_text(served: Live, text: str) -> None:
    tokens = ok(served.post("/tokenize", prompt=text, add_special_tokens=False))["tokens"]
    assert ok(served.post("/detokenize", tokens=tokens)) == {"prompt": text}
    again = ok(served.post("/v1/tokenize", prompt=text, add_special_tokens=False))["tokens"]
    assert again == tokens


def test_tokens_of_a_conversation(served: Live) -> None:
    answer = ok(served.post("/tokenize", messages=HELLO))
    usage = ok(served.post("/v1/chat/completions", messages=HELLO, max_tokens=1))["usage"]
    assert answer["count"] == len(answer["tokens"]) == usage["prompt_tokens"]
    shorter = ok(served.post("/tokenize", messages=HELLO, add_generation_prompt=False))
    assert shorter["tokens"] == answer["tokens"][: shorter["count"]]
    assert shorter["count"] < answer["count"]
    function = {"name": "f", "parameters": {"type": "object"}}
    tools = [{"type": "function", "function": function}]
    assert ok(served.post("/tokenize", messages=HELLO, tools=tools))["count"] > answer["count"]


@pytest.mark.parametrize("path", ["/v1/chat/completions/render", "/apply-template"])
def test_rendered_prompts(served: Live, path: str) -> None:
    answer = ok(served.post(path, messages=HELLO, temperature=0.5))
    assert answer["prompt"] == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    assert answer["tokens"] == ok(served.post("/tokenize", messages=HELLO))["tokens"]
    messages = [*HELLO, {"role": "assistant", "content": "It is"}]
    answer = ok(served.post(path, messages=messages, continue_final_message=True))
    assert answer["prompt"].endswith("<|im_start|>assistant\nIt is")
    assert refused(served, path, messages=[])["param"] == "messages"


@pytest.mark.parametrize("keep", [3, -1])
def test_rendered_prompts_are_cut_where_the_model_would_see_them_cut(
    served: Live, keep: int
) -> None:
    room = served.state.ready()[0].room
    messages = [{"role": "user", "content": "a b " * room}]
    body = {"messages": messages, "truncate_prompt_tokens": keep, "max_tokens": 2}
    rendered = ok(served.post("/apply-template", **body))
    answer = ok(served.post("/v1/chat/completions", **body, return_token_ids=True))
    assert rendered["tokens"] == answer["prompt_token_ids"]
    assert rendered["count"] == (3 if keep == 3 else room - 2)
    body["truncate_prompt_tokens"] = 0
    assert refused(served, "/apply-template", **body)["param"] == "truncate_prompt_tokens"


@pytest.mark.parametrize("length", [7, 10**6])
def test_rendered_prompts_leave_room_for_the_models_own_length_of_answers(length: int) -> None:
    """Where the model names one for conversations, and the request does not; at most half."""
    engine = make_engine()
    intake = dataclasses.replace(engine.intake, chat_max_tokens=length)
    with live(dataclasses.replace(engine, intake=intake)) as served:
        messages = [{"role": "user", "content": "a b " * 512}]
        body = {"messages": messages, "truncate_prompt_tokens": -1}
        rendered = ok(served.post("/apply-template", **body))
        answer = ok(served.post("/v1/chat/completions", **body, return_token_ids=True))
        assert rendered["tokens"] == answer["prompt_token_ids"]
        room = served.state.ready()[0].room
        assert rendered["count"] == room - min(length, room // 2)


@pytest.mark.parametrize(
    ("tokens", "param"),
    [
        ([0, 10**7], "tokens[1]"),
        ([-1], "tokens[0]"),
        ([512], "tokens[0]"),
        ([10**30], "tokens[0]"),
        ([1, "a"], "tokens[1]"),
        ([1.5], "tokens[0]"),
        ([True], "tokens[0]"),
        ([None], "tokens[0]"),
        ([[1]], "tokens[0]"),
        ("x", "tokens"),
        (None, "tokens"),
    ],
)
def test_lim_04_what_is_no_token_is_refused(served: Live, tokens: Any, param: str) -> None:
    """LIM-04: both bounds and the type of every id."""
    error = refused(served, "/detokenize", tokens=tokens)
    assert error["param"] == param
    assert ok(served.post("/detokenize", tokens=[])) == {"prompt": ""}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": "x", "messages": HELLO}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": ["x"]}, "prompt"),
        ({"prompt": "x", "add_special_tokens": "yes"}, "add_special_tokens"),
        ({"prompt": "x", "return_token_strs": 1}, "return_token_strs"),
        ({"messages": "x"}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": HELLO, "add_special_tokens": 1}, "add_special_tokens"),
        ({"messages": HELLO, "tools": [5]}, "tools[0]"),
        ({"messages": HELLO, "chat_template_kwargs": {"tools": []}}, "chat_template_kwargs"),
        ({"messages": HELLO, "chat_template": "{{ 1 }}"}, "chat_template"),
        ({"messages": HELLO, "reasoning_effort": 5}, "reasoning_effort"),
    ],
)
def test_lim_05_what_is_wrong_is_named(served: Live, body: dict[str, Any], param: str) -> None:
    """LIM-05: wrong types are refused by their path."""
    assert refused(served, "/tokenize", **body)["param"] == param


def test_unknown_models_are_404(served: Live) -> None:
    for path, body in (
        ("/tokenize", {"prompt": "x"}),
        ("/detokenize", {"tokens": [1]}),
        ("/apply-template", {"messages": HELLO}),
    ):
        assert refused(served, path, 404, model="x", **body)["code"] == "model_not_found"
        ok(served.post(path, model="tinyserve", **body))


def test_version_ping_and_load(served: Live) -> None:
    assert served.client.get("/version").json() == {"version": tinyserve.__version__}
    for response in (served.client.get("/ping"), served.client.post("/ping")):
        assert response.status_code == 200
    assert served.client.get("/load").json() == {"server_load": 0}
    served.runner.gate.clear()
    served.open({"prompt": "x", "max_tokens": 1, "stream": True})
    while not served.client.get("/load").json()["server_load"]:
        pass
    assert served.client.get("/load").json() == {"server_load": 1}
    served.runner.gate.set()


def test_the_openapi_document_has_every_body(served: Live) -> None:
    document = served.client.get("/openapi.json").json()
    for path, item in document["paths"].items():
        if "post" in item:
            content = item["post"]["requestBody"]["content"]["application/json"]
            assert content["schema"]["properties"], path
            assert "$ref" not in str(content["schema"]), path
    for path in ("/v1/responses", "/v1/messages", "/v1/messages/count_tokens", "/tokenize",
                 "/detokenize", "/version", "/ping", "/load", "/apply-template"):  # fmt: skip
        assert path in document["paths"]


def test_the_reference_shows_every_endpoint_and_loads_nothing(served: Live) -> None:
    """Without a network, too: it once was blank there."""
    document = served.client.get("/openapi.json").json()
    for path in ("/docs", "/docs/"):
        response = served.client.get(path)
        assert response.headers["content-type"].startswith("text/html")
        assert response.headers["content-security-policy"].startswith("default-src 'none'")
        assert not re.search(r"<script|src=|@import|url\(|<link", response.text)
        assert re.findall(r'href="([^"]*)"', response.text) == ["/openapi.json"]
        for endpoint in document["paths"]:
            assert f"<code>{endpoint}</code></summary>" in response.text
    assert "<code>truncate_prompt_tokens</code></td><td>integer, -1 to 2147483647" in response.text
    assert "<code>messages</code></td><td>list of object of role, content" in response.text
    assert "<code>stop</code></td><td>string or list of string, optional" in response.text
    assert "how many requests are under way" in response.text.lower()


def test_a_reference_escapes_what_it_shows() -> None:
    told = {"description": "`a<b`", "responses": {"200": {"content": {}}}}
    document = {"info": {"title": "<t>", "version": "&"}, "paths": {"/<x>": {"get": told}}}
    page = reference_page(document, '/">')
    assert "<h1>&lt;t&gt; &amp;</h1>" in page
    assert "<code>/&lt;x&gt;</code>" in page
    assert "<p><code>a&lt;b</code></p>" in page
    assert 'href="/&quot;&gt;"' in page


def test_the_documentation_works_in_a_browser_where_a_key_is_set() -> None:
    """A browser sends no bearer token: the key is the password it asks for, on these pages only."""
    with live(make_engine(server={"api_key": ["k"]})) as served:
        get = served.client.get
        for path in ("/docs", "/openapi.json"):
            refused = get(path)
            assert refused.status_code == 401
            assert refused.headers["www-authenticate"].startswith("Basic realm=")
            assert get(path, auth=("me", "k")).status_code == 200
            assert get(path, auth=("k", "")).status_code == 401
            for value in ("Basic k", "Basic", "Basic !", "basic OmtrOms="):
                assert get(path, headers={"authorization": value}).status_code == 401, value
            assert get(path, headers={"authorization": "Bearer k"}).status_code == 200
        assert get("/v1/models", auth=("me", "k")).status_code == 401
        assert get("/v1/models").headers["www-authenticate"] == "Bearer"
        document = get("/openapi.json", auth=("me", "k")).json()
        assert {"bearer": []} in document["security"]
        assert document["paths"]["/health"]["get"]["security"] == []
        assert "security" not in document["paths"]["/v1/messages"]["post"]


def test_tokenizer_info_is_what_harnesses_ask_for(served: Live) -> None:
    told = ok(served.client.get("/tokenizer_info"))
    own = tokenizer()
    assert told["eos_token"] == own.special_tokens["eos_token"]
    assert told["vocab_size"] == own.vocab_size
    assert told["model_max_length"] == 512
    assert "messages" in told["chat_template"]
    ids = ok(served.post("/tokenize", prompt=told["eos_token"], add_special_tokens=False))
    assert ids["tokens"] == [own.eos_token_id]
