"""The events of `/v1/messages`: each of the official type, and together the whole answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from anthropic.types import RawMessageStreamEvent
from helpers.fake_service import make_engine, tokenizer
from helpers.live_server import Live, live, ok, wait_for
from helpers.official import named_events, strictly
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

PATH = "/v1/messages"
HELLO: list[Any] = [{"role": "user", "content": "hello"}]
TOOLS: list[Any] = [{"name": "add", "input_schema": {"type": "object"}}]
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": [1, "é"]}}\n</tool_call>'
PIECES = ["a 😀", " ", "\n\n", "it is", CALL, "<tool_call>\n{", "</tool_call>", "<think>"]


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
    """Events, each of the official type, in an order that the protocol allows."""
    body = {"messages": HELLO, "max_tokens": 500, **body, "stream": True}
    response = served.post(PATH, **body)
    assert response.status_code == 200, response.text
    events = [event for event in named_events(response.text) if event["type"] != "ping"]
    for event in events:
        strictly(RawMessageStreamEvent, event)
    kinds = [event["type"] for event in events]
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    return events


def replay(events: list[dict[str, Any]]) -> dict[str, Any]:
    """What the official client puts together, and that blocks neither overlap nor go back."""
    from anthropic.lib.streaming._messages import accumulate_event

    snapshot, buffers, is_open, num_blocks = None, {}, False, 0
    for event in events:
        kind = event["type"]
        if kind == "content_block_start":
            assert not is_open
            assert event["index"] == num_blocks
            is_open, num_blocks = True, num_blocks + 1
        elif kind.startswith("content_block"):
            assert is_open
            assert event["index"] == num_blocks - 1
            is_open = kind != "content_block_stop"
        else:
            assert not is_open
        snapshot = accumulate_event(
            event=event,  # type: ignore[arg-type]
            current_snapshot=snapshot,
            json_bufs=buffers,
        )
    assert snapshot is not None
    return snapshot.to_dict()


def nameless(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer without what differs between two requests."""
    content = [
        {k: v for k, v in block.items() if k not in ("id", "parsed_output")}
        for block in answer["content"]
    ]
    differing = ("id", "stop_details")  # the client adds the latter
    return {k: v for k, v in answer.items() if k not in differing} | {"content": content}


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    pieces=st.lists(st.sampled_from(PIECES), max_size=6),
    thinks=st.booleans(),
    limit=st.integers(1, 120) | st.just(500) | st.just(5000),
    tools=st.booleans(),
    stops=st.lists(st.sampled_from(["it", "hm", "1,"]), max_size=2),
)
def test_streams_equal_whole_answers(
    served: Live, pieces: list[str], thinks: bool, limit: int, tools: bool, stops: list[str]
) -> None:
    served.runner.says(("<think>hm\n</think>\n\n" if thinks else "") + "".join(pieces))
    body: dict[str, Any] = {"messages": HELLO, "max_tokens": limit, "stop_sequences": stops}
    if tools:
        body["tools"] = TOOLS
    served.engine.core._kv.clear_cache()
    whole = ok(served.post(PATH, **body))
    served.engine.core._kv.clear_cache()
    assert nameless(replay(stream(served, **body))) == nameless(whole)


def test_order_of_events(served: Live) -> None:
    served.runner.says(f"<think>a</think>b{CALL}")
    events = stream(served, tools=TOOLS)
    seen = [
        (event["type"], (event.get("content_block") or event.get("delta") or {}).get("type"))
        for event in events
    ]
    once = [entry for i, entry in enumerate(seen) if seen[i - 1 : i] != [entry]]
    start, delta, stop = (f"content_block_{kind}" for kind in ("start", "delta", "stop"))
    assert once == [
        ("message_start", None),
        (start, "thinking"), (delta, "thinking_delta"), (delta, "signature_delta"), (stop, None),
        (start, "text"), (delta, "text_delta"), (stop, None),
        (start, "tool_use"), (delta, "input_json_delta"), (stop, None),
        ("message_delta", None), ("message_stop", None),
    ]  # fmt: skip
    raw = named_events(served.post(PATH, messages=HELLO, max_tokens=5, stream=True).text)
    assert raw[1] == {"type": "ping"}


def test_http_02_a_failure_in_the_middle_is_no_silent_end(served: Live) -> None:
    """HTTP-02: after the first event a failure is an event, and the client raises."""
    served.runner.says("a" * 200 + "l.")
    served.runner.nan_token = tokenizer().encode("l", add_special_tokens=False)[0]
    with anthropic.Anthropic(base_url=served.base_url, api_key="none", max_retries=0) as client:
        made = client.messages.create(
            model="tinyserve", max_tokens=400, messages=HELLO, stream=True
        )
        with pytest.raises(anthropic.APIStatusError, match="NaN"):
            list(made)
    response = served.post(PATH, messages=HELLO, max_tokens=400, stream=True)
    last = response.text.removesuffix("\n\n").split("\n\n")[-1]
    assert last.startswith('event: error\ndata: {"type":"error","error":{"type":"api_error"')


def test_a_client_that_leaves_frees_everything(served: Live) -> None:
    body = {"messages": HELLO, "max_tokens": 5000, "stream": True, "ignore_eos": True}
    with served.client.stream("POST", PATH, json=body) as response:
        assert b"message_start" in next(response.iter_raw())
    wait_for(lambda: served.bridge.num_open == 0)
