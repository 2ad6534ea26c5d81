"""Halves of characters, as escapes in what a model wrote: no writer fails on them (STR-03)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from helpers.fake_service import make_engine
from helpers.live_server import Live, live

USER = {"role": "user", "content": "hello"}
FUNCTION = {"name": "f", "parameters": {"type": "object"}}
HALF = r"\ud83d"
KINDS = ("function", "function_call", "custom_tool_call", "tool_use")
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "messages": [USER],
        "tools": [{"type": "function", "function": FUNCTION}],
    },
    "/v1/responses": {
        "input": "hello",
        "tools": [{"type": "function", **FUNCTION}, {"type": "custom", "name": "c"}],
    },
    "/v1/messages": {
        "messages": [USER],
        "tools": [{"name": "f", "input_schema": {}}],
        "max_tokens": 500,
    },
}


@pytest.fixture(scope="module")
def served() -> Iterator[Live]:
    engine = make_engine(
        scheduler={"max_model_len": 2048}, cache={"num_blocks": 1024, "block_size": 8}
    )
    with live(engine) as running:
        yield running


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "call",
    [
        f'{{"name": "{HALF}", "arguments": {{}}}}',
        f'{{"name": "f", "arguments": "{HALF}"}}',
        f'{{"name": "f", "arguments": {{"a": "{HALF}", "{HALF}": "b"}}}}',
        f'{{"name": "c", "arguments": {{"input": "x{HALF}"}}}}',
        f'{{"arguments": "{HALF}", "name": "f{HALF}"}}',
    ],
)
def test_str_03_half_a_character_in_a_call(
    served: Live, path: str, stream: bool, call: str
) -> None:
    """STR-03: the answer is JSON in UTF-8, and the call is in it."""
    served.runner.says(f"<tool_call>{call}</tool_call>")
    response = served.post(path, **ROUTES[path], stream=stream)
    assert response.status_code == 200, response.text
    assert '"error":{' not in response.text
    assert any(f'"{kind}"' in response.text for kind in KINDS), "it is read as a call"
    if not stream:
        json.dumps(response.json(), ensure_ascii=False)


def test_messages_keep_the_rest_of_such_arguments(served: Live) -> None:
    served.runner.says(f'<tool_call>{{"name": "f", "arguments": {{"a": "x{HALF}"}}}}</tool_call>')
    answer = served.post("/v1/messages", **ROUTES["/v1/messages"]).json()
    assert [block["input"] for block in answer["content"]] == [{"a": "x\ufffd"}]


def test_a_custom_tools_text_has_whole_characters(served: Live) -> None:
    served.runner.says(
        f'<tool_call>{{"name": "c", "arguments": {{"input": "x{HALF}"}}}}</tool_call>'
    )
    answer = served.post("/v1/responses", **ROUTES["/v1/responses"]).json()
    assert [item["input"] for item in answer["output"]] == ["x\ufffd"]
