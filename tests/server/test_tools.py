"""Tools in `/v1/chat/completions`: calls whole and streamed, choices, results of calls."""

from __future__ import annotations

import dataclasses
import functools
import json
import operator
from collections.abc import Iterator
from typing import Any

import openai
import pydantic
import pytest
from helpers.chat_streams import accumulate, without_ids
from helpers.fake_service import make_engine, tokenizer
from helpers.live_server import Live, live, ok
from helpers.message_texts import wild_texts
from hypothesis import given, settings
from hypothesis import strategies as st

from tinyserve.text.answer_format import MessageFormat
from tinyserve.text.tool_formats import HERMES

PATH = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
TOOLS = [WEATHER, {"type": "function", "function": {"name": "f"}}]
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
NAMED = {"type": "function", "function": {"name": "get_weather"}}


@pytest.fixture(scope="module")
def tool_server() -> Iterator[Live]:
    """Room for the description of the tools, thinking told apart."""
    with live(
        make_engine(scheduler={"max_model_len": 1024}, model={"reasoning_parser": "qwen3"})
    ) as running:
        yield running


@pytest.fixture(scope="module")
def plain_server() -> Iterator[Live]:
    """More room, and no thinking, which a model that draws at random would never end."""
    sizes = {"cache": {"num_blocks": 2048}, "scheduler": {"max_model_len": 2048}}
    with live(make_engine(**sizes)) as running:
        yield running


@pytest.fixture
def served(tool_server: Live) -> Iterator[Live]:
    tool_server.runner.reset()
    yield tool_server
    tool_server.runner.reset()
    tool_server.wait_idle()


def ask(served: Live, messages: Any = HELLO, **body: Any) -> dict[str, Any]:
    """The first choice of a whole answer."""
    choice: dict[str, Any] = ok(served.post(PATH, messages=messages, **body))["choices"][0]
    return choice


def refused(served: Live, messages: Any = HELLO, **body: Any) -> dict[str, Any]:
    """The error, which comes before any event of a stream; the next request works."""
    for stream in (False, True):
        response = served.post(PATH, messages=messages, stream=stream, **body)
        assert response.status_code == 400, response.text
    served.chat(max_tokens=1)
    error: dict[str, Any] = response.json()["error"]
    return error


def test_calls_are_read_out_of_the_text(served: Live) -> None:
    served.runner.says(f"Let me see.\n{CALL}\n{CALL}")
    choice = ask(served, tools=TOOLS)
    assert choice["finish_reason"] == "tool_calls"
    message = choice["message"]
    assert message["content"] == "Let me see."
    first, second = message["tool_calls"]
    assert first["type"] == "function"
    assert first["function"] == {"name": "get_weather", "arguments": '{"city": "Paris"}'}
    assert first["id"] != second["id"]
    assert first["id"].startswith("call_")


def test_content_is_null_beside_calls_and_text_without(served: Live) -> None:
    served.runner.says(f"\n{CALL}\n")
    assert ask(served, tools=TOOLS)["message"]["content"] is None
    served.runner.says("no")
    choice = ask(served, tools=TOOLS)
    assert choice["message"] == {"role": "assistant", "content": "no"}
    assert choice["finish_reason"] == "stop"


def test_tool_06_a_call_streams_in_pieces(served: Live) -> None:
    served.runner.says(CALL)
    chunks = served.stream(PATH, messages=HELLO, tools=TOOLS)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    pieces = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
    assert len(pieces) > 5
    assert [i for i, piece in enumerate(pieces) if "id" in piece or "type" in piece] == [0]
    assert [i for i, piece in enumerate(pieces) if "name" in piece["function"]] == [0]
    (choice,) = accumulate(chunks)
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == '{"city": "Paris"}'


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("tool_choice", "reason"), [("auto", "tool_calls"), ("required", "tool_calls"), (NAMED, "stop")]
)
def test_tool_01_the_finish_reason(
    served: Live, tool_choice: Any, reason: str, stream: bool
) -> None:
    """TOOL-01: the six cells, and in each of them "length" where the answer was cut."""
    served.runner.says(CALL)
    size = len(tokenizer().encode(CALL, add_special_tokens=False))
    for max_tokens, expected in ((size + 1, reason), (size - 8, "length"), (3, "length")):
        body = {"tools": TOOLS, "tool_choice": tool_choice, "max_tokens": max_tokens}
        if stream:
            (choice,) = accumulate(served.stream(PATH, messages=HELLO, **body))
        else:
            choice = ask(served, **body)
        assert choice["finish_reason"] == expected
        assert bool(choice["message"].get("tool_calls")) == (max_tokens > 3)


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_a_stop_string_cuts_is_none_to_be_run(served: Live, stream: bool) -> None:
    """TOOL-01: half a call is told as what it is, in every protocol; a whole one is a call."""

    def reason(text: str, **body: Any) -> str:
        served.runner.says(text)
        body = {"tools": TOOLS, **body}
        if stream:
            (choice,) = accumulate(served.stream(PATH, messages=HELLO, **body))
        else:
            choice = ask(served, **body)
        assert choice["message"]["tool_calls"]
        return str(choice["finish_reason"])

    assert reason(CALL, stop=["ri"]) == "stop"
    assert reason(CALL, stop_token_ids=tokenizer().encode("P")) == "stop"
    assert reason(f"{CALL}\n{CALL.replace('Paris', 'Rome')}", stop=["om"]) == "stop"
    assert reason(CALL, stop=["</tool_call>"]) == "tool_calls"
    assert reason(f"{CALL}\nTHE END", stop=["THE END"]) == "tool_calls"
    one_call = {"parallel_tool_calls": False, "stop": ["om"]}
    assert reason(f"{CALL}\n{CALL.replace('Paris', 'Rome')}", **one_call) == "tool_calls"
    assert reason(CALL[:-20]) == "tool_calls"  # the model's own words


def test_without_tools_a_call_is_text(served: Live) -> None:
    served.runner.says(CALL)
    for body in ({}, {"tools": TOOLS, "tool_choice": "none"}, {"tools": []}):
        choice = ask(served, **body)
        assert choice["message"] == {"role": "assistant", "content": CALL}
        assert choice["finish_reason"] == "stop"


def test_one_call_where_parallel_calls_are_off(served: Live) -> None:
    served.runner.says(f"{CALL}\n{CALL}")
    for tool_choice in ("auto", "required"):
        body = {"tools": TOOLS, "tool_choice": tool_choice, "parallel_tool_calls": False}
        assert len(ask(served, **body)["message"]["tool_calls"]) == 1
    assert len(ask(served, tools=TOOLS, tool_choice=NAMED)["message"]["tool_calls"]) == 1


def test_what_tools_are_refused(served: Live) -> None:
    twice = [WEATHER, WEATHER]
    assert refused(served, tools=twice)["param"] == "tools[1].function.name"
    assert refused(served, tools=[5])["param"] == "tools[0]"
    assert refused(served, tools={})["param"] == "tools"
    assert refused(served, tool_choice="required")["param"] == "tool_choice"
    assert refused(served, tools=TOOLS, tool_choice=5)["param"] == "tool_choice"
    unknown = {"type": "function", "function": {"name": "nope"}}
    assert refused(served, tools=TOOLS, tool_choice=unknown)["param"] == "tool_choice"
    assert refused(served, tools=TOOLS, parallel_tool_calls=1)["param"] == "parallel_tool_calls"
    older = refused(served, functions=[{"name": "f"}])
    assert older["param"] == "functions"
    assert "tools" in older["message"]
    assert refused(served, function_call={"name": "f"})["param"] == "function_call"


def test_a_strict_schema_that_no_grammar_can_follow(served: Live) -> None:
    parameters = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?=a)b"}}}
    strict = {"name": "f", "parameters": parameters, "strict": True}
    tools = [{"type": "function", "function": strict}]
    assert refused(served, tools=tools, tool_choice="required")["param"] == "tools"
    served.runner.says("no")
    assert ask(served, tools=tools)["message"]["content"] == "no"


@pytest.mark.parametrize(
    "parameters", [None, {}, {"type": ["object", "null"], "properties": None, "$schema": "x"}]
)
def test_odd_schemas_are_accepted(served: Live, parameters: Any) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    for tool_choice in ("auto", "required"):
        served.runner.says('<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>')
        assert ask(served, tools=[tool], tool_choice=tool_choice)["message"]["tool_calls"]


@pytest.mark.parametrize("arguments", ['{"a":', "", "[" * 2000, None, {"a": 1}, "nonsense"])
def test_tool_05_broken_arguments_of_an_earlier_turn(served: Live, arguments: Any) -> None:
    """TOOL-05: never a 500; what does not parse goes into the prompt as it is."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    messages = [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "?"},
    ]
    response = served.post(PATH, messages=messages, tools=TOOLS, max_tokens=1)
    assert response.status_code in (200, 400), response.text
    if isinstance(arguments, str) and len(arguments) < 100:
        assert response.status_code == 200
    served.chat(max_tokens=1)


def test_a_whole_conversation(served: Live) -> None:
    served.runner.says(CALL)
    message = ask(served, tools=TOOLS)["message"]
    served.runner.says("It rains.")
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "rain"}
    choice = ask(served, messages=[*HELLO, message, result], tools=TOOLS)
    assert choice["message"]["content"] == "It rains."


@pytest.mark.parametrize("stream", [False, True])
def test_log_11_logprobs_beside_calls(served: Live, stream: bool) -> None:
    """LOG-11: every token has its entry, those of the calls too; their bytes join to all text."""
    text = f"Hm “é”.\n{CALL}"
    served.runner.says(text)
    body = {"tools": TOOLS, "logprobs": True, "top_logprobs": 2}
    if stream:
        (choice,) = accumulate(served.stream(PATH, messages=HELLO, **body))
    else:
        choice = ask(served, **body)
    assert choice["message"]["tool_calls"]
    entries = choice["logprobs"]["content"]
    assert bytes(b for entry in entries[:-1] for b in entry["bytes"]).decode() == text
    assert all(len(entry["top_logprobs"]) == 2 for entry in entries)


@pytest.mark.parametrize("tool_choice", ["required", NAMED])
@pytest.mark.parametrize("stream", [False, True])
def test_demanded_calls_are_valid_whatever_the_model_would_say(
    plain_server: Live, tool_choice: Any, stream: bool
) -> None:
    """The model draws at random; the grammar makes calls of allowed functions out of it."""
    city = {"type": "string", "enum": ["Paris", "Rome"]}
    schema = {
        "type": "object",
        "properties": {"city": city, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["city", "days"],
        "additionalProperties": False,
    }
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": schema}}
    body = {"tools": [tool, TOOLS[1]], "tool_choice": tool_choice, "n": 4, "temperature": 1}
    body |= {"max_tokens": 1200, "messages": HELLO}
    choices = (
        accumulate(plain_server.stream(PATH, **body), 4)
        if stream
        else ok(plain_server.post(PATH, **body))["choices"]
    )
    for choice in choices:
        assert choice["finish_reason"] == ("stop" if tool_choice == NAMED else "tool_calls")
        assert choice["message"]["content"] is None
        calls = [call["function"] for call in choice["message"]["tool_calls"]]
        assert len(calls) == 1 if tool_choice == NAMED else 1 <= len(calls) <= 16
        for call in calls:
            arguments = json.loads(call["arguments"])
            if call["name"] == "f":
                assert arguments == {}
                assert tool_choice != NAMED
            else:
                assert arguments["city"] in ("Paris", "Rome")
                assert 1 <= arguments["days"] <= 9


def test_calls_beside_an_answer_with_a_format(served: Live) -> None:
    """Where the model may choose, it calls a tool or keeps to the format of the answer."""
    body = {"tools": TOOLS, "response_format": {"type": "json_object"}, "max_tokens": 60}
    served.runner.says(CALL)
    assert ask(served, **body)["message"]["tool_calls"]
    served.runner.says('{"a": 1}')
    assert ask(served, **body)["message"]["content"] == '{"a": 1}'
    served.runner.says("no")
    choice = ask(served, **body)
    assert not (choice["message"]["content"] or "").startswith("no")


@pytest.mark.parametrize("choice", ["required", NAMED])
def test_a_demanded_call_beside_a_format_for_text(served: Live, choice: Any) -> None:
    """Agents whose last answer has a format send it from the first turn on, which is to be a call;
    any other constraint is on whatever the model writes, and contradicts."""
    body = {"tools": TOOLS, "tool_choice": choice, "max_tokens": 60}
    served.runner.says(CALL)
    answer = ask(served, **body, response_format={"type": "json_object"})
    assert answer["message"]["tool_calls"]
    assert answer["message"]["content"] is None
    assert refused(served, **body, regex="a+")["param"] == "regex"
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": 5}}
    assert refused(served, **body, response_format=schema)["param"] == "response_format"


def test_thinking_comes_before_a_demanded_call(served: Live) -> None:
    thought = "<think>which tool?</think>"
    served.runner.says(f"{thought}\n\n{CALL}")
    choice = ask(served, tools=TOOLS, tool_choice="required")
    assert choice["message"]["reasoning_content"] == "which tool?"
    assert choice["message"]["tool_calls"]
    opened = [*HELLO, {"role": "assistant", "content": "<think>which"}]
    served.runner.says(f" tool?</think>{CALL}")
    body = {"tools": TOOLS, "tool_choice": "required", "continue_final_message": True}
    choice = ask(served, opened, **body)
    assert choice["message"]["reasoning_content"] == "tool?"
    assert choice["message"]["tool_calls"]


@settings(max_examples=25)
@given(
    text=wild_texts,
    n=st.integers(1, 3),
    tool_choice=st.sampled_from(["auto", "required", "none", NAMED]),
    extra=st.fixed_dictionaries(
        {"max_tokens": st.integers(1, 40)},
        optional={
            "logprobs": st.just(True),
            "return_token_ids": st.just(True),
            "parallel_tool_calls": st.booleans(),
            "stop": st.sampled_from(["}", "</tool_call>", "a"]),
            "skip_special_tokens": st.booleans(),
        },
    ),
)
def test_streams_say_what_whole_answers_say(
    tool_server: Live, text: str, n: int, tool_choice: Any, extra: dict[str, Any]
) -> None:
    tool_server.runner.says(text)
    body = {"messages": HELLO, "tools": TOOLS, "tool_choice": tool_choice, "n": n, **extra}
    whole = ok(tool_server.post(PATH, **body))
    chunks = tool_server.stream(PATH, stream_options={"include_usage": True}, **body)
    assert chunks[-1]["usage"] == whole["usage"] | {
        "prompt_tokens_details": chunks[-1]["usage"]["prompt_tokens_details"]
    }
    for choice, streamed in zip(whole["choices"], accumulate(chunks[:-1], n), strict=True):
        choice.setdefault("token_ids", [])
        choice.pop("stop_reason", None)
        assert without_ids(streamed) == without_ids(choice)


def test_markers_that_are_special_tokens_are_seen() -> None:
    """A special token of this vocabulary stands in for those of other models."""
    marker = "<|endoftext|>"
    assert tokenizer().special_id(marker) is not None
    engine = make_engine(scheduler={"max_model_len": 1024})
    form = dataclasses.replace(HERMES, openers=(marker,), closers=())
    intake = dataclasses.replace(engine.intake, message_format=MessageFormat(form))
    with live(dataclasses.replace(engine, intake=intake)) as served:
        served.runner.says(f'a{marker}{{"name": "f", "arguments": {{}}}}')
        choice = ask(served, tools=TOOLS)
        assert choice["message"]["content"] == "a"
        assert choice["message"]["tool_calls"][0]["function"]["name"] == "f"
        served.runner.says(f"a{marker}b")
        assert ask(served, tools=TOOLS)["message"]["content"] == f"a{marker}b"
        assert ask(served)["message"]["content"] == "ab"


def test_a_template_of_another_format() -> None:
    template = (
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
        "{{ tools | tojson if tools }}<|python_tag|>"
    )
    engine = make_engine(model={"chat_template": template}, scheduler={"max_model_len": 1024})
    with live(engine) as served:
        served.runner.says('{"name": "f", "parameters": {"a": 1}}; {"name": "f", "parameters": {}}')
        choice = ask(served, tools=TOOLS)
        assert choice["message"]["content"] is None
        arguments = [call["function"]["arguments"] for call in choice["message"]["tool_calls"]]
        assert arguments == ['{"a": 1}', "{}"]


def test_parsers_that_the_operator_chose() -> None:
    with live(make_engine(model={"tool_call_parser": "none"})) as served:
        small = [{"type": "function", "function": {"name": "f"}}]
        served.runner.says(CALL)
        assert ask(served, tools=small)["message"]["content"] == CALL
        assert refused(served, tools=small, tool_choice="required")["param"] == "tool_choice"
    with live(make_engine(server={"enable_auto_tool_choice": False})) as served:
        assert refused(served, tools=small)["param"] == "tool_choice"


@pytest.fixture
def client(served: Live) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.base_url}/v1", api_key="none", max_retries=0) as made:
        yield made


def test_the_official_client(served: Live, client: openai.OpenAI) -> None:
    served.runner.says(f"Hm.{CALL}{CALL}")
    asked: dict[str, Any] = {"model": "tinyserve", "messages": HELLO, "tools": TOOLS}
    answer = client.chat.completions.create(**asked)
    calls = answer.choices[0].message.tool_calls
    assert calls is not None
    assert [json.loads(call.function.arguments) for call in calls] == [{"city": "Paris"}] * 2
    with client.chat.completions.stream(**asked) as stream:
        events = [event.type for event in stream]
        final = stream.get_final_completion()
    assert "tool_calls.function.arguments.delta" in events
    assert events.count("tool_calls.function.arguments.done") == 2
    streamed = final.choices[0].message
    assert streamed.content == answer.choices[0].message.content == "Hm."
    assert streamed.tool_calls is not None
    assert [call.function.name for call in streamed.tool_calls] == ["get_weather"] * 2
    assert final.choices[0].finish_reason == "tool_calls"


class Trip(pydantic.BaseModel):
    """A journey."""

    city: str
    days: int


def test_the_official_client_parses_strict_calls(served: Live, client: openai.OpenAI) -> None:
    served.runner.says('<tool_call>\n{"name": "Trip", "arguments": {"city": "Rome", "days": 3}}')
    answer = client.chat.completions.parse(
        model="tinyserve",
        messages=[{"role": "user", "content": "hello"}],
        tools=[openai.pydantic_function_tool(Trip)],
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=200,
    )
    (call,) = answer.choices[0].message.tool_calls or []
    assert call.function.parsed_arguments == Trip(city="Rome", days=3)


def test_langchain_joins_the_pieces(served: Live) -> None:
    """TOOL-06: it would join the names of all pieces as well."""
    langchain_openai = pytest.importorskip("langchain_openai")
    served.runner.says(f"Hm.{CALL}{CALL}")
    model = langchain_openai.ChatOpenAI(
        model="tinyserve", base_url=f"{served.base_url}/v1", api_key="none", max_retries=0
    ).bind_tools(TOOLS)
    expected = [("get_weather", {"city": "Paris"})] * 2
    answer = model.invoke("hello")
    assert [(call["name"], call["args"]) for call in answer.tool_calls] == expected
    pieces = list(model.stream("hello"))
    joined = functools.reduce(operator.add, pieces)
    assert [(call["name"], call["args"]) for call in joined.tool_calls] == expected
    assert joined.content == answer.content == "Hm."
