"""The fields beyond their own APIs: four endpoints take the same ones, and they mean the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from helpers.fake_service import make_engine
from helpers.live_server import Live, live, ok

from tinyserve.engine.request import EngineRequest
from tinyserve.server.bridge import EngineBridge
from tinyserve.server.dialects.messages.body import MessagesRequest
from tinyserve.server.dialects.responses.body import ResponsesRequest
from tinyserve.server.extensions import Extensions
from tinyserve.server.protocol import ChatRequest, CompletionRequest

USER = {"role": "user", "content": "hello"}
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "hello", "max_tokens": 8},
    "/v1/chat/completions": {"messages": [USER], "max_tokens": 8},
    "/v1/responses": {"input": "hello", "max_output_tokens": 8},
    "/v1/messages": {"messages": [USER], "max_tokens": 8},
}
every_route = pytest.mark.parametrize("path", ROUTES)
NEWER = ("/v1/responses", "/v1/messages")


@pytest.fixture(scope="module")
def served() -> Iterator[Live]:
    with live(make_engine(scheduler={"max_model_len": 256})) as running:
        yield running


@pytest.fixture
def asked(served: Live, monkeypatch: pytest.MonkeyPatch) -> list[EngineRequest]:
    """What the engine is asked."""
    found: list[EngineRequest] = []
    submit = EngineBridge.submit

    def spy(
        bridge: EngineBridge, group: str, requests: Sequence[EngineRequest], *args: Any, **kw: Any
    ) -> None:
        found.extend(requests)
        submit(bridge, group, requests, *args, **kw)

    monkeypatch.setattr(EngineBridge, "submit", spy)
    return found


def text_of(path: str, answer: dict[str, Any]) -> str:
    if path == "/v1/completions":
        text = answer["choices"][0]["text"]
    elif path == "/v1/chat/completions":
        text = answer["choices"][0]["message"]["content"]
    elif path == "/v1/responses":
        text = answer["output"][0]["content"][0]["text"]
    else:
        text = "".join(block["text"] for block in answer["content"])
    assert isinstance(text, str)
    return text


def refused(served: Live, path: str, **body: Any) -> str:
    """The message of the error; the next request works."""
    response = served.post(path, **{**ROUTES[path], **body})
    assert response.status_code == 400, response.text
    ok(served.post(path, **ROUTES[path]))
    message: str = response.json()["error"]["message"]
    return message


def test_all_bodies_declare_the_same_extensions() -> None:
    for body in (CompletionRequest, ChatRequest, ResponsesRequest, MessagesRequest):
        assert Extensions.model_fields.keys() <= body.model_fields.keys()


@every_route
def test_extensions_reach_the_engine(served: Live, asked: list[EngineRequest], path: str) -> None:
    fields: dict[str, Any] = {
        "top_k": 5,
        "min_p": 0.1,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.25,
        "repetition_penalty": 1.5,
        "logit_bias": {"5": 2},
        "seed": 7,
        "stop": ["zz"],
        "stop_token_ids": [9],
        "include_stop_str_in_output": True,
        "min_tokens": 2,
        "ignore_eos": True,
        "allowed_token_ids": [5, 6, 7],
        "bad_words": ["x"],
        "skip_special_tokens": False,
    }
    extra = {"priority": 3, "cache_salt": "s", "speculative": False, "truncate_prompt_tokens": 2}
    ok(served.post(path, **ROUTES[path], **fields, **extra))
    (request,) = asked
    assert (request.priority, request.cache_salt, request.speculative) == (3, "s", False)
    assert len(request.prompt_token_ids) == 2
    for name, value in fields.items():
        got = getattr(request.params, name)
        if name == "logit_bias":
            got, value = dict(got), {5: 2}
        elif isinstance(value, list):
            got, value = tuple(got), tuple(value)
        assert got == value, name


@every_route
def test_drafts_are_on_unless_told_otherwise(
    served: Live, asked: list[EngineRequest], path: str
) -> None:
    ok(served.post(path, **ROUTES[path]))
    ok(served.post(path, **ROUTES[path], speculative=True))
    assert [request.speculative for request in asked] == [True, True]


@every_route
@pytest.mark.parametrize(
    "constraint",
    [
        {"structured_outputs": {"regex": "[ab]{3}c"}},
        {"guided_regex": "[ab]{3}c"},
        {"regex": "[ab]{3}c"},
        {"guided_choice": ["aabc", "bbac"]},
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "n", "schema": {"const": 1234}},
            }
        },
    ],
)
def test_gd_11_constraints_hold_everywhere(
    served: Live, path: str, constraint: dict[str, Any]
) -> None:
    """GD-11: a constraint is never ignored, whichever of its names and endpoints is used."""
    body = {**ROUTES[path], **constraint}
    limit = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    text = text_of(path, ok(served.post(path, **{**body, limit: 40})))
    if "response_format" in constraint:
        assert text == "1234"
    else:
        assert len(text) == 4
        assert text.endswith("c")


@every_route
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("speculative", "false"),
        ("speculative", 0),
        ("priority", 1.5),
        ("priority", 2**40),
        ("cache_salt", ""),
        ("cache_salt", 5),
        ("top_k", "5"),
        ("min_p", 2),
        ("seed", 10**400),
        ("seed", 1.5),
        ("ignore_eos", "yes"),
        ("logit_bias", {"x": 1}),
        ("stop_token_ids", [-1]),
        ("bad_words", [""]),
        ("allowed_token_ids", []),
        ("truncate_prompt_tokens", 0),
        ("stop", [""]),
        ("stop", {"a": 1}),
        ("guided_regex", 5),
        ("structured_outputs", []),
        ("structured_outputs", {"regex": "a", "choice": ["b"]}),
        ("guided_something", "x"),
    ],
)
def test_wrong_values_are_refused_by_name_everywhere(
    served: Live, path: str, field: str, value: Any
) -> None:
    assert field in refused(served, path, **{field: value})


@every_route
@pytest.mark.parametrize("field", Extensions.model_fields)
def test_null_is_the_same_as_nothing(served: Live, path: str, field: str) -> None:
    ok(served.post(path, **ROUTES[path], **{field: None}))


@pytest.mark.parametrize("path", NEWER)
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 2),
        ("n", "1"),
        ("echo", True),
        ("prompt_logprobs", 0),
        ("return_token_ids", True),
        ("return_tokens_as_token_ids", True),
    ],
)
def test_sam_13_what_an_answer_cannot_show_is_refused(
    served: Live, path: str, field: str, value: Any
) -> None:
    """SAM-13: a field works or is refused by name."""
    assert field in refused(served, path, **{field: value})


def test_two_names_of_one_constraint_exclude_each_other(served: Live) -> None:
    given = {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}}
    own = {"format": {"type": "json_schema", "name": "n", "schema": {}}}
    said = refused(served, "/v1/responses", text=own, response_format=given)
    assert said.startswith("text.format")
    said = refused(served, "/v1/messages", output_config=own, response_format=given)
    assert said.startswith("output_config.format")
    said = refused(served, "/v1/messages", stop_sequences=["a"], stop=["b"])
    assert said.startswith("stop")
    said = refused(served, "/v1/responses", response_format={"type": "xml"})
    assert said.startswith("response_format"), "the name that the client has used"


def test_a_long_message_is_cut_only_where_that_is_asked_for(served: Live) -> None:
    path, long = "/v1/messages", [{"role": "user", "content": "word " * 600}]
    assert "too long" in refused(served, path, messages=long)
    for keep, expected in ((50, 50), (-1, 251)):
        body = {"messages": long, "max_tokens": 5, "truncate_prompt_tokens": keep}
        usage = ok(served.post(path, **body))["usage"]
        assert usage["input_tokens"] + usage["cache_read_input_tokens"] == expected
