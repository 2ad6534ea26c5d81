"""Streams: what is in a chunk, and that a stream is its whole answer cut up.

Casebook ids in names.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from helpers.fake_service import make_engine, tokenizer
from helpers.live_server import Live, live, ok, sse_events, wait_for
from helpers.slow_gate import LateGate
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tinyserve.server.session as session_module

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello"}]


def joined(chunks: list[dict[str, Any]], *, is_chat: bool) -> dict[int, dict[str, Any]]:
    """The whole choices that a stream's chunks add up to."""
    choices: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for part in chunk["choices"]:
            choice = choices.setdefault(part["index"], {"text": "", "logprobs": None, "ids": []})
            assert "finish_reason" not in choice, "a chunk after the finish"
            choice["text"] += part["delta"].get("content", "") if is_chat else part["text"]
            choice["ids"] += part.get("token_ids", [])
            if part["logprobs"] is not None:
                for key, values in part["logprobs"].items():
                    choice["logprobs"] = choice["logprobs"] or {}
                    so_far = choice["logprobs"].get(key)
                    choice["logprobs"][key] = (so_far or []) + values if values else so_far
            if part["finish_reason"] is not None:
                choice["finish_reason"] = part["finish_reason"]
                choice["stop_reason"] = part.get("stop_reason")
    return choices


def whole(answer: dict[str, Any], *, is_chat: bool) -> dict[int, dict[str, Any]]:
    return {
        choice["index"]: {
            "text": choice["message"]["content"] if is_chat else choice["text"],
            "logprobs": choice["logprobs"],
            "ids": choice["token_ids"],
            "finish_reason": choice["finish_reason"],
            "stop_reason": choice.get("stop_reason"),
        }
        for choice in answer["choices"]
    }


SHARED = {
    "max_tokens": st.integers(1, 24),
    "temperature": st.sampled_from([0.0, 0.7, 1.5]),
    "seed": st.integers(0, 2**32),
    "n": st.integers(1, 4),
    "stop": st.none() | st.lists(st.text("aeothr s", min_size=1, max_size=3), max_size=3),
    "include_stop_str_in_output": st.booleans(),
    "skip_special_tokens": st.booleans(),
    "ignore_eos": st.booleans(),
    "min_tokens": st.just(0) | st.just(1),
}


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    body=st.fixed_dictionaries(SHARED),
    prompt=st.sampled_from(["hello", ["one", "two"], [70, 71, 200], [[65], [66, 67]]]),
    echo=st.booleans(),
    logprobs=st.none() | st.integers(0, 3),
)
def test_log_10_str_15_completion_streams_equal_whole_answers(
    served: Live, body: dict[str, Any], prompt: Any, echo: bool, logprobs: int | None
) -> None:
    """LOG-10, LOG-13, STR-15."""
    body = {**body, "prompt": prompt, "echo": echo, "logprobs": logprobs, "return_token_ids": True}
    answer = ok(served.post(COMPLETIONS, **body))
    chunks = served.stream(COMPLETIONS, **body, stream_options={"include_usage": True})
    assert joined(chunks, is_chat=False) == whole(answer, is_chat=False)
    for key in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert chunks[-1]["usage"][key] == answer["usage"][key]
    told = [c for chunk in chunks for c in chunk["choices"] if "prompt_token_ids" in c]
    prompts = {choice["index"]: choice["prompt_token_ids"] for choice in told}
    assert prompts == {c["index"]: c["prompt_token_ids"] for c in answer["choices"]}
    assert len(told) == len(prompts)


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=st.fixed_dictionaries(SHARED), top=st.none() | st.integers(0, 3))
def test_log_10_str_15_chat_streams_equal_whole_answers(
    served: Live, body: dict[str, Any], top: int | None
) -> None:
    """LOG-10, STR-15."""
    body = {**body, "messages": HELLO, "return_token_ids": True}
    if top is not None:
        body |= {"logprobs": True, "top_logprobs": top}
    answer = ok(served.post(CHAT, **body))
    first, *others = chunks = served.stream(CHAT, **body)
    assert joined(chunks, is_chat=True) == whole(answer, is_chat=True)
    assert first["prompt_token_ids"] == answer["prompt_token_ids"]
    assert not any("prompt_token_ids" in chunk for chunk in others)


def test_log_13_echo_with_several_prompts_and_no_tokens(served: Live) -> None:
    """LOG-13."""
    body = {"prompt": ["Warsaw is", "so"], "n": 2, "max_tokens": 0, "echo": True, "logprobs": 1}
    chunks = served.stream(COMPLETIONS, **body)
    answer = ok(served.post(COMPLETIONS, **body))
    texts = {index: choice["text"] for index, choice in joined(chunks, is_chat=False).items()}
    assert texts == {0: "Warsaw is", 1: "Warsaw is", 2: "so", 3: "so"}
    assert joined(chunks, is_chat=False)[2]["logprobs"] == answer["choices"][2]["logprobs"]
    assert chunks[0]["choices"][0]["logprobs"]["token_logprobs"][0] is None


@pytest.mark.parametrize("text", ["ďábel 日本 😀!", "😀", "é" * 5])
def test_str_01_characters_are_never_cut(served: Live, text: str) -> None:
    """STR-01."""
    served.runner.says(text)
    chunks = served.stream(COMPLETIONS, prompt="x", max_tokens=60)
    texts = [chunk["choices"][0]["text"] for chunk in chunks]
    assert "".join(texts) == text
    assert not any("\ufffd" in piece for piece in texts)


BREAKS = "a\u2028b\x85c\u2029d\x0b\x0c\x1ce"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (COMPLETIONS, {"prompt": "x", "logprobs": 1}),
        (CHAT, {"messages": HELLO}),
        ("/v1/responses", {"input": "x", "instructions": BREAKS}),
        ("/v1/messages", {"messages": HELLO}),
    ],
)
def test_an_event_is_one_line_by_any_measure(served: Live, path: str, body: dict[str, Any]) -> None:
    """HTTP-03: Python's own lines end at characters that the standard does not know as ends, and
    clients that read by them lost those events."""
    served.runner.says(BREAKS)
    length = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    response = served.post(path, stream=True, **{length: 60}, **body)
    assert response.text.splitlines() == response.text.split("\n")[:-1]
    shown = ""
    for line in response.iter_lines():
        if line.startswith("data: {"):
            event = json.loads(line.removeprefix("data: "))
            part = event["choices"][0] if "choices" in event else event
            delta = part if "text" in part and "choices" in event else part.get("delta", "")
            shown += (
                delta if isinstance(delta, str) else delta.get("content", delta.get("text", ""))
            )
    assert shown == BREAKS


def test_str_02_ends_inside_a_character(served: Live) -> None:
    """STR-02."""
    served.runner.says("😀")
    body = {"prompt": "x", "max_tokens": 1}
    answer = ok(served.post(COMPLETIONS, **body))
    chunks = served.stream(COMPLETIONS, **body)
    assert answer["choices"][0]["text"] == "\ufffd"
    assert "".join(c["choices"][0]["text"] for c in chunks) == "\ufffd"
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 1


def test_str_03_invalid_bytes_are_valid_json(served: Live) -> None:
    """STR-03."""
    (byte_ff,) = (i for i in range(512) if tokenizer().token_bytes(i) == b"\xff")
    served.runner.script = [byte_ff] * 3
    answer = served.complete(max_tokens=3, logprobs=1)
    assert answer["choices"][0]["text"] == "\ufffd" * 3


def test_str_05_nothing_of_a_stop_string_leaks(served: Live) -> None:
    """STR-05."""
    served.runner.says("DEFGHIJKLM")
    chunks = served.stream(
        COMPLETIONS, prompt="the alphabet: ABC", stop=["DEFGHIJ"], max_tokens=40, logprobs=1
    )
    assert [c["choices"][0]["text"] for c in chunks] == [""]
    assert chunks[0]["choices"][0]["finish_reason"] == "stop"
    assert len(chunks[0]["choices"][0]["logprobs"]["tokens"]) == 7


def test_str_05_held_text_comes_as_soon_as_it_cannot_match(served: Live) -> None:
    """STR-05."""
    served.runner.says("DEFG-")
    chunks = served.stream(COMPLETIONS, prompt="x", stop=["DEFGH"], max_tokens=5)
    assert [c["choices"][0]["text"] for c in chunks] == ["DEFG-"]


def test_str_18_text_does_not_wait_for_spaces(served: Live) -> None:
    """STR-18."""
    served.runner.says("aHR0cHM6Ly9")
    chunks = served.stream(COMPLETIONS, prompt="x", max_tokens=30)
    assert len([c for c in chunks if c["choices"][0]["text"]]) > 8


def test_str_11_usage_only_when_asked_for(served: Live) -> None:
    """STR-11."""

    def stream(**options: Any) -> list[dict[str, Any]]:
        return served.stream(CHAT, messages=HELLO, max_tokens=3, ignore_eos=True, **options)

    for options in ({}, {"stream_options": {}}, {"stream_options": {"include_usage": False}}):
        chunks = stream(**options)
        assert all("usage" not in chunk for chunk in chunks)
        assert all(chunk["choices"] for chunk in chunks)
    *chunks, last = stream(stream_options={"include_usage": True})
    assert all(chunk["usage"] is None for chunk in chunks)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 3
    running = stream(stream_options={"include_usage": True, "continuous_usage_stats": True})
    counts = [c["usage"]["completion_tokens"] for c in running[:-1]]
    assert counts == [0, *sorted(counts[1:])]  # the chunk of the role has one, too
    assert len({c["usage"]["prompt_tokens"] for c in running}) == 1
    assert counts[-1] == running[-1]["usage"]["completion_tokens"] == 3


def test_str_13_one_finish_reason_for_each_choice(served: Live) -> None:
    """STR-13."""
    for body in ({"max_tokens": 1}, {"max_tokens": 0}, {"n": 3, "max_tokens": 9}):
        chunks = served.stream(COMPLETIONS, prompt="x", **body)
        reasons = [c["choices"][0]["finish_reason"] for c in chunks]
        assert sum(reason is not None for reason in reasons) == body.get("n", 1)
    served.runner.script = []  # nothing but EOS
    chunks = served.stream(CHAT, messages=HELLO)
    assert [c["choices"][0]["finish_reason"] for c in chunks] == [None, "stop"]


def test_str_14_role_comes_first_and_once(served: Live) -> None:
    """STR-14."""
    chunks = served.stream(CHAT, messages=HELLO, n=2, max_tokens=5, ignore_eos=True)
    seen: dict[int, list[dict[str, Any]]] = {}
    for chunk in chunks:
        (choice,) = chunk["choices"]
        seen.setdefault(choice["index"], []).append(choice["delta"])
    for deltas in seen.values():
        assert deltas[0] == {"role": "assistant", "content": ""}
        assert all("role" not in delta for delta in deltas[1:])


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_str_19_one_identity_for_each_response(served: Live, path: str) -> None:
    """STR-19."""
    chunks = served.stream(path, prompt="x", messages=HELLO, n=3, max_tokens=6)
    for key in ("id", "created", "model", "object", "system_fingerprint"):
        assert len({chunk[key] for chunk in chunks}) == 1


def test_str_17_no_stream_unless_it_is_true(served: Live) -> None:
    """STR-17."""
    for body in ({"stream": False}, {"stream": None}, {}):
        response = served.post(CHAT, messages=HELLO, max_tokens=1, **body)
        assert response.headers["content-type"] == "application/json"
        assert response.json()["object"] == "chat.completion"


def test_http_03_headers(served: Live) -> None:
    """HTTP-03."""
    response = served.post(COMPLETIONS, prompt="x", stream=True)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"
    assert "content-encoding" not in response.headers


def test_http_03_pings_while_nothing_comes(served: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """HTTP-03."""
    monkeypatch.setattr(session_module, "PING_INTERVAL_S", 0.02)
    served.runner.says("ab")
    served.runner.gate.clear()
    with served.client.stream(
        "POST", COMPLETIONS, json={"prompt": "x", "stream": True}
    ) as response:
        lines = response.iter_lines()
        assert next(lines) == ": ping"
        served.runner.gate.set()
        text = "\n".join([*lines, ""])
    assert text.endswith("data: [DONE]\n\n")


def test_http_02_an_error_in_the_middle_is_no_silent_end() -> None:
    """HTTP-02."""
    engine = make_engine()
    with live(engine, check_idle=False) as served:
        served.runner.says("a" * 100)
        served.runner.gate = LateGate(3)  # or all might be there before the client has read any
        body = {"prompt": "x", "max_tokens": 100, "stream": True}
        with served.client.stream("POST", COMPLETIONS, json=body) as response:
            text = ""
            for piece in response.iter_text():
                text += piece
                served.runner.error = RuntimeError("the model fell over")
                served.runner.gate.set()
        events = sse_events(text)
        assert "[DONE]" not in events
        error = json.loads(events[-1])["error"]
        assert error["code"] == "engine_unavailable"
        wait_for(lambda: served.client.get("/health").status_code == 503)
        assert served.client.get("/health").json()["status"] == "dead"
        assert served.post(COMPLETIONS, prompt="x").status_code == 503
        assert served.post(COMPLETIONS, prompt="x", stream=True).status_code == 503


def test_errors_before_the_first_byte_are_json(served: Live) -> None:
    for body in ({"prompt": ""}, {"prompt": "x", "n": 0}, {"prompt": [65] * 600}):
        response = served.post(COMPLETIONS, stream=True, **body)
        assert response.status_code == 400
        assert response.headers["content-type"] == "application/json"
    served.runner.nan_token = 65
    response = served.post(COMPLETIONS, stream=True, prompt=[65])
    assert response.status_code == 500
    assert "NaN" in response.json()["error"]["message"]
