"""The casebook on conversations: what is echoed, what is truncated, how faults are named."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from helpers.fake_service import make_engine
from helpers.live_server import Live, live, ok

CHAT, PATH = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def served() -> Iterator[Live]:
    with live(make_engine()) as running:
        running.runner.says(" 42")
        yield running


@pytest.mark.parametrize(
    "content",
    [
        "It is",
        [{"type": "text", "text": "It is"}],
        [{"type": "output_text", "text": "It is"}],
        [{"type": "text", "text": "It"}, {"type": "text", "text": "is"}],
        ["It is"],
    ],
)
def test_whatever_its_form_what_is_continued_is_echoed(served: Live, content: Any) -> None:
    """CHAT-14: a list of parts was left out."""
    messages = [*HELLO, {"role": "assistant", "content": content}]
    body = {"messages": messages, "continue_final_message": True, "n": 2}
    old = "It\nis" if len(content) == 2 else "It is"
    for echo, expected in ((False, " 42"), (True, f"{old} 42")):
        choices = ok(served.post(CHAT, **body, echo=echo))["choices"]
        assert [choice["message"]["content"] for choice in choices] == [expected] * 2
        streamed = {0: "", 1: ""}
        for chunk in served.stream(CHAT, **body, echo=echo):
            (choice,) = chunk["choices"]
            streamed[choice["index"]] += choice["delta"].get("content", "")
        assert streamed == {0: expected, 1: expected}


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "user"}, "messages[1].content"),
        ({"role": "user", "content": None}, "messages[1].content"),
        ({"role": "user", "content": 5}, "messages[1].content"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[1].content[0].text"),
        ({"role": "user", "content": ["a", {"type": "image_url"}]}, "messages[1].content[1]"),
        ({"role": "assistant", "tool_calls": [{}]}, "messages[1].tool_calls[0]"),
        ({"role": "assistant", "content": None}, "messages[1].content"),
        ({"role": "who", "content": "a"}, "messages[1].role"),
        ({"content": "a"}, "messages[1].role"),
    ],
)
def test_the_fault_in_a_message_is_named_by_its_path(
    served: Live, message: dict[str, Any], param: str
) -> None:
    """LIM-05"""
    refused = served.post(CHAT, messages=[*HELLO, message])
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
    served.chat(max_tokens=1)


def test_a_refusal_in_the_history_is_text(served: Live) -> None:
    """CHAT-10: a part that OpenAI's own answers hold."""
    refusal = [{"type": "refusal", "refusal": "no"}]
    counts = []
    for content in (refusal, "no"):
        messages = [*HELLO, {"role": "assistant", "content": content}, *HELLO]
        counts.append(ok(served.post("/tokenize", messages=messages))["tokens"])
    assert counts[0] == counts[1]


@pytest.mark.parametrize("max_tokens", [0, 1, 20, 511])
def test_truncation_to_the_room(served: Live, max_tokens: int) -> None:
    """LIM-12: -1 keeps the end of the prompt that leaves room for the answer; nothing else does."""
    prompt = list(range(3, 503)) * 3
    body = {"max_tokens": max_tokens, "ignore_eos": True, "return_token_ids": True}
    answer = served.complete(prompt, truncate_prompt_tokens=-1, **body)
    kept = answer["choices"][0]["prompt_token_ids"]
    assert len(kept) == 512 - max_tokens
    assert kept == prompt[-len(kept) :]
    assert answer["usage"]["prompt_tokens"] == len(kept)
    assert answer["usage"]["completion_tokens"] == max_tokens
    assert served.post(PATH, prompt=prompt, **body).status_code == 400
    assert served.complete([5], truncate_prompt_tokens=-1)["usage"]["prompt_tokens"] == 1


@pytest.mark.parametrize("value", [0, -2, 1.5, "1", True])
def test_truncation_that_makes_no_sense(served: Live, value: Any) -> None:
    """LIM-12"""
    for path, body in ((PATH, {"prompt": "x"}), (CHAT, {"messages": HELLO})):
        refused = served.post(path, **body, truncate_prompt_tokens=value)
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "truncate_prompt_tokens"
