"""Damaged bodies on every route with a body of its own kind: an error by its path, or an answer."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from helpers.fake_service import make_engine
from helpers.live_server import Live, live
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
RESPONSES = {
    "model": "tinyserve",
    "instructions": "x",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "x"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "x"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "x"},
        {"type": "local_shell_call", "call_id": "d", "action": {"type": "exec"}},
    ],
    "tools": [
        {"type": "function", "name": "f", "parameters": SCHEMA, "strict": True},
        {"type": "namespace", "name": "n", "tools": [{"type": "custom", "name": "g"}]},
    ],
    "tool_choice": {
        "type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}],
    },
    "text": {"format": {"type": "text"}},
    "reasoning": {"effort": "low"},
    "include": ["message.output_text.logprobs"],
    "top_logprobs": 1,
    "metadata": {"a": "b"},
    "max_output_tokens": 3,
    "temperature": 1.0,
    "top_p": 0.9,
    "truncation": "auto",
    "stream": False,
    "store": False,
    "top_k": 3,
    "stop": ["q"],
    "chat_template_kwargs": {"a": 1},
}  # fmt: skip
MESSAGES = {
    "model": "tinyserve",
    "system": [{"type": "text", "text": "x"}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "x"}]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "x", "signature": ""},
            {"type": "tool_use", "id": "t", "name": "f", "input": {"a": "b"}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [
            {"type": "document", "source": {"type": "text", "data": "x"}}]}]},
    ],
    "tools": [{"name": "f", "description": "x", "input_schema": SCHEMA}],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "chat_template_kwargs": {"a": 1},
    "metadata": {"user_id": "u"},
    "output_config": {"effort": "low"},
    "stop_sequences": ["q"],
    "max_tokens": 3,
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 5,
    "stream": False,
}  # fmt: skip
TOKENIZE = {"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": {"a": 1}}
BODIES = {
    "/v1/responses": RESPONSES,
    "/v1/responses/input_tokens": RESPONSES,
    "/v1/messages": MESSAGES,
    "/v1/messages/count_tokens": MESSAGES,
    "/tokenize": TOKENIZE,
    "/detokenize": {"tokens": [1, 2, 3]},
    "/apply-template": {**TOKENIZE, "temperature": 1, "tools": [], "tool_choice": "none"},
}
JUNK: list[Any] = [
    None, True, False, 0, -1, 1.5, 10**30, -(10**30), 1e300, "", "x", "auto", "function", "\x00",
    "é😀", [], {}, [[]], [None], {"type": "text"}, {"type": "function"}, {"": None}, {"a": [{}]},
    "<|im_end|>", "{{ x }}", [[[[[[[[[[1]]]]]]]]]],
]  # fmt: skip


@pytest.fixture(scope="module")
def roomy() -> Iterator[Live]:
    engine = make_engine(
        scheduler={"max_model_len": 2048, "max_num_batched_tokens": 512},
        cache={"num_blocks": 1024, "block_size": 8},
    )
    with live(engine) as running:
        yield running


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value inside."""
    if path:
        yield path
    if isinstance(value, dict | list):
        for key, member in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(member, (*path, key))


@st.composite
def damaged(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """A good body of some route, with a few values replaced by others, or gone."""
    route = draw(st.sampled_from(sorted(BODIES)))
    body: dict[str, Any] = copy.deepcopy(BODIES[route])
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(list(places(body)) or [("x",)]))
        parent: Any = body
        for key in path[:-1]:
            parent = parent[key]
        if draw(st.booleans()) and isinstance(parent, dict):
            parent.pop(path[-1], None)
        else:
            parent[path[-1]] = copy.deepcopy(draw(st.sampled_from(JUNK)))
    return route, body


@settings(
    max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(case=damaged())
def test_damaged_bodies_are_refused_or_answered(
    roomy: Live, case: tuple[str, dict[str, Any]]
) -> None:
    route, body = case
    response = roomy.post(route, **body)
    assert response.status_code in (200, 400, 404), response.text
    if response.status_code == 200:
        return
    told = response.json()
    assert told["error"]["type"] in ("invalid_request_error", "not_found_error")
    assert 0 < len(told["error"]["message"]) < 2000
    assert (told.get("type") == "error") == route.startswith("/v1/messages")


def test_the_undamaged_bodies_are_good(roomy: Live) -> None:
    for route, body in BODIES.items():
        assert roomy.post(route, **body).status_code == 200, route
    roomy.wait_idle()
