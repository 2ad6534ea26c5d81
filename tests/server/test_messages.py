"""`/v1/messages` whole: what goes in, what comes out, what is refused; the official client."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from anthropic.types import Message, MessageTokensCount
from helpers.fake_service import make_engine
from helpers.live_server import Live, live, ok, wait_for
from helpers.official import named_events, strictly

from tinyserve.server.said_once import SaidOnce

PATH = "/v1/messages"
HELLO = [{"role": "user", "content": "hello"}]
WEATHER = {
    "name": "get_weather",
    "description": "Weather of a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'


@pytest.fixture(scope="module")
def shared_server() -> Iterator[Live]:
    engine = make_engine(
        scheduler={"max_model_len": 2048, "max_num_batched_tokens": 512},
        cache={"num_blocks": 1024, "block_size": 8},
        model={"reasoning_parser": "qwen3"},
        server={"served_model_name": ["small", "claude-local"]},
    )
    with live(engine) as running:
        yield running


@pytest.fixture
def client(served: Live) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=served.base_url, api_key="none", max_retries=0) as made:
        yield made


def message(served: Live, messages: Any = HELLO, **body: Any) -> dict[str, Any]:
    answer = ok(served.post(PATH, **{"messages": messages, "max_tokens": 500, **body}))
    strictly(Message, answer)
    return answer


def refused(served: Live, status: int = 400, **body: Any) -> dict[str, Any]:
    """The same error whole and streamed, in Anthropic's shape, and the next request works."""
    body = {"messages": HELLO, "max_tokens": 5, **body}
    errors = []
    for stream in (False, True):
        response = served.post(PATH, **{"stream": stream, **body})
        assert response.status_code == status, response.text
        told = response.json()
        assert set(told) == {"type", "error"}
        assert told["type"] == "error"
        assert set(told["error"]) == {"type", "message"}
        errors.append(told["error"])
    assert errors[0] == errors[1]
    message(served, max_tokens=1)
    return errors[0]


def count(served: Live, messages: Any = HELLO, **body: Any) -> int:
    answer = ok(served.post(f"{PATH}/count_tokens", messages=messages, **body))
    strictly(MessageTokensCount, answer)
    tokens: int = answer["input_tokens"]
    return tokens


def chat_tokens(served: Live, messages: list[dict[str, Any]], **body: Any) -> int:
    answer = ok(served.post("/v1/chat/completions", messages=messages, max_tokens=1, **body))
    tokens: int = answer["usage"]["prompt_tokens"]
    return tokens


def test_shape_of_an_answer(served: Live) -> None:
    served.runner.says("well then")
    answer = message(served, model="small")
    assert answer["id"].startswith("msg_")
    assert answer["content"] == [{"type": "text", "text": "well then"}]
    assert (answer["role"], answer["model"]) == ("assistant", "small")
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("end_turn", None)
    assert answer["usage"]["output_tokens"] == 6
    assert answer["usage"]["input_tokens"] == count(served)


def test_the_official_client(served: Live, client: anthropic.Anthropic) -> None:
    served.runner.says("well then 😀")
    common: dict[str, Any] = {"model": "claude-local", "max_tokens": 50, "messages": HELLO}
    answer = client.messages.create(
        **common, system="Be brief", extra_body={"temperature": 0.5, "top_k": 3}
    )
    assert answer.content[0].type == "text"
    assert answer.content[0].text == "well then 😀"
    with client.messages.stream(**common) as stream:
        assert "".join(stream.text_stream) == "well then 😀"
        assert stream.get_final_message().stop_reason == "end_turn"
    counted = client.messages.count_tokens(model="small", messages=HELLO)  # type: ignore[arg-type]
    assert counted.input_tokens == count(served)
    beta = client.beta.messages.create(**common, betas=["interleaved-thinking-2025-05-14"])
    assert beta.stop_reason == "end_turn"
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(**{**common, "model": "claude-of-elsewhere"})
    with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
        client.messages.create(**{**common, "max_tokens": -1})


def test_cached_tokens_count_apart(served: Live) -> None:
    total = count(served)
    first, second = (message(served, max_tokens=1)["usage"] for _ in range(2))
    assert (first["input_tokens"], first["cache_read_input_tokens"]) == (total, 0)
    assert second["cache_read_input_tokens"] > 0
    assert second["input_tokens"] + second["cache_read_input_tokens"] == total


def test_no_tokens_warm_the_prefix_cache(served: Live, client: anthropic.Anthropic) -> None:
    """max_tokens 0, which the API's clients document, computes the prompt and shows no answer."""
    served.runner.says("well then")
    total = count(served)
    warming: dict[str, Any] = {"model": "small", "max_tokens": 0, "messages": HELLO}
    answer = client.messages.create(**warming)
    assert (answer.content, answer.stop_reason) == ([], "max_tokens")
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (total, 0)
    with client.messages.stream(**warming) as stream:
        again = stream.get_final_message()
    assert (again.content, again.stop_reason) == ([], "max_tokens")
    assert again.usage.cache_read_input_tokens
    assert again.usage.output_tokens == 0


def test_stop_reasons_are_those_of_the_api(served: Live) -> None:
    served.runner.says("one two three")
    cut = message(served, max_tokens=2)
    assert (cut["stop_reason"], cut["usage"]["output_tokens"]) == ("max_tokens", 2)
    stopped = message(served, stop_sequences=["three", "two"])
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", "two")
    assert stopped["content"][0]["text"] == "one "
    served.runner.says(f"Let me see.\n{CALL}")
    called = message(served, tools=[WEATHER])
    assert called["stop_reason"] == "tool_use"
    assert called["content"][1]["input"] == {"city": "Paris"}
    assert message(served, tools=[WEATHER], max_tokens=30)["stop_reason"] == "max_tokens"
    assert [b["type"] for b in message(served, tools=[WEATHER])["content"]] == ["text", "tool_use"]


def test_an_empty_answer_has_no_content(served: Live) -> None:
    served.runner.says("")
    assert message(served)["content"] == []


def test_max_tokens_beyond_the_context_means_the_room() -> None:
    """Clients set max_tokens for models of another size; the answer tells when the room is used."""
    with live(make_engine(scheduler={"max_model_len": 64})) as served:
        answer = message(served, max_tokens=64_000, ignore_eos=True)
        assert answer["stop_reason"] == "model_context_window_exceeded"
        assert answer["usage"]["output_tokens"] == 64 - count(served)
        served.runner.says("short")
        assert message(served, max_tokens=64_000)["stop_reason"] == "end_turn"


def test_lim_12_prompts_are_never_cut(served: Live) -> None:
    """LIM-12: too long is refused, in the words that make Claude Code shorten its conversation."""
    error = refused(served, messages=[{"role": "user", "content": "word " * 3000}])
    assert error["type"] == "invalid_request_error"
    assert error["message"].startswith("prompt is too long: ")
    assert "> 2047 maximum" in error["message"]


def test_blocks_read_like_a_chat(served: Live) -> None:
    content = [{"type": "text", "text": "one", "cache_control": {"type": "ephemeral"}},
               {"type": "text", "text": "two"}]  # fmt: skip
    messages = [{"role": "user", "content": content}, {"role": "user", "content": "three"}]
    system = [{"type": "text", "text": "Be"}, {"type": "text", "text": "kind"}]
    expected = chat_tokens(
        served,
        [
            {"role": "system", "content": "Be\n\nkind"},
            {"role": "user", "content": "one\ntwo\nthree"},
        ],
    )
    assert count(served, messages, system=system) == expected
    assert (
        message(served, messages, system=system, max_tokens=1)["usage"]["input_tokens"] <= expected
    )


def test_claude_codes_billing_line_does_not_spoil_the_prefix_cache(served: Live) -> None:
    line = {"type": "text", "text": "x-anthropic-billing-header: cc_version=1; cch=abcde;"}
    rules = {"type": "text", "text": "Be kind"}
    assert count(served, system=[line, rules]) == count(served, system="Be kind")


def test_a_turn_with_tools_may_be_sent_back_as_it_came(served: Live) -> None:
    served.runner.says(f"<think>hm</think>\n\nLet me see.\n{CALL}\n{CALL}")
    answer = message(served, tools=[WEATHER])
    thinking, text, first, second = answer["content"]
    assert (thinking["type"], thinking["thinking"]) == ("thinking", "hm")
    assert thinking["signature"]  # without one, clients send thinking back as text, or not at all
    assert text["text"] == "Let me see."
    assert first["id"] != second["id"]
    usage = answer["usage"]
    assert 0 < usage["output_tokens_details"]["thinking_tokens"] < usage["output_tokens"] / 2
    results = [
        {"type": "tool_result", "tool_use_id": first["id"], "content": "sunny"},
        {"type": "tool_result", "tool_use_id": second["id"], "is_error": True,
         "content": [{"type": "text", "text": "broken"}]},
        {"type": "text", "text": "go on"},
    ]  # fmt: skip
    history = [
        *HELLO,
        {"role": "assistant", "content": answer["content"]},
        {"role": "user", "content": results},
    ]
    function = {"name": "get_weather", "arguments": '{"city":"Paris"}'}
    calls = [{"id": c["id"], "type": "function", "function": function} for c in (first, second)]
    messages = [
        *HELLO,
        {"role": "assistant", "content": "Let me see.", "reasoning_content": "hm",
         "tool_calls": calls},
        {"role": "tool", "tool_call_id": first["id"], "content": "sunny"},
        {"role": "tool", "tool_call_id": second["id"], "content": "broken"},
        {"role": "user", "content": "go on"},
    ]  # fmt: skip
    chat_function = {**WEATHER, "parameters": WEATHER["input_schema"]}
    del chat_function["input_schema"]
    chat_tool = {"type": "function", "function": chat_function}
    expected = chat_tokens(served, messages, tools=[chat_tool])
    assert count(served, history, tools=[WEATHER]) == expected


def test_blocks_of_hosted_tools_are_left_out(served: Live) -> None:
    """As a conversation begun at another server holds them."""
    hosted = [
        {"type": "mcp_tool_use", "id": "m", "name": "x", "server_name": "s", "input": {}},
        {"type": "mcp_tool_result", "tool_use_id": "m", "content": []},
        {"type": "mcp_tool_listing", "server_name": "s", "tools": []},
        {"type": "advisor_tool_result", "tool_use_id": "a", "content": {}},
        {"type": "fallback", "from": {"model": "a"}, "to": {"model": "b"}},
    ]
    said = {"type": "text", "text": "well"}

    def tokens(*blocks: dict[str, Any]) -> int:
        return count(served, [*HELLO, {"role": "assistant", "content": list(blocks)}, *HELLO])

    assert tokens(*hosted, said) == tokens(said)


def test_tool_choice_none_shows_no_tools(served: Live) -> None:
    served.runner.says(CALL)
    choice = {"type": "none"}
    assert count(served, tools=[WEATHER], tool_choice=choice) == count(served)
    answer = message(served, tools=[WEATHER], tool_choice=choice)
    assert answer["content"] == [{"type": "text", "text": CALL}]
    assert count(served, tools=[WEATHER]) > count(served)


def test_parallel_calls_can_be_disabled(served: Live) -> None:
    served.runner.says(f"{CALL}\n{CALL}")
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    assert len(message(served, tools=[WEATHER])["content"]) == 2
    assert len(message(served, tools=[WEATHER], tool_choice=choice)["content"]) == 1


def test_a_call_that_a_stop_sequence_cuts(served: Live) -> None:
    """TOOL-01."""
    served.runner.says(CALL)
    answer = message(served, tools=[WEATHER], stop_sequences=["ri"])
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", "ri")
    answer = message(served, tools=[WEATHER], stop_sequences=["</tool_call>"])
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("tool_use", None)


STRICT = {
    "name": "get_weather",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"enum": ["Paris"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "get_weather"}])
def test_calls_can_be_demanded(plain: Live, choice: dict[str, Any]) -> None:
    choice = {**choice, "disable_parallel_tool_use": True}
    answer = message(plain, tools=[STRICT], tool_choice=choice)
    assert answer["stop_reason"] == "tool_use"
    (block,) = answer["content"]
    assert (block["name"], block["input"]) == ("get_weather", {"city": "Paris"})


def test_structured_output(plain: Live) -> None:
    schema = {"enum": ["yes"]}
    config = {"effort": "low", "format": {"type": "json_schema", "schema": schema}}
    assert message(plain, output_config=config)["content"][0]["text"] == '"yes"'
    assert message(plain, output_format=config["format"])["content"][0]["text"] == '"yes"'
    config["format"] = {"type": "json_schema", "schema": {"type": "nonsense"}}
    error = refused(plain, output_config=config)
    assert error["message"].startswith("output_config.format: ")


def test_the_last_turn_of_the_assistant_is_continued(served: Live) -> None:
    served.runner.says(" B")
    messages = [*HELLO, {"role": "assistant", "content": "It is"}]
    answer = message(served, messages)
    assert answer["content"] == [{"type": "text", "text": " B"}]
    chat = ok(
        served.post(
            "/v1/chat/completions", messages=messages, continue_final_message=True, max_tokens=1
        )
    )
    assert count(served, messages) == chat["usage"]["prompt_tokens"]


def test_thinking_reaches_the_template() -> None:
    template = "{% if enable_thinking %}long prompt{% else %}x{% endif %}"
    with live(make_engine(model={"chat_template": template})) as served:
        enabled = {"type": "enabled", "budget_tokens": 1024}
        on, adaptive, off, unset = (
            count(served, thinking=thinking)
            for thinking in (enabled, {"type": "adaptive"}, {"type": "disabled"}, None)
        )
        assert on == adaptive > off == unset
        assert message(served, thinking=enabled, max_tokens=1)["usage"]["input_tokens"] == on


def test_documents_and_search_results_are_text(served: Live) -> None:
    blocks = [
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "a"}},
        {"type": "document", "source": {"type": "content", "content": "b"}},
        {"type": "search_result", "title": "c", "source": "d",
         "content": [{"type": "text", "text": "e"}]},
    ]  # fmt: skip
    plain = [{"role": "user", "content": "a\nb\nc\nd\ne"}]
    assert count(served, [{"role": "user", "content": blocks}]) == count(served, plain)


def test_what_claude_code_sends(served: Live, caplog: pytest.LogCaptureFixture) -> None:
    """System blocks, betas in the query, tools of all kinds, cache marks and metadata."""
    served.runner.says("done")
    cached = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    body = {
        "model": "claude-local",
        "max_tokens": 32000,
        "stream": True,
        "system": [{"type": "text", "text": "secret rules", **cached}],
        "metadata": {"user_id": "user_1_session_2"},
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": []},
        "output_config": {"effort": "medium"},
        "tools": [
            {**WEATHER, **cached, "eager_input_streaming": True},
            {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
            {"type": "custom", "name": "Bash", "input_schema": {"type": "object"}},
        ],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "<system-reminder>"}]},
            {"role": "assistant", "content": [
                {"type": "redacted_thinking", "data": "x"},
                {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
                {"type": "web_search_tool_result", "tool_use_id": "s", "content": []},
                {"type": "tool_use", "id": "t", "name": "Bash", "input": {"command": "ls"}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "t", **cached},
                {"type": "text", "text": "go on"},
            ]},
            {"role": "system", "content": "a late instruction"},
            {"role": "user", "content": "now"},
        ],
    }  # fmt: skip
    headers = {
        "x-api-key": "k",
        "anthropic-version": "2023-06-01",
        "anthropic-beta": "claude-code-20250219,context-1m-2025-08-07",
        "user-agent": "claude-cli/2.0",
    }
    assert served.state.service is not None
    served.state.service.said_once = SaidOnce()
    with caplog.at_level(logging.INFO, logger="tinyserve.server"):
        response = served.client.post(f"{PATH}?beta=true", json=body, headers=headers)
        counted = dict(body)
        for name in ("max_tokens", "stream", "metadata"):
            del counted[name]
        counts = served.client.post(f"{PATH}/count_tokens?beta=true", json=counted, headers=headers)
    assert response.status_code == 200, response.text
    events = named_events(response.text)
    usage = events[0]["message"]["usage"]
    assert counts.json()["input_tokens"] == usage["input_tokens"] + usage["cache_read_input_tokens"]
    assert events[-2]["delta"]["stop_reason"] == "end_turn"
    assert "'web_search_20250305'" in caplog.text
    assert "secret" not in caplog.text
    assert "session" not in caplog.text


@pytest.mark.parametrize("before", [[], [{"role": "assistant", "content": "yes?"}]])
def test_instructions_may_come_last(served: Live, before: list[Any]) -> None:
    """Claude Code 2.1 tells of its agents in a system message after the user's first."""
    served.runner.says("done")
    messages = [*HELLO, *before, {"role": "system", "content": "use the agents"}]
    assert message(served, messages)["content"] == [{"type": "text", "text": "done"}]
    assert count(served, messages) == chat_tokens(served, messages)
    error = refused(served, messages=messages[-1:])
    assert error["message"] == "messages must hold something to answer"


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"temperature": 1.1}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"top_p": 2}, "top_p"),
        ({"top_k": "x"}, "top_k"),
        ({"stream": "false"}, "stream"),
        ({"stop_sequences": "x"}, "stop_sequences"),
        ({"stop_sequences": [""]}, "stop"),
        ({"metadata": {"user_id": 5}}, "metadata.user_id"),
        ({"messages": None}, "messages"),
        ({"messages": {}}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": ["x"]}, "messages[0]"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": {}, "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [5]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"text": "x"}]}]},
         "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]},
         "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": [{"type": "nonsense"}]}]},
         "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
         "messages[0].content[0]: has type 'image'; this model reads only text"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]},
         "messages[0].content[0].tool_use_id"),
        ({"messages": [{"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "x", "content": [{"type": "image"}]}]}]},
         "messages[0].content[0].content[0]"),
        ({"messages": [*HELLO, {"role": "assistant", "content": [
            {"type": "tool_use", "id": "x", "name": "y", "input": "{}"}]}]},
         "messages[1].content[0].input"),
        ({"messages": [*HELLO, {"role": "assistant", "content": [
            {"type": "tool_use", "id": "x", "name": "y", "input": {}}]}]},
         "messages ends with a tool_use"),
        ({"messages": [{"role": "assistant", "content": []}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "document", "source": {
            "type": "base64", "media_type": "application/pdf", "data": ""}}]}]},
         "messages[0].content[0].source.type"),
        ({"system": 5}, "system"),
        ({"system": [{"type": "image"}]}, "system[0]"),
        ({"tools": {}}, "tools"),
        ({"tools": ["x"]}, "tools[0]"),
        ({"tools": [{"name": "x"}]}, "tools[0].input_schema"),
        ({"tools": [{**WEATHER, "name": "a b"}]}, "tools[0].name"),
        ({"tools": [WEATHER, WEATHER]}, "tools[1].name"),
        ({"tools": [WEATHER], "tool_choice": "auto"}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "required"}}, "tool_choice.type"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "any"}}, "tool_choice.type"),
        ({"thinking": {"type": 5}}, "thinking.type"),
        ({"thinking": True}, "thinking"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format.type"),
        ({"n": 2}, "n"),
    ],
)  # fmt: skip
def test_lim_05_what_is_wrong_is_named(served: Live, body: dict[str, Any], path: str) -> None:
    """LIM-05: wrong types and values are refused by their path, and the server goes on."""
    error = refused(served, **body)
    assert error["type"] == "invalid_request_error"
    assert error["message"].startswith(path)


@pytest.mark.parametrize("path", [PATH, f"{PATH}/count_tokens"])
@pytest.mark.parametrize(
    "thread", [{"type": "create"}, {"type": "continue", "previous_message_id": "msg_1"}]
)
def test_threads_are_refused_from_their_first_turn(
    served: Live, path: str, thread: dict[str, Any]
) -> None:
    """A thread that seems to begin loses its history: later turns come without it."""
    response = served.post(path, messages=HELLO, max_tokens=5, thread=thread)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["message"].startswith("thread: ")
    assert error["details"] == {"error_code": "thread_unsupported_request"}


@pytest.mark.parametrize("path", [PATH, f"{PATH}/count_tokens"])
@pytest.mark.parametrize(
    "body",
    [
        b"[]", b"5", b"{:", b"", b"{}",
        b'{"max_tokens": 5, "messages": ' + b"[" * 5000 + b"]" * 5000 + b"}",
        b'{"max_tokens": 5, "messages": [{"role": "user", "content": "\\udc00"}]}',
        b'{"max_tokens": 5, "messages": [{"role": "user", "content": "x"}], "tools": [{"name": '
        b'"x", "input_schema": {"a": ' + b"9" * 5000 + b"}}]}",
    ],
)  # fmt: skip
def test_lim_05_bodies_that_are_none(served: Live, path: str, body: bytes) -> None:
    """LIM-05: not JSON, not an object, too deep: 400 in Anthropic's shape, never 500."""
    headers = {"content-type": "application/json"}
    response = served.client.post(path, content=body, headers=headers)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["type"] == "invalid_request_error"


def test_errors_of_http_are_in_anthropics_shape_too(served: Live) -> None:
    for response, kind in (
        (served.client.get(PATH), "invalid_request_error"),
        (served.client.get(f"{PATH}/batches"), "not_found_error"),
        (served.client.post(PATH, content=b"x"), "invalid_request_error"),
    ):
        assert response.status_code in (404, 405, 415)
        assert response.json()["type"] == "error"
        assert response.json()["error"]["type"] == kind
    assert "type" not in served.client.get("/v1/models/messages").json()


def test_keys_by_either_header() -> None:
    with live(make_engine(server={"api_key": ["k"]})) as served:
        body = {"messages": HELLO, "max_tokens": 1}
        for headers, status in (
            ({}, 401),
            ({"x-api-key": "wrong"}, 401),
            ({"x-api-key": "k"}, 200),
            ({"authorization": "Bearer k"}, 200),
        ):
            response = served.client.post(PATH, json=body, headers=headers)
            assert response.status_code == status
            if status == 401:
                assert response.json()["error"]["type"] == "authentication_error"
        with anthropic.Anthropic(base_url=served.base_url, api_key="k") as client:
            assert client.messages.create(model="tinyserve", **body).role == "assistant"
        with (
            anthropic.Anthropic(base_url=served.base_url, api_key="no") as client,
            pytest.raises(anthropic.AuthenticationError),
        ):
            client.messages.create(model="tinyserve", **body)


def test_a_full_queue_is_429_in_anthropics_shape() -> None:
    engine = make_engine(server={"max_queued_requests": 1}, scheduler={"max_num_seqs": 1})
    with live(engine) as served:
        served.runner.gate.clear()
        opened = [served.open({"prompt": "x", "max_tokens": 2})]
        wait_for(lambda: served.runner.steps == 1)
        opened.append(served.open({"prompt": "x", "max_tokens": 2}))
        wait_for(lambda: served.bridge.num_queued == 1)
        response = served.post(PATH, messages=HELLO, max_tokens=1)
        served.runner.gate.set()
        assert [c.getresponse().status for c in opened] == [200, 200]
        assert response.status_code == 429
        assert int(response.headers["retry-after"]) >= 1
        assert response.json()["error"]["type"] == "rate_limit_error"
