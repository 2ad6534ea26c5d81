"""`/v1/responses` whole: what goes in, what comes out, what is refused; the official client."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from helpers.fake_service import make_engine
from helpers.live_server import Live, live, ok
from helpers.official import UNNAMED, named_events, strictly
from openai.types.responses import Response

from tinyserve.server.dialects.responses.input import read_input
from tinyserve.server.dialects.responses.tools import ToolSet
from tinyserve.server.said_once import SaidOnce

PATH = "/v1/responses"
EXTRA = UNNAMED | {"truncated_messages"}
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'


@pytest.fixture(scope="module")
def shared_server() -> Iterator[Live]:
    engine = make_engine(
        scheduler={"max_model_len": 2048, "max_num_batched_tokens": 512},
        cache={"num_blocks": 2048, "block_size": 8},
        model={"reasoning_parser": "qwen3"},
    )
    with live(engine) as running:
        yield running


@pytest.fixture
def client(served: Live) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.base_url}/v1", api_key="none", max_retries=0) as made:
        yield made


def respond(served: Live, value: Any = "hello", **body: Any) -> dict[str, Any]:
    answer = ok(served.post(PATH, input=value, **body))
    strictly(Response, answer, extra=EXTRA)
    return answer


def refused(served: Live, status: int = 400, **body: Any) -> dict[str, Any]:
    """The same error whole and streamed, and the next request works."""
    body = {"input": "hello", **body}
    errors = []
    for stream in (False, True):
        response = served.post(PATH, **{"stream": stream, **body})
        assert response.status_code == status, response.text
        errors.append(response.json()["error"])
    assert errors[0] == errors[1]
    respond(served, max_output_tokens=1)
    return errors[0]


def prompt_of(served: Live, **body: Any) -> int:
    answer = respond(served, **body, max_output_tokens=1)
    tokens: int = answer["usage"]["input_tokens"]
    return tokens


def chat_tokens(served: Live, messages: list[dict[str, Any]], **body: Any) -> int:
    answer = ok(served.post("/v1/chat/completions", messages=messages, max_tokens=1, **body))
    tokens: int = answer["usage"]["prompt_tokens"]
    return tokens


def test_shape_of_an_answer(served: Live) -> None:
    served.runner.says("well then")
    answer = respond(served, metadata={"a": "b"}, temperature=0.5, top_p=0.9, store=True)
    assert answer["id"].startswith("resp_")
    (message,) = answer["output"]
    assert message["content"] == [{"type": "output_text", "text": "well then", "annotations": []}]
    assert (message["role"], message["status"]) == ("assistant", "completed")
    assert answer["status"] == "completed"
    assert answer["usage"]["output_tokens"] == 6
    assert answer["usage"]["total_tokens"] == answer["usage"]["input_tokens"] + 6
    assert answer["metadata"] == {"a": "b"}
    assert (answer["temperature"], answer["top_p"]) == (0.5, 0.9)
    assert (answer["store"], answer["service_tier"]) == (False, "default")


def test_an_answer_tells_what_was_left_out(served: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """Open Responses: sampling is told as numbers, and what may be null is there all the same."""
    tool = {"type": "function", "name": "f"}
    answer = respond(served, tools=[tool], max_output_tokens=1)
    assert (answer["temperature"], answer["top_p"]) == (1.0, 1.0)
    assert (answer["presence_penalty"], answer["frequency_penalty"]) == (0.0, 0.0)
    assert answer["tools"] == [{**tool, "description": None, "parameters": None, "strict": None}]
    assert answer["text"] == {"format": {"type": "text"}}

    monkeypatch.setitem(served.engine.intake.sampling_defaults, "temperature", 0.25)
    answer = respond(served, presence_penalty=0.5, text={"verbosity": "low"})
    assert (answer["temperature"], answer["presence_penalty"]) == (0.25, 0.5)
    assert answer["text"] == {"format": {"type": "text"}, "verbosity": "low"}


def test_an_empty_answer_is_an_empty_message(served: Live) -> None:
    served.runner.says("")
    (message,) = respond(served)["output"]
    assert message["content"][0]["text"] == ""
    events = named_events(served.post(PATH, input="hello", stream=True).text)
    assert events[-1]["response"]["output"][0]["content"] == message["content"]


def test_the_official_client(served: Live, client: openai.OpenAI) -> None:
    served.runner.says("well then 😀")
    answer = client.responses.create(model="tinyserve", input="hello", instructions="Be brief")
    assert answer.output_text == "well then 😀"
    assert answer.status == "completed"
    assert answer.usage is not None
    assert answer.usage.input_tokens_details.cached_tokens == 0
    with client.responses.stream(model="tinyserve", input="hello") as stream:
        text = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert text == final.output_text == "well then 😀"


def test_items_read_like_a_chat(served: Live) -> None:
    items = [
        {"type": "message", "role": "developer", "content": "Be kind"},
        {"role": "user", "content": [{"type": "input_text", "text": "one"}]},
        {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
         "content": [{"type": "output_text", "text": "two", "annotations": []}]},
        {"role": "user", "content": "three"},
    ]  # fmt: skip
    messages = [
        {"role": "system", "content": "Be brief\n\nBe kind"},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "three"},
    ]
    expected = chat_tokens(served, messages)
    assert prompt_of(served, value=items, instructions="Be brief") == expected


def test_an_answer_may_be_sent_back_as_it_came(served: Live) -> None:
    """Thinking, text and a call of one turn are one message of the assistant."""
    served.runner.says(f"<think>\nhm\n</think>\n\nLet me see.\n{CALL}")
    answer = respond(served, tools=[WEATHER])
    kinds = [item["type"] for item in answer["output"]]
    assert kinds == ["reasoning", "message", "function_call"]
    call = answer["output"][2]
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}
    history = [{"role": "user", "content": "hello"}, *answer["output"], output]
    function = {"name": "get_weather", "arguments": call["arguments"]}
    messages = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "Let me see.", "reasoning_content": "hm",
         "tool_calls": [{"id": call["call_id"], "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": call["call_id"], "content": "sunny"},
    ]  # fmt: skip
    chat_tool = {"type": "function", "function": {k: WEATHER[k] for k in list(WEATHER)[1:4]}}
    expected = chat_tokens(served, messages, tools=[chat_tool])
    assert prompt_of(served, value=history, tools=[WEATHER]) == expected


def test_reasoning_may_be_sent_back_sealed(served: Live) -> None:
    """As clients do that store nothing: what they have asked to be given for it, and no content."""
    served.runner.says("<think>hm é 😀</think>So.")
    assert "encrypted_content" not in respond(served)["output"][0]
    body: dict[str, Any] = {"input": "hello", "include": ["reasoning.encrypted_content"]}
    answer = ok(served.post(PATH, **body))
    reasoning, said = answer["output"]
    events = named_events(served.post(PATH, stream=True, **body).text)
    (streamed,) = (
        event["item"]
        for event in events
        if event["type"] == "response.output_item.done" and event["item"]["type"] == "reasoning"
    )
    assert streamed["encrypted_content"] == reasoning["encrypted_content"]
    bare = {k: v for k, v in reasoning.items() if k not in ("content", "status")}

    def read(**changes: Any) -> str | None:
        """The thinking before what was said, as the chat template would get it."""
        messages, _ = read_input([{**bare, **changes}, said], None, ToolSet())
        return messages[0].get("reasoning_content")

    assert read() == read(content=reasoning["content"]) == "hm é 😀"
    summary = [{"type": "summary_text", "text": "brief"}]
    assert read(summary=summary) == "hm é 😀"
    for foreign in (None, "gAAAAAB", "tinyserve:?", "tinyserve:/w=="):
        assert read(encrypted_content=foreign) is None
        assert read(encrypted_content=foreign, summary=summary) == "brief"


def test_input_tokens(served: Live, client: openai.OpenAI) -> None:
    common: dict[str, Any] = {"model": "tinyserve", "input": "hello", "tools": [WEATHER]}
    counted = client.responses.input_tokens.count(**common)
    assert counted.object == "response.input_tokens"
    assert counted.input_tokens == prompt_of(served, value="hello", tools=[WEATHER])
    response = served.post(f"{PATH}/input_tokens", input=[{"role": "user"}])
    assert response.json()["error"]["param"] == "input[0].content"


def test_reasoning_is_an_item_and_is_counted(served: Live) -> None:
    served.runner.says("<think>ab</think>cd")
    answer = respond(served)
    reasoning, message = answer["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "ab"}]
    assert reasoning["summary"] == []
    assert message["content"][0]["text"] == "cd"
    counted = answer["usage"]["output_tokens_details"]["reasoning_tokens"]
    assert 2 <= counted < answer["usage"]["output_tokens"]


def test_parallel_calls_and_their_names(served: Live, client: openai.OpenAI) -> None:
    served.runner.says(f"{CALL}\n{CALL}")
    answer = client.responses.create(model="tinyserve", input="hi", tools=[WEATHER])  # type: ignore[list-item]
    calls = [item for item in answer.output if item.type == "function_call"]
    assert len(calls) == len(answer.output) == 2
    assert [call.name for call in calls] == ["get_weather"] * 2
    assert {call.arguments for call in calls} == {'{"city": "Paris"}'}
    assert len({call.call_id for call in calls}) == 2


STRICT = {
    "type": "function",
    "name": "get_weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"enum": ["Paris"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


@pytest.mark.parametrize(
    "choice",
    [
        "required",
        {"type": "function", "name": "get_weather"},
        {
            "type": "allowed_tools",
            "mode": "required",
            "tools": [{"type": "function", "name": "get_weather"}, {"type": "web_search"}],
        },
    ],
)
def test_calls_can_be_demanded(plain: Live, choice: Any) -> None:
    """Hosted tools are left out, of those that are allowed as well."""
    other = {"type": "function", "name": "get_time"}
    tools = [STRICT] if choice == "required" else [STRICT, other]
    tools.append({"type": "web_search"})
    answer = respond(plain, tools=tools, tool_choice=choice, parallel_tool_calls=False)
    (call,) = answer["output"]
    assert (call["name"], call["arguments"]) == ("get_weather", '{"city": "Paris"}')
    assert answer["tool_choice"] == choice


def test_only_hosted_tools_are_allowed(served: Live) -> None:
    """The client has offered another, but not for this answer."""
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "web_search"}]}
    said = '<tool_call>\n{"name": "get_weather", "arguments": {}}\n</tool_call>'
    served.runner.says(said)
    tools = [WEATHER, {"type": "web_search"}]
    (item,) = respond(served, tools=tools, tool_choice=choice)["output"]
    assert item["content"][0]["text"] == said


def test_structured_output(plain: Live) -> None:
    text = {"format": {"type": "json_schema", "name": "a", "schema": {"enum": ["yes"]}}}
    answer = respond(plain, text=text)
    assert answer["output"][0]["content"][0]["text"] == '"yes"'
    assert answer["text"] == text
    text["format"]["schema"] = {"$ref": "#/missing"}
    assert refused(plain, text=text)["param"] == "text.format"
    answer = respond(plain, text={"format": {"type": "json_object"}}, max_output_tokens=300)
    assert answer["output"][0]["content"][0]["text"].startswith("{")
    assert refused(plain, text=text, structured_outputs={"choice": ["a"]})["param"]


def test_a_custom_tool_is_called_with_free_text(served: Live) -> None:
    tool = {
        "type": "custom",
        "name": "apply_patch",
        "description": "Edits",
        "format": {"type": "text"},
    }
    arguments = {"input": '*** A\n"x"'}
    said = json.dumps({"name": "apply_patch", "arguments": arguments})
    served.runner.says(f"<tool_call>\n{said}\n</tool_call>")
    answer = respond(served, tools=[tool])
    (item,) = answer["output"]
    assert (item["type"], item["input"]) == ("custom_tool_call", '*** A\n"x"')
    events = named_events(served.post(PATH, input="hello", tools=[tool], stream=True).text)
    (done,) = [e for e in events if e["type"] == "response.custom_tool_call_input.done"]
    pieces = [e["delta"] for e in events if e["type"] == "response.custom_tool_call_input.delta"]
    assert done["input"] == "".join(pieces) == item["input"]
    output = {"type": "custom_tool_call_output", "call_id": item["call_id"], "output": "done"}
    respond(served, [{"role": "user", "content": "hello"}, item, output], tools=[tool])


def test_a_custom_tool_says_what_its_text_is(plain: Live, served: Live) -> None:
    """A demanded call keeps to a regular expression; the model is told of any grammar."""

    def tool(syntax: str, definition: str) -> dict[str, Any]:
        form = {"type": "grammar", "syntax": syntax, "definition": definition}
        return {"type": "custom", "name": "run", "format": form}

    expression = '[a-c]{3}|"x/y"\\\\d'
    demanded = {"tool_choice": "required", "parallel_tool_calls": False}
    (item,) = respond(plain, tools=[tool("regex", expression)], **demanded)["output"]
    assert re.fullmatch(expression, item["input"])
    lark = 'start: "begin" /[a-z]+/'
    said = json.dumps({"name": "run", "arguments": {"input": "begin"}})
    served.runner.says(f"<tool_call>\n{said}\n</tool_call>")
    told = respond(served, tools=[tool("lark", lark)])["usage"]["input_tokens"]
    assert (
        told > respond(served, tools=[{"type": "custom", "name": "run"}])["usage"]["input_tokens"]
    )
    error = refused(served, tools=[tool("gbnf", lark)])
    assert error["param"] == "tools[0].format.syntax"


def test_tools_of_a_namespace_come_back_with_it(served: Live) -> None:
    inner = {"type": "function", "name": "get_weather", "parameters": {"type": "object"}}
    space = {"type": "namespace", "name": "mcp__sky", "description": "", "tools": [inner]}
    served.runner.says(CALL)
    (call,) = respond(served, tools=[space])["output"]
    assert (call["namespace"], call["name"]) == ("mcp__sky", "get_weather")
    served.runner.says(CALL.replace("get_weather", "mcp__sky__get_weather"))
    (call,) = respond(served, tools=[WEATHER, space])["output"]
    assert (call["namespace"], call["name"]) == ("mcp__sky", "get_weather")
    respond(served, [{"role": "user", "content": "x"}, call], tools=[WEATHER, space])


def test_api_01_what_codex_sends(served: Live, caplog: pytest.LogCaptureFixture) -> None:
    """API-01: the request of an agent that speaks nothing else, with tools of every kind."""
    served.runner.says("done")
    tools = [
        {"type": "function", "name": "shell", "description": "Runs", "strict": False,
         "parameters": {"type": "object", "properties": {"command": {"type": "array",
                        "items": {"type": "string"}}}, "required": ["command"],
                        "additionalProperties": False}},
        {"type": "custom", "name": "apply_patch", "description": "Edits",
         "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.*/"}},
        {"type": "web_search", "external_web_access": False},
        {"type": "image_generation", "output_format": "png"},
        {"type": "tool_search", "execution": "client", "description": "", "parameters": {}},
        {"type": "local_shell"},
    ]  # fmt: skip
    text = [{"type": "input_text", "text": "hi"}]
    items = [
        {"type": "message", "role": "developer", "content": text},
        {"type": "message", "role": "user", "content": text},
        {"type": "message", "role": "user", "content": text},
        {"type": "reasoning", "summary": [], "content": None, "encrypted_content": None},
        {"type": "function_call", "name": "shell", "arguments": "{", "call_id": "c1"},
        {"type": "function_call_output", "call_id": "c1", "output": "ok"},
        {"type": "local_shell_call", "call_id": "c2", "status": "completed",
         "action": {"type": "exec", "command": ["ls"], "env": None}},
        {"type": "local_shell_call_output", "call_id": "c2", "output": "ok"},
        {"type": "function_call_output", "call_id": "c2", "output": text},
        {"type": "custom_tool_call", "call_id": "c3", "name": "apply_patch", "input": "x"},
        {"type": "custom_tool_call_output", "call_id": "c3", "output": "ok"},
        {"type": "web_search_call", "status": "completed", "action": {"type": "search"}},
        {"type": "ghost_snapshot", "ghost_commit": {}},
        {"type": "message", "role": "user", "content": text},
    ]  # fmt: skip
    assert served.state.service is not None
    served.state.service.said_once = SaidOnce()
    with caplog.at_level(logging.INFO, logger="tinyserve.server"):
        response = served.post(
            PATH, model="tinyserve", instructions="You are", input=items, tools=tools,
            tool_choice="auto", parallel_tool_calls=False, stream=True, store=False,
            reasoning={"effort": "medium", "summary": "auto"}, prompt_cache_key="k",
            include=["reasoning.encrypted_content"], text={"verbosity": "low"},
            client_metadata={"x": "y"}, service_tier="priority",
        )  # fmt: skip
    assert response.status_code == 200, response.text
    events = named_events(response.text)
    kinds = [event["type"] for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.completed"
    assert "response.output_text.delta" in kinds
    assert events[-1]["response"]["usage"]["output_tokens"] > 0
    for dropped in ("web_search", "image_generation", "web_search_call", "client_metadata"):
        assert f"'{dropped}'" in caplog.text
    assert "You are" not in caplog.text


def test_cut_answers_say_so(served: Live) -> None:
    served.runner.says("well then")
    answer = respond(served, max_output_tokens=2)
    assert answer["status"] == "incomplete"
    assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
    assert answer["output"][0]["status"] == "incomplete"
    assert answer["usage"]["output_tokens"] == 2


def test_a_call_that_a_stop_string_cuts(served: Live) -> None:
    """TOOL-01."""
    served.runner.says(CALL)
    (call,) = respond(served, tools=[WEATHER], stop=["ri"])["output"]
    assert (call["type"], call["status"]) == ("function_call", "incomplete")


@pytest.mark.parametrize("text", ["well", "\n \nwell"])
def test_logprobs(plain: Live, text: str) -> None:
    """One for each token, white space that was held back at first included."""
    plain.runner.says(text)
    include = ["message.output_text.logprobs"]
    (message,) = respond(plain, include=include, top_logprobs=2)["output"]
    entries = message["content"][0]["logprobs"]
    assert message["content"][0]["text"] == text
    assert "".join(entry["token"] for entry in entries) == text
    assert all(len(entry["top_logprobs"]) == 2 for entry in entries)
    assert bytes(entries[0]["bytes"]) == text[0].encode()
    (message,) = respond(plain, include=include)["output"]
    assert message["content"][0]["logprobs"][0]["top_logprobs"] == []
    plain.runner.says("é")  # LOG-04: parts of characters can be told apart
    (message,) = respond(plain, include=include)["output"]
    tokens = [entry["token"] for entry in message["content"][0]["logprobs"]]
    assert tokens[:2] == ["bytes:\\xc3", "bytes:\\xa9"]
    assert refused(plain, top_logprobs=10_000)["param"] == "top_logprobs"


def test_logprobs_are_of_the_text_alone(served: Live) -> None:
    served.runner.says("<think>hm</think>\n\nwell,then")
    output = respond(served, include=["message.output_text.logprobs"], stop=["then"])["output"]
    entries = output[-1]["content"][0]["logprobs"]
    assert "".join(entry["token"] for entry in entries).strip() == "well,"


def test_lim_12_truncation_drops_the_oldest_and_says_so(served: Live) -> None:
    """LIM-12: nothing is cut unless the request asks for it, and then the usage tells."""
    served.runner.says("ok")
    turns = [
        {"role": role, "content": f"{role} {i} " + "word " * 100}
        for i in range(30)
        for role in ("user", "assistant")
    ]
    items = [*turns, {"role": "user", "content": "the last"}]
    error = refused(served, input=items, instructions="Keep me", truncation="disabled")
    assert error["code"] == "context_length_exceeded"
    assert refused(served, input=items)["code"] == "context_length_exceeded"
    answer = respond(served, items, instructions="Keep me", truncation="auto")
    gone = answer["usage"]["input_tokens_details"]["truncated_messages"]
    assert answer["truncation"] == "auto"
    kept = prompt_of(served, value=items[gone:], instructions="Keep me")
    assert kept == answer["usage"]["input_tokens"] < 2048
    more = {"input": items[gone - 2 :], "instructions": "Keep me"}
    assert refused(served, **more)["code"] == "context_length_exceeded"
    too_long = [{"role": "user", "content": "word " * 5000}]
    assert refused(served, input=too_long, truncation="auto")["code"] == "context_length_exceeded"
    short = respond(served, truncation="auto")
    assert "truncated_messages" not in short["usage"]["input_tokens_details"]


def test_truncation_leaves_no_result_without_its_call(served: Live) -> None:
    turns: list[dict[str, Any]] = []
    for i in range(40):
        turns += [
            {"role": "user", "content": "word " * 60},
            {"type": "function_call", "name": "f", "arguments": "{}", "call_id": f"c{i}"},
            {"type": "function_call_output", "call_id": f"c{i}", "output": "word " * 60},
        ]
    answer = respond(served, [*turns, {"role": "user", "content": "x"}], truncation="auto")
    assert answer["usage"]["input_tokens_details"]["truncated_messages"] % 3 == 0


def test_lim_01_too_many_output_tokens(served: Live) -> None:
    """LIM-01: the error names the limit, the prompt and what was asked for."""
    error = refused(served, max_output_tokens=5000)
    assert error["code"] == "context_length_exceeded"
    assert error["param"] == "max_output_tokens"
    assert "2048" in error["message"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"background": True}, "background"),
        ({"n": 2}, "n"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": 1.5}, "max_output_tokens"),
        ({"max_output_tokens": "5"}, "max_output_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": -0.1}, "top_p"),
        ({"stream": "false"}, "stream"),
        ({"truncation": "some"}, "truncation"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"include": "x"}, "include"),
        ({"reasoning": {"effort": 5}}, "reasoning.effort"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"input": {}}, "input"),
        ({"input": ["x"]}, "input[0]"),
        ({"input": [{"type": "nonsense"}]}, "input[0].type"),
        ({"input": [{"type": 5}]}, "input[0].type"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0]"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": ["user"], "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": 5}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": [{"text": "x"}]}]}, "input[0].content[0].type"),
        (
            {"input": [{"role": "user", "content": "x"}, {"role": "user", "content": [
                {"type": "input_text", "text": "x"}, {"type": "input_text", "text": 5}]}]},
            "input[1].content[1].text",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "input[0].content[0]",
        ),
        ({"input": [{"type": "function_call", "name": "f", "call_id": "c"}]}, "input[0].arguments"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": {}}]},
         "input[0].output"),
        ({"input": [{"role": "system", "content": "x"}]}, "input"),
        ({"tools": {}}, "tools"),
        ({"tools": [5]}, "tools[0]"),
        ({"tools": [{"name": "x"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"),
        ({"tools": [WEATHER, WEATHER]}, "tools[1].name"),
        ({"tools": [{**WEATHER, "parameters": 5}]}, "tools[0].parameters"),
        ({"tools": [{**WEATHER, "strict": "yes"}]}, "tools[0].strict"),
        ({"tools": [WEATHER], "tool_choice": "sometimes"}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "name": "f"}},
         "tool_choice.name"),
        ({"tools": [WEATHER], "tool_choice": {"type": "web_search"}}, "tool_choice.type"),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [WEATHER, {"type": "web_search"}], "tool_choice":
          {"type": "allowed_tools", "mode": "required", "tools": [{"type": "web_search"}]}},
         "tool_choice.tools"),
        ({"top_k": "x"}, "top_k"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
    ],
)  # fmt: skip
def test_lim_05_what_is_wrong_is_named(served: Live, body: dict[str, Any], param: str) -> None:
    """LIM-05: wrong types and values are refused by their path, and the server goes on."""
    error = refused(served, **body)
    assert error["param"] == param
    assert param.split("[")[0] in error["message"]
    assert error["type"] == "invalid_request_error"


def test_unknown_models_are_404(served: Live) -> None:
    assert refused(served, 404, model="gpt-4o")["code"] == "model_not_found"


@pytest.mark.parametrize(
    "body",
    [
        b"[]", b"5", b"{:", b"", b'"x"', b"{}",
        b'{"input": ' + b"[" * 5000 + b"]" * 5000 + b"}",
        b'{"input": "x", "tools": [' + b'{"a":' * 150 + b"1" + b"}" * 150 + b"]}",
        b'{"input": "x", "max_output_tokens": ' + b"9" * 400 + b"}",
        b'{"input": "x", "temperature": 1e999}',
        b'{"input": "x", "temperature": NaN}',
        b'{"input": "\\ud800"}',
        b'{"input": [{"role": "user", "content": "\\ud800"}]}',
    ],
)  # fmt: skip
def test_lim_05_bodies_that_are_none(served: Live, body: bytes) -> None:
    """LIM-05: not JSON, not an object, too deep, too large a number: 400, never 500."""
    headers = {"content-type": "application/json"}
    response = served.client.post(PATH, content=body, headers=headers)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["type"] == "invalid_request_error"
    respond(served, max_output_tokens=1)


def test_chat_10_unknown_fields_and_extensions(served: Live) -> None:
    """CHAT-10: what this server does not know is ignored; what it knows from its chat is used."""
    served.runner.says("a very long answer")
    answer = respond(served, nonsense=1, user="me", safety_identifier="s", stop=" long")
    assert answer["output"][0]["content"][0]["text"] == "a very"
    assert answer["safety_identifier"] == "s"


def test_numbers_too_long_to_print_are_no_500(served: Live) -> None:
    deep = b'{"input": "x", "tools": [{"type": "function", "name": "f", "parameters": {"a": %s}}]}'
    headers = {"content-type": "application/json"}
    body = deep % (b"9" * 700)
    assert served.client.post(PATH, content=body, headers=headers).status_code == 200
    for digits in (4300, 5000):
        body = deep % (b"9" * digits)
        assert served.client.post(PATH, content=body, headers=headers).status_code == 400
