"""Calls in every notation through the server: whole and streamed, free and demanded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from helpers.chat_streams import accumulate
from helpers.fake_service import make_engine
from helpers.live_server import Live, live, ok

PATH = "/v1/chat/completions"
USER = {"role": "user", "content": "hello"}
WEATHER = {
    "name": "get_weather",
    "parameters": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "exact": {"type": "boolean"},
        },
        "required": ["city"],
    },
}
TOOLS = [
    {"type": "function", "function": WEATHER},
    {"type": "function", "function": {"name": "now"}},
]
ARGUMENTS = {"city": 'Saint "É" 😀', "days": 3, "exact": True}
WRITTEN = {
    "qwen3_coder": (
        "<tool_call>\n<function=get_weather>\n<parameter=city>\n"
        'Saint "É" 😀\n</parameter>\n<parameter=days>\n3\n</parameter>\n'
        "<parameter=exact>\nTrue\n</parameter>\n</function>\n</tool_call>"
        "\n<tool_call>\n<function=now>\n</function>\n</tool_call>"
    ),
    "pythonic": "[get_weather(city='Saint \"É\" 😀', days=3, exact=True), now()]",
}


@pytest.fixture(scope="module", params=WRITTEN)
def served(request: pytest.FixtureRequest) -> Iterator[Live]:
    engine = make_engine(
        model={"tool_call_parser": request.param},
        scheduler={"max_model_len": 2048},
        cache={"num_blocks": 2048, "block_size": 8},
    )
    with live(engine) as running:
        running.runner.says(WRITTEN[request.param])
        yield running


def calls_of(message: dict[str, Any]) -> list[tuple[str, Any]]:
    return [
        (call["function"]["name"], json.loads(call["function"]["arguments"]))
        for call in message["tool_calls"]
    ]


def test_calls_whole_and_streamed(served: Live) -> None:
    body: dict[str, Any] = {"messages": [USER], "tools": TOOLS}
    (choice,) = ok(served.post(PATH, **body))["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    assert calls_of(choice["message"]) == [("get_weather", ARGUMENTS), ("now", {})]
    (streamed,) = accumulate(served.stream(PATH, **body))
    assert calls_of(streamed["message"]) == calls_of(choice["message"])
    assert streamed["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("name", ["get_weather", "now"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_is_demanded_by_name(served: Live, name: str, n: int, stream: bool) -> None:
    choice = {"type": "function", "function": {"name": name}}
    body: dict[str, Any] = {"messages": [USER], "tools": TOOLS, "tool_choice": choice, "n": n}
    if stream:
        choices = accumulate(served.stream(PATH, **body), n)
    else:
        choices = ok(served.post(PATH, **body))["choices"]
    assert len(choices) == n
    for made in choices:
        [(called, arguments)] = calls_of(made["message"])
        assert called == name
        assert ("city" in arguments) == (name == "get_weather")


def test_other_protocols_say_the_same(served: Live) -> None:
    flat = [{"type": "function", **tool["function"]} for tool in TOOLS]  # type: ignore[dict-item]
    answer = ok(served.post("/v1/responses", input="hello", tools=flat))
    found = [(i["name"], json.loads(i["arguments"])) for i in answer["output"]]
    assert found == [("get_weather", ARGUMENTS), ("now", {})]
    tools = [
        {"name": "get_weather", "input_schema": WEATHER["parameters"]},
        {"name": "now", "input_schema": {"type": "object"}},
    ]
    answer = ok(served.post("/v1/messages", messages=[USER], tools=tools, max_tokens=500))
    assert [(b["name"], b["input"]) for b in answer["content"]] == found
    assert answer["stop_reason"] == "tool_use"


def test_logprobs_and_ids_of_calls_add_up(served: Live) -> None:
    """LOG-11: every token has its logprob, whichever part it went into."""
    body = {"messages": [USER], "tools": TOOLS, "logprobs": True, "return_token_ids": True}
    answer = ok(served.post(PATH, **body))
    (choice,) = answer["choices"]
    assert len(choice["logprobs"]["content"]) == answer["usage"]["completion_tokens"]
    assert len(choice["token_ids"]) == answer["usage"]["completion_tokens"]


@pytest.mark.parametrize("arguments", ['{"a":', '"', "[1]", "5", "", " ", '{"city": "\\ud83d"}'])
def test_tool_05_what_a_model_wrote_may_come_back(served: Live, arguments: str) -> None:
    """TOOL-05: also half of a character, which no text can hold."""
    call = {"id": "c", "type": "function", "function": {"name": "now", "arguments": arguments}}
    messages = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "ok"},
    ]
    ok(served.post(PATH, messages=messages, tools=TOOLS, max_tokens=1))


def test_errors_name_the_fields_of_a_chat(served: Live) -> None:
    """LIM-01: the prompt is `messages`, and a limit has the name that it was given by."""
    long = [{"role": "user", "content": "word " * 3000}]
    for body, param in (
        ({"messages": long}, "messages"),
        ({"messages": [USER], "max_tokens": 5000}, "max_tokens"),
        ({"messages": [USER], "max_completion_tokens": 5000}, "max_completion_tokens"),
        ({"messages": [USER], "max_completion_tokens": -1}, "max_completion_tokens"),
    ):
        response = served.post(PATH, **body)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == param
