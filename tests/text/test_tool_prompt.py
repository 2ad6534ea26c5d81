"""Conversations with tools, through templates that know them and templates that do not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tinyserve.errors import RequestError
from tinyserve.text.normalise import normalise_messages
from tinyserve.text.template import ChatTemplate

PLAIN = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
NO_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    + PLAIN
)
KNOWING = (
    "{% for tool in tools or [] %}{{ tool | tojson }};{% endfor %}"
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}"
    "{% for call in m.tool_calls or [] %}[{{ call.function.name }} "
    "{{ call.function.arguments | tojson }}]{% endfor %}{% endfor %}"
)
TOOL = {"type": "function", "function": {"name": "f", "description": "does é"}}
USER = {"role": "user", "content": "Go."}


def call(arguments: Any, name: str = "f") -> dict[str, Any]:
    return {"id": "1", "type": "function", "function": {"name": name, "arguments": arguments}}


def turn(*calls: dict[str, Any], content: Any = None) -> dict[str, Any]:
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


def result(content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": "1", "content": content}


def render(source: str, *messages: dict[str, Any], **options: Any) -> str:
    return ChatTemplate(source).render(list(messages), **options)


def test_a_template_that_knows_tools_gets_them() -> None:
    prompt = render(KNOWING, USER, turn(call('{"a": 1}')), result("ok"), tools=[TOOL])
    assert prompt == f"{json.dumps(TOOL, ensure_ascii=False)};<|user|>Go.<|assistant|>" + (
        '[f {"a": 1}]<|tool|>ok'
    )


def test_tools_are_described_in_the_system_message() -> None:
    own = {"role": "system", "content": "Be brief."}
    for messages in ([USER], [own, USER]):
        prompt = render(PLAIN, *messages, tools=[TOOL])
        system, _, rest = prompt.partition("<|user|>")
        assert rest == "Go.<|assistant|>"
        assert system.startswith("<|system|>" + ("Be brief.\n\n" if len(messages) > 1 else ""))
        assert f"<tools>\n{json.dumps(TOOL, ensure_ascii=False)}\n</tools>" in system
        assert "<tool_call>" in system


def test_a_template_without_a_system_role_is_told_by_the_user() -> None:
    prompt = render(NO_SYSTEM, USER, tools=[TOOL])
    assert prompt.startswith("<|user|>")
    assert '"name": "f"' in prompt
    assert prompt.endswith("\n\nGo.<|assistant|>")
    with pytest.raises(RequestError, match="no system role"):  # the client's own is still refused
        render(NO_SYSTEM, {"role": "system", "content": "x"}, USER, tools=[TOOL])


def test_calls_and_results_are_written_out() -> None:
    prompt = render(
        PLAIN,
        USER,
        turn(call('{"a": 1}'), call({"b": "é"}, "g"), content="Let me see."),
        result("one"),
        result("two"),
        {"role": "user", "content": "And?"},
    )
    assert prompt == (
        "<|user|>Go.<|assistant|>Let me see.\n"
        '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>\n'
        '<tool_call>\n{"name": "g", "arguments": {"b": "é"}}\n</tool_call>'
        "<|user|><tool_response>\none\n</tool_response>\n<tool_response>\ntwo\n</tool_response>"
        "<|user|>And?<|assistant|>"
    )


def test_continuing_after_tools_were_described() -> None:
    prompt = render(
        PLAIN,
        USER,
        {"role": "assistant", "content": "It is "},
        tools=[TOOL],
        continue_final_message=True,
    )
    assert prompt.endswith("<|assistant|>It is ")


@pytest.mark.parametrize("source", [PLAIN, KNOWING])
@pytest.mark.parametrize(
    "arguments",
    ['{"a":', "", "  ", None, "5", "nonsense", "[" * 100_000, '{"a": ' * 5000, "1" * 5000, "NaN"],
)
def test_tool_05_arguments_that_are_no_json(source: str, arguments: Any) -> None:
    """TOOL-05: what does not parse is passed through as given."""
    prompt = render(source, USER, turn(call(arguments)), result("?"), tools=[TOOL])
    assert "f" in prompt
    if arguments == '{"a":':
        assert (arguments if source == PLAIN else json.dumps(arguments)) in prompt


@pytest.mark.parametrize(
    "calls",
    [
        ["f"],
        [{"id": "1"}],
        [{"function": "f"}],
        [{"function": {}}],
        [{"function": {"name": 5}}],
        [{"function": {"name": "f", "arguments": 5}}],
        [{"function": {"name": "f", "arguments": ["a"]}}],
        "f",
        {"a": 1},
    ],
)
def test_calls_of_the_wrong_kind(calls: Any) -> None:
    message = {"role": "assistant", "content": None, "tool_calls": calls}
    with pytest.raises(RequestError, match="tool_calls") as caught:
        render(KNOWING, USER, message)
    assert str(caught.value.param).startswith("messages[1].tool_calls")


def test_ids_that_a_template_would_refuse_are_replaced() -> None:
    """Mistral's templates want nine letters and digits, also of calls made elsewhere."""
    source = (
        "{{ tools or '' }}{% for m in messages %}{% for call in m.tool_calls or [] %}"
        "{% if call.id | length != 9 %}{{ raise_exception('length 9') }}{% endif %}"
        "{{ call.id }};{% endfor %}{{ m.tool_call_id }}{% endfor %}"
    )
    call_id = "call_" + "x" * 30
    calls = turn({**call("{}"), "id": call_id}), {**result("ok"), "tool_call_id": call_id}
    first, second = render(source, *calls).split(";")
    assert first == second != call_id
    assert render(source, turn({**call("{}"), "id": "abcDEF123"})) == "abcDEF123;"
    assert render(source.replace("!= 9", "!= 35"), *calls) == f"{call_id};{call_id}"
    assert render(source, turn({"function": {"name": "f"}})).endswith(";")


def test_older_and_other_spellings() -> None:
    messages = normalise_messages(
        [
            {"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}},
            {"role": "function", "name": "f", "content": "ok"},
            {"role": "assistant", "content": "So.", "reasoning": "Why?"},
        ]
    )
    assert messages[0]["tool_calls"][0]["function"] == {"name": "f", "arguments": {}}
    assert "function_call" not in messages[0]
    assert messages[1]["role"] == "tool"
    assert messages[2]["reasoning_content"] == "Why?"
