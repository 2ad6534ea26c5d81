"""`/v1/chat/completions` whole: messages, logprobs, what is refused and what is ignored."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from helpers.fake_service import make_engine, tokenizer
from helpers.live_server import Live, live, ok

PATH = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello"}]


def refused(served: Live, status: int = 400, **body: Any) -> dict[str, Any]:
    response = served.post(PATH, **{"messages": HELLO, **body})
    assert response.status_code == status, response.text
    served.chat(max_tokens=1)
    error: dict[str, Any] = response.json()["error"]
    return error


def num_prompt_tokens(served: Live, messages: Any, **body: Any) -> int:
    answer = ok(served.post(PATH, messages=messages, max_tokens=1, **body))
    count: int = answer["usage"]["prompt_tokens"]
    return count


def test_shape_of_an_answer(served: Live) -> None:
    served.runner.says("well then")
    answer = served.chat()
    assert answer["object"] == "chat.completion"
    assert answer["id"].startswith("chatcmpl-")
    (choice,) = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": "well then"}
    assert choice["finish_reason"] == "stop"
    assert choice["logprobs"] is None


def test_chat_03_the_template_is_not_given_a_second_bos(served: Live) -> None:
    """CHAT-03."""
    rendered = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    expected = len(tokenizer().encode(rendered, add_special_tokens=False))
    assert num_prompt_tokens(served, HELLO) == expected


def test_content_parts_read_like_a_string(served: Live) -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]
    assert num_prompt_tokens(served, parts) == num_prompt_tokens(served, HELLO)
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
    assert refused(served, messages=image)["param"] == "messages[0].content[0]"


def test_developer_is_system(served: Live) -> None:
    system, developer = (
        [{"role": role, "content": "be"}, *HELLO] for role in ("system", "developer")
    )
    assert num_prompt_tokens(served, developer) == num_prompt_tokens(served, system)


def test_lim_01_chat_without_a_limit_uses_the_room(served: Live) -> None:
    """LIM-01."""
    answer = served.chat(ignore_eos=True, temperature=0)
    assert answer["usage"]["total_tokens"] == 512
    newer = served.chat(ignore_eos=True, max_completion_tokens=3, max_tokens=9)
    assert newer["usage"]["completion_tokens"] == 3


def test_continue_final_message(served: Live) -> None:
    served.runner.says(" 42")
    messages = [*HELLO, {"role": "assistant", "content": "It is"}]
    body = {"messages": messages, "continue_final_message": True}
    for echo, text in ((False, " 42"), (True, "It is 42")):
        answer = ok(served.post(PATH, **body, echo=echo))
        assert answer["choices"][0]["message"]["content"] == text
        chunks = served.stream(PATH, **body, echo=echo)
        assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks) == text
    error = refused(served, **body, add_generation_prompt=True)
    assert error["param"] == "continue_final_message"


def test_add_generation_prompt_off(served: Live) -> None:
    short = num_prompt_tokens(served, HELLO, add_generation_prompt=False)
    assert short < num_prompt_tokens(served, HELLO)


def test_log_01_chat_logprobs(served: Live) -> None:
    """LOG-01."""
    served.runner.says("ab")
    for body in ({}, {"top_logprobs": None}, {"top_logprobs": 0}):
        entries = served.chat(logprobs=True, max_tokens=2, **body)["choices"][0]["logprobs"][
            "content"
        ]
        assert [e["token"] for e in entries] == ["a", "b"]
        assert [e["top_logprobs"] for e in entries] == [[], []]
        assert all(e["logprob"] <= 0 for e in entries)
    twenty = served.chat(logprobs=True, top_logprobs=20, max_tokens=1)["choices"][0]["logprobs"]
    assert len(twenty["content"][0]["top_logprobs"]) == 20
    assert refused(served, top_logprobs=5)["param"] == "top_logprobs"
    assert served.chat(logprobs=False, top_logprobs=0)["choices"][0]["logprobs"] is None
    assert refused(served, logprobs=True, top_logprobs=21)["param"] == "top_logprobs"
    assert refused(served, logprobs=True, top_logprobs=-1)["param"] == "top_logprobs"
    assert refused(served, logprobs=1)["param"] == "logprobs"


def test_log_04_bytes_join_up_to_the_text(served: Live) -> None:
    """LOG-04."""
    served.runner.says("“naïve” 😀")
    choice = served.chat(logprobs=True, top_logprobs=2)["choices"][0]
    entries = choice["logprobs"]["content"]
    joined = bytes(b for entry in entries[:-1] for b in entry["bytes"])
    assert joined.decode() == choice["message"]["content"] == "“naïve” 😀"


@pytest.mark.parametrize(
    "messages",
    [
        [],
        {},
        ["hi"],
        [{"role": "user"}],
        [{"role": "user", "content": None}],
        [{"role": "user", "content": 5}],
        [{"role": "user", "content": {"text": "a"}}],
        [{"role": "user", "content": [{"type": "text", "text": 5}]}],
        [{"role": "user", "content": [5]}],
        [{"role": "x", "content": "a"}],
        [{"content": "a"}],
        [{"role": "system", "content": ["a", 1]}],
        None,
        "hello",
    ],
)
def test_lim_05_messages_of_the_wrong_kind(served: Live, messages: Any) -> None:
    """LIM-05."""
    assert (refused(served, messages=messages)["param"] or "").startswith("messages")


def test_chat_10_unknown_fields_are_ignored_with_one_log_line(
    served: Live, caplog: pytest.LogCaptureFixture
) -> None:
    """CHAT-10."""
    body = {
        "user": "me",
        "metadata": {"a": "b"},
        "store": False,
        "service_tier": "auto",
        "parallel_tool_calls": True,
        "reasoning_effort": "low",
        "tools": [],
        "tool_choice": "none",
        "response_format": {"type": "text"},
        "unheard_of": 1,
    }
    with caplog.at_level(logging.INFO, "tinyserve.server"):
        for _ in range(3):
            served.chat(max_tokens=1, **body)
    lines = [r.getMessage() for r in caplog.records if "unknown request fields" in r.getMessage()]
    assert len(lines) == 1
    assert "unheard_of" in lines[0]
    assert "metadata" not in lines[0]


@pytest.mark.parametrize(
    "body",
    [
        {"tool_choice": "required"},
        {"functions": [{"name": "f"}]},
        {"response_format": {"type": "xml"}},
        {"guided_thing": "x"},
        {"chat_template": "{{ 1 }}"},
        {"modalities": ["audio"]},
    ],
)
def test_gd_11_what_is_not_served_is_refused_by_name(served: Live, body: dict[str, Any]) -> None:
    """GD-11."""
    assert refused(served, **body)["param"] == next(iter(body))
    assert refused(served, stream=True, **body)["param"] == next(iter(body))


def test_chat_08_template_variables_cannot_replace_the_conversation(served: Live) -> None:
    """CHAT-08."""
    error = refused(served, chat_template_kwargs={"messages": []})
    assert error["param"] == "chat_template_kwargs"


def test_chat_01_a_template_set_by_the_operator(tmp_path: Any) -> None:
    """CHAT-01."""
    path = tmp_path / "t.jinja"
    path.write_text("{% for m in messages %}{{ m.content }}{% endfor %}{{ mood }}")
    with live(make_engine(model={"chat_template": str(path)})) as served:
        expected = len(tokenizer().encode("hello"))
        assert num_prompt_tokens(served, HELLO) == expected
        longer = num_prompt_tokens(served, HELLO, chat_template_kwargs={"mood": "z"})
        assert longer == expected + 1


def test_chat_07_template_errors_are_the_requests_fault() -> None:
    """CHAT-07."""
    template = "{{ raise_exception('roles must alternate') }}"
    with live(make_engine(model={"chat_template": template})) as served:
        response = served.post(PATH, messages=HELLO)
        assert response.status_code == 400
        assert "roles must alternate" in response.json()["error"]["message"]
        served.complete(max_tokens=1)
