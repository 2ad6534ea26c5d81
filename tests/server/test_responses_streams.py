"""The events of `/v1/responses`: each of the official type, and together the whole answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from helpers.fake_service import make_engine, tokenizer
from helpers.live_server import Live, live, ok, wait_for
from helpers.official import UNNAMED, named_events, strictly
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai.types.responses import ResponseStreamEvent
from pydantic import BaseModel

PATH = "/v1/responses"
TOOLS = [
    {"type": "function", "name": "add", "parameters": {"type": "object"}},
    {"type": "custom", "name": "write"},
]
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": [1, "é"]}}\n</tool_call>'
WRITE = '<tool_call>\n{"name": "write", "arguments": {"input": "x\\ny"}}\n</tool_call>'
PIECES = ["a 😀", " ", "\n\n", "it is", CALL, WRITE, "<tool_call>\n{", "</tool_call>", "<think>"]


@pytest.fixture(scope="module")
def shared_server() -> Iterator[Live]:
    engine = make_engine(
        scheduler={"max_model_len": 1024, "max_num_batched_tokens": 512},
        cache={"num_blocks": 1024, "block_size": 8},
        model={"reasoning_parser": "qwen3"},
    )
    with live(engine) as running:
        yield running


def stream(served: Live, **body: Any) -> list[dict[str, Any]]:
    """Events, each of the official type, numbered without a gap."""
    response = served.post(PATH, **{"input": "hello", **body, "stream": True})
    assert response.status_code == 200, response.text
    events = named_events(response.text)
    for event in events:
        strictly(ResponseStreamEvent, event, extra=UNNAMED)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


class Replay:
    """What a client puts together from the pieces of a stream."""

    def __init__(self, events: list[dict[str, Any]]) -> None:
        self.items: list[dict[str, Any]] = []
        self.text = ""
        self.logprobs: list[Any] = []
        for event in events:
            self._take(event, event["type"].removeprefix("response."))

    def _take(self, event: dict[str, Any], kind: str) -> None:
        if kind == "output_item.added":
            assert event["output_index"] == len(self.items)
            assert "item_done" not in event
            self.text, self.logprobs = "", []
            self.item_id = event["item"].get("id")
            return
        if "item_id" in event:
            assert event["item_id"] == self.item_id
            assert event["output_index"] == len(self.items)
        if kind.endswith(".delta"):
            self.text += event["delta"]
            self.logprobs += event.get("logprobs", [])
        elif kind in ("output_text.done", "reasoning_text.done"):
            assert event["text"] == self.text
            assert event.get("logprobs", []) == self.logprobs
        elif kind == "function_call_arguments.done":
            assert event["arguments"] == self.text
        elif kind == "custom_tool_call_input.done":
            assert event["input"] == self.text
        elif kind == "content_part.done":
            assert event["part"]["text"] == self.text
        elif kind == "output_item.done":
            assert event["item"]["id"] == self.item_id
            assert self.text == body_of(event["item"])
            self.items.append(event["item"])


def body_of(item: dict[str, Any]) -> str:
    text: str
    if item["type"] == "function_call":
        text = item["arguments"]
    elif item["type"] == "custom_tool_call":
        text = item["input"]
    else:
        text = item["content"][0]["text"]
    return text


def nameless(response: dict[str, Any]) -> dict[str, Any]:
    """A response without what differs between two requests."""
    items = [{k: v for k, v in i.items() if k not in ("id", "call_id")} for i in response["output"]]
    differing = ("id", "created_at", "completed_at")
    return {k: v for k, v in response.items() if k not in differing} | {"output": items}


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    pieces=st.lists(st.sampled_from(PIECES), max_size=6),
    thinks=st.booleans(),
    limit=st.none() | st.integers(1, 120),
    tools=st.booleans(),
    logprobs=st.none() | st.integers(0, 2),
)
def test_streams_equal_whole_answers(
    served: Live,
    pieces: list[str],
    thinks: bool,
    limit: int | None,
    tools: bool,
    logprobs: int | None,
) -> None:
    served.runner.says(("<think>hm\n</think>\n\n" if thinks else "") + "".join(pieces))
    body: dict[str, Any] = {"input": "hello", "max_output_tokens": limit}
    if tools:
        body["tools"] = TOOLS
    if logprobs is not None:
        body |= {"include": ["message.output_text.logprobs"], "top_logprobs": logprobs}
    served.engine.core._kv.clear_cache()
    whole = ok(served.post(PATH, **body))
    served.engine.core._kv.clear_cache()
    events = stream(served, **body)
    final = events[-1]["response"]
    assert events[-1]["type"] == f"response.{final['status']}"
    assert nameless(final) == nameless(whole)
    assert Replay(events).items == final["output"]
    assert final["id"] == events[0]["response"]["id"]


def test_order_of_events(served: Live) -> None:
    served.runner.says(f"<think>a</think>b{CALL}")
    kinds = [event["type"].removeprefix("response.") for event in stream(served, tools=TOOLS)]
    once = [kind for i, kind in enumerate(kinds) if kinds[i - 1 : i] != [kind]]
    around = [
        ["output_item.added", "content_part.added"],
        ["content_part.done", "output_item.done"],
    ]
    assert once == [
        "created", "in_progress",
        *around[0], "reasoning_text.delta", "reasoning_text.done", *around[1],
        *around[0], "output_text.delta", "output_text.done", *around[1],
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]  # fmt: skip


def test_http_02_a_failure_in_the_middle_is_no_silent_end(served: Live) -> None:
    """HTTP-02: after the first event a failure is an event, and the client raises."""
    served.runner.says("a" * 200 + "l.")
    served.runner.nan_token = tokenizer().encode("l", add_special_tokens=False)[0]
    kinds = []
    url = f"{served.base_url}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        events = client.responses.create(model="tinyserve", input="x", stream=True)
        with pytest.raises(openai.APIError, match="NaN"):  # noqa: PT012 the end is the point
            for event in events:
                strictly(ResponseStreamEvent, event.to_dict(), extra=UNNAMED)
                kinds.append(event.type)
    assert kinds[-1] == "response.failed"
    assert event.type == "response.failed"
    assert event.response.status == "failed"
    assert event.response.error is not None
    (item,) = event.response.output
    assert item.type == "message"
    assert item.status == "incomplete"
    raw = named_events(served.post(PATH, input="y", stream=True).text)
    assert raw[-1]["type"] == "error"
    assert raw[-1]["sequence_number"] == len(raw) - 1


def test_a_client_that_leaves_frees_everything(served: Live) -> None:
    body = {"input": "hello", "stream": True, "ignore_eos": True}
    with served.client.stream("POST", PATH, json=body) as response:
        assert b"response.created" in next(response.iter_raw())
    wait_for(lambda: served.bridge.num_open == 0)


class Answer(BaseModel):
    """What the model is asked to fill in."""

    city: str
    degrees: int


def test_a_parsed_answer(served: Live) -> None:
    served.runner.says('{"city": "Oslo", "degrees": -3}')
    url = f"{served.base_url}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        answer = client.responses.parse(model="tinyserve", input="x", text_format=Answer)
        assert answer.output_parsed == Answer(city="Oslo", degrees=-3)
        streamed = client.responses.stream(model="tinyserve", input="x", text_format=Answer)
        with streamed as events:
            events.until_done()
            assert events.get_final_response().output_parsed == answer.output_parsed
