"""Thinking in `/v1/chat/completions`, and the other fields that shape a conversation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from helpers.chat_streams import accumulate
from helpers.fake_service import make_engine, tokenizer
from helpers.live_server import Live, live, ok
from helpers.message_texts import wild_texts
from hypothesis import given, settings
from hypothesis import strategies as st

PATH = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello"}]
# Opens the thinking itself, unless told not to; shows an effort where there is one.
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}[{{ m.reasoning_content }}]{% endif %}{{ m.content }}<|im_end|>\n"
    "{% endfor %}{{ reasoning_effort }}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if thinking is defined and not thinking %}<think>\n\n</think>\n\n"
    "{% else %}<think>\n{% endif %}{% endif %}"
)


@pytest.fixture(scope="module")
def thinking_server() -> Iterator[Live]:
    with live(
        make_engine(model={"chat_template": TEMPLATE, "reasoning_parser": "auto"})
    ) as running:
        yield running


@pytest.fixture
def served(thinking_server: Live) -> Iterator[Live]:
    thinking_server.runner.reset()
    yield thinking_server
    thinking_server.runner.reset()
    thinking_server.wait_idle()


def both(served: Live, messages: Any = HELLO, **body: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The choice and the usage of a whole answer; the stream's are equal."""
    answer = ok(served.post(PATH, messages=messages, **body))
    chunks = served.stream(PATH, messages=messages, stream_options={"include_usage": True}, **body)
    (streamed,) = accumulate(chunks[:-1])
    choice: dict[str, Any] = answer["choices"][0]
    for message in (streamed["message"], choice["message"]):
        for call in message.get("tool_calls", ()):
            assert call.pop("id").startswith("call_")
    assert streamed["message"] == choice["message"]
    assert streamed["finish_reason"] == choice["finish_reason"]
    details = ("completion_tokens", "completion_tokens_details")
    assert [chunks[-1]["usage"].get(key) for key in details] == [
        answer["usage"].get(key) for key in details
    ]
    return choice, answer["usage"]


def num_prompt_tokens(served: Live, messages: Any = HELLO, **body: Any) -> int:
    answer = ok(served.post(PATH, messages=messages, max_tokens=1, **body))
    count: int = answer["usage"]["prompt_tokens"]
    return count


def num_tokens(text: str) -> int:
    return len(tokenizer().encode(text, add_special_tokens=False))


def test_chat_13_thinking_apart_from_the_answer(served: Live) -> None:
    served.runner.says("Why?\n</think>\n\nSo.")
    choice, usage = both(served)
    assert choice["message"] == {
        "role": "assistant", "content": "So.", "reasoning_content": "Why?",
    }  # fmt: skip
    assert usage["completion_tokens_details"]["reasoning_tokens"] == num_tokens("Why?\n</think>")


def test_chat_13_cut_inside_the_thinking(served: Live) -> None:
    """CHAT-13: content is empty and the answer was cut."""
    served.runner.says("Why? Because of the weather.</think>So.")
    choice, usage = both(served, max_tokens=2)
    assert choice["message"]["content"] == ""
    assert choice["message"]["reasoning_content"]
    assert choice["finish_reason"] == "length"
    assert usage["completion_tokens_details"]["reasoning_tokens"] == 2


def test_chat_13_thinking_that_the_template_has_closed(served: Live) -> None:
    served.runner.says("So.")
    choice, usage = both(served, chat_template_kwargs={"thinking": False})
    assert choice["message"] == {"role": "assistant", "content": "So."}
    assert usage["completion_tokens_details"]["reasoning_tokens"] == 0


def test_chat_13_words_of_the_user_open_nothing(served: Live) -> None:
    served.runner.says("So.")
    messages = [{"role": "user", "content": "what does <think> do?"}]
    choice, _ = both(served, messages, chat_template_kwargs={"thinking": False})
    assert choice["message"]["content"] == "So."


@pytest.mark.parametrize("said", ["hi", "think"])
def test_chat_13_words_of_the_user_hide_no_marker(served: Live, said: str) -> None:
    """The word stands in `<think>`, which the template writes after it."""
    served.runner.says("Why?</think>So.")
    choice, _ = both(served, [{"role": "user", "content": said}])
    assert choice["message"] == {
        "role": "assistant", "content": "So.", "reasoning_content": "Why?",
    }  # fmt: skip


def test_stop_strings_do_not_end_the_thinking(served: Live) -> None:
    """Else an answer whose thinking repeats the words of the prompt would have no content."""
    served.runner.says("Question: why?\n\nQuestion: how?\n</think>\n\nSo. Question: what?")
    choice, _ = both(served, stop=["Question:", "\n\n"])
    assert choice["message"]["reasoning_content"] == "Question: why?\n\nQuestion: how?"
    assert choice["message"]["content"] == "So. "
    assert choice["finish_reason"] == "stop"
    assert choice["stop_reason"] == "Question:"


def test_calls_that_end_a_message_inside_its_thinking(served: Live) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    call = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    served.runner.says(f"Why not.\n\n{call}\n{call}")
    choice, usage = both(served, tools=[tool])
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["reasoning_content"] == "Why not."
    assert [c["function"]["name"] for c in choice["message"]["tool_calls"]] == ["f", "f"]
    thinking = tokenizer().encode("Why not.\n\n", add_special_tokens=False)
    assert usage["completion_tokens_details"]["reasoning_tokens"] == len(thinking)
    choice, _ = both(served)
    assert choice["message"]["reasoning_content"].endswith(call)


def test_chat_13_raw_text_by_default() -> None:
    with live(make_engine(model={"chat_template": TEMPLATE})) as served:
        served.runner.says("Why?</think>So.")
        choice, usage = both(served)
        assert choice["message"] == {"role": "assistant", "content": "Why?</think>So."}
        assert "completion_tokens_details" not in usage


@settings(max_examples=25)
@given(text=wild_texts, is_open=st.booleans(), limit=st.integers(1, 40))
def test_streams_say_what_whole_answers_say(
    thinking_server: Live, text: str, is_open: bool, limit: int
) -> None:
    thinking_server.runner.says(text)
    both(thinking_server, max_tokens=limit, chat_template_kwargs={"thinking": is_open})


def test_earlier_thinking_reaches_the_template(served: Live) -> None:
    def asked(**message: Any) -> int:
        return num_prompt_tokens(
            served, [*HELLO, {"role": "assistant", "content": "So.", **message}, *HELLO]
        )

    assert asked(reasoning_content="why") == asked(reasoning="why") > asked()
    text = {"type": "text", "text": "So."}
    for thought in ("why", [{"type": "text", "text": "why"}]):  # the latter as Mistral's API has it
        content = [{"type": "thinking", "thinking": thought}, text]
        assert asked(content=content) == asked(reasoning_content="why")
        assert asked(content=content, reasoning="why") == asked(reasoning_content="why")


def test_parts_of_thinking_are_an_assistants(served: Live) -> None:
    thinking = {"type": "thinking", "thinking": "why"}
    messages: list[dict[str, Any]] = [*HELLO, {"role": "assistant", "content": [thinking]}]
    served.runner.says("</think>So.")
    choice, _ = both(served, messages, continue_final_message=True, echo=True)
    assert choice["message"]["content"] == "</think>So."  # what is continued is empty
    for content, param in (
        ([{"type": "thinking", "thinking": 5}], "messages[1].content[0].thinking"),
        ([{"type": "thinking"}, {"type": "nonsense"}], "messages[1].content[1]"),
    ):
        messages[1]["content"] = content
        assert served.post(PATH, messages=messages).json()["error"]["param"] == param
    user = [{"role": "user", "content": [{"type": "text", "text": "x"}, thinking]}]
    response = served.post(PATH, messages=user)
    assert response.json()["error"]["param"] == "messages[0].content[1]"


def test_chat_14_continuing_inside_the_thinking(served: Live) -> None:
    served.runner.says("cause.</think>So.")
    messages = [*HELLO, {"role": "assistant", "content": "<think>Be"}]
    body = {"continue_final_message": True}
    choice, usage = both(served, messages, **body)
    assert choice["message"]["reasoning_content"] == "cause."
    thought = usage["completion_tokens_details"]["reasoning_tokens"]
    assert thought == num_tokens("cause.</think>")
    choice, usage = both(served, messages, echo=True, **body)
    assert choice["message"]["reasoning_content"] == "Because."
    assert choice["message"]["content"] == "So."
    assert usage["completion_tokens_details"]["reasoning_tokens"] == thought


def test_reasoning_effort_is_a_variable_of_the_template(served: Live) -> None:
    none = num_prompt_tokens(served)
    low = num_prompt_tokens(served, chat_template_kwargs={"reasoning_effort": "low"})
    assert num_prompt_tokens(served, reasoning_effort="low") == low > none
    own = {"chat_template_kwargs": {"reasoning_effort": "x"}}
    assert num_prompt_tokens(served, reasoning_effort="low", **own) == none + 1
    response = served.post(PATH, messages=HELLO, reasoning_effort=5)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "reasoning_effort"


def test_no_reasoning_effort_is_no_thinking() -> None:
    template = (
        "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n"
        "{% else %}<think>\n{% endif %}"
    )
    settings = {"chat_template": template, "reasoning_parser": "auto"}
    settings["default_chat_template_kwargs"] = {"enable_thinking": True}
    with live(make_engine(model=settings)) as served:
        served.runner.says("So.")
        for field in ({"reasoning_effort": "low"}, {}):
            assert both(served, **field)[0]["message"]["reasoning_content"] == "So."
        own = {"chat_template_kwargs": {"enable_thinking": True}}
        choice, _ = both(served, reasoning_effort="none", **own)
        assert choice["message"]["reasoning_content"] == "So."
        assert both(served, reasoning_effort="none")[0]["message"]["content"] == "So."
        answer = ok(served.post("/v1/responses", input="hello", reasoning={"effort": "none"}))
        assert [item["type"] for item in answer["output"]] == ["message"]


def test_the_operators_template_variables() -> None:
    engine = make_engine(
        model={
            "chat_template": "{{ mood }}{{ more }}",
            "default_chat_template_kwargs": {"mood": "ab"},
        }
    )
    with live(engine) as served:
        assert num_prompt_tokens(served) == num_tokens("ab")
        assert num_prompt_tokens(served, chat_template_kwargs={"mood": "a"}) == num_tokens("a")
        assert num_prompt_tokens(served, chat_template_kwargs={"more": "c"}) == num_tokens("abc")


def test_documents_are_for_templates_that_show_them(served: Live) -> None:
    documents = [{"title": "a", "text": "bc"}]
    response = served.post(PATH, messages=HELLO, documents=documents)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "documents"
    assert num_prompt_tokens(served, documents=[]) == num_prompt_tokens(served)
    with live(make_engine(model={"chat_template": "{{ documents[0].text }}"})) as showing:
        assert num_prompt_tokens(showing, documents=documents) == num_tokens("bc")
        counted = ok(showing.post("/tokenize", messages=HELLO, documents=documents))
        assert counted["count"] == num_tokens("bc")


def test_chat_08_a_template_of_the_request_needs_trust(served: Live) -> None:
    body = {"messages": HELLO, "chat_template": "{{ messages[0].content }}"}
    refused = served.post(PATH, **body)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "chat_template"
    with live(make_engine(server={"trust_request_chat_template": True})) as trusting:
        told = ok(trusting.post("/tokenize", **body))
        assert told["tokens"] == tokenizer().encode("hello")
        assert num_prompt_tokens(trusting, chat_template=body["chat_template"]) == num_tokens(
            "hello"
        )
        for source in ('{{ "".__class__.__mro__ }}', "{% for i in range(10**9) %}x{% endfor %}"):
            response = trusting.post(PATH, messages=HELLO, chat_template=source)
            assert response.status_code == 400, response.text
        trusting.chat(max_tokens=1)
