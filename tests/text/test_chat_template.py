"""`ChatTemplate`: messages in, prompt out, every failure a RequestError."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tinyserve.errors import ConfigError, RequestError
from tinyserve.text.normalise import normalise_messages
from tinyserve.text.template import ChatTemplate, read_chat_template

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TRIMMING = CHATML.replace("message.content }}", "message.content | trim }}")
STRICT = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate') }}{% endif %}"
    "[{{ message.role }}]{{ message.content }}{% endfor %}"
)


def user(content: Any = "Hi") -> dict[str, Any]:
    return {"role": "user", "content": content}


def system(content: Any = "Be brief") -> dict[str, Any]:
    return {"role": "system", "content": content}


def assistant(content: Any = "Hello", **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


def render(source: str, *messages: dict[str, Any], **options: Any) -> str:
    return ChatTemplate(source).render(list(messages), **options)


def test_plain_chat() -> None:
    assert render(CHATML, system(), user()) == (
        "<|im_start|>system\nBe brief<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_generation_prompt_can_be_left_out() -> None:
    assert render(CHATML, user(), add_generation_prompt=False).endswith("Hi<|im_end|>\n")


@pytest.mark.parametrize("source", [None, "", " \n"])
def test_model_without_template(source: str | None) -> None:
    """CHAT-01: only chat fails, and the message says what to do. An empty one shows nothing."""
    template = ChatTemplate(source)
    with pytest.raises(RequestError, match="--chat-template") as caught:
        template.render([user()])
    assert (caught.value.param, caught.value.status) == ("messages", 400)


def test_tool_template_is_used_with_tools() -> None:
    """CHAT-02."""
    template = ChatTemplate("D{{ tools }}", named={"tool_use": "T{{ tools[0].name }}"})
    assert template.render([user()]) == "DNone"
    assert template.render([user()], tools=[]) == "DNone"
    assert template.render([user()], tools=[{"name": "f"}]) == "Tf"


def test_default_template_serves_tools_too() -> None:
    assert ChatTemplate("D{{ tools | length }}").render([user()], tools=[{}]) == "D1"


def test_only_named_templates() -> None:
    template = ChatTemplate(None, named={"tool_use": "T"})
    assert template.render([user()], tools=[{}]) == "T"
    with pytest.raises(RequestError, match="tool_use"):
        template.render([user()])


def test_special_tokens_are_variables() -> None:
    """CHAT-03: the template writes BOS itself."""
    template = ChatTemplate("{{ bos_token }}x", special_tokens={"bos_token": "<s>"})
    assert template.render([user()]) == "<s>x"


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([system(), user()], "System role not supported"),
        ([user(), user()], "Roles must alternate"),
        ([{"role": "developer", "content": "x"}], "System role not supported"),
    ],
)
def test_template_refuses(messages: list[dict[str, Any]], reason: str) -> None:
    """CHAT-07: raise_exception is a 400 with the template's own words."""
    with pytest.raises(RequestError) as caught:
        render(STRICT, *messages)
    assert caught.value.message == reason
    assert caught.value.param == "messages"


ONE_SYSTEM = (
    "{% for message in messages %}{% if message.role == 'system' and not loop.first %}"
    "{{ raise_exception('System message must be at the beginning') }}{% endif %}"
    "{% if not loop.first and message.role == loop.previtem.role %}"
    "{{ raise_exception('Roles must alternate') }}{% endif %}"
    "[{{ message.role }}]{{ message.content }}{% endfor %}"
)


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([system("a"), system("b"), user("c")], "[system]a\n\nb[user]c"),
        ([user("a"), system("b")], "[user]a\n\nb"),
        (
            [system("s"), user("a"), system("b"), user("c"), assistant("d")],
            "[system]s[user]a\n\nb\n\nc[assistant]d",
        ),
        (
            [user("a"), assistant("b"), system("c"), system("d"), user("e")],
            "[user]a[assistant]b[user]c\n\nd\n\ne",
        ),
        (
            [user("a"), assistant("b"), {"role": "developer", "content": "c"}],
            "[user]a[assistant]b[user]c",
        ),
    ],
)
def test_late_instructions_where_the_template_refuses_them(
    messages: list[dict[str, Any]], expected: str
) -> None:
    """CHAT-07: agents send them between the turns, and could not be used with such a model."""
    assert render(ONE_SYSTEM, *messages) == expected
    kept = "".join(f"[{m['role'].replace('developer', 'system')}]{m['content']}" for m in messages)
    assert (
        render("{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}", *messages)
        == kept
    )


def test_late_instructions_do_not_hide_why_a_template_refuses() -> None:
    """CHAT-07."""
    with pytest.raises(RequestError, match="at the beginning"):
        render(ONE_SYSTEM, user("a"), system("b"), assistant("c"), assistant("d"))
    going_on = [user("a"), system("b"), assistant("c")]
    prompt = render(ONE_SYSTEM, *going_on, continue_final_message=True)
    assert prompt == "[user]a\n\nb[assistant]c"


def test_developer_is_system() -> None:
    """CHAT-07."""
    assert "<|im_start|>system\nx" in render(CHATML, {"role": "developer", "content": "x"})


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ messages[0].content + 1 }}", "concatenate"),
        ("{% for %}", "failed"),
        ("{{ nothing.at.all }}", "undefined"),
        ("{{ 1 / 0 }}", "division"),
        ("{% include 'x' %}", "failed"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "failed|runs over"),
    ],
)
def test_broken_templates_are_the_requests_error(source: str, reason: str) -> None:
    """CHAT-07: whatever Jinja raises, at compile time or later."""
    with pytest.raises(RequestError, match=reason) as caught:
        render(source, user())
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    "messages",
    [
        [],
        None,
        "Hi",
        ["Hi"],
        [{}],
        [{"content": "x"}],
        [{"role": "x", "content": "x"}],
        [{"role": ["user"], "content": "x"}],
        [{"role": "user"}],
        [user(None)],
        [user(3)],
        [user({"text": "x"})],
        [user([{"type": "image_url", "image_url": {"url": "x"}}])],
        [user([{"type": "text"}])],
        [user([{"type": "text", "text": 3}])],
        [user([3])],
        [assistant(None)],
        [assistant(None, tool_calls=["x"])],
        [assistant(None, tool_calls=[{"function": "f"}])],
    ],
)
def test_bad_messages_are_named(messages: Any) -> None:
    """CHAT-07: unknown roles and contents that no text model can read."""
    with pytest.raises(RequestError, match="messages") as caught:
        ChatTemplate(CHATML).render(messages)
    assert (caught.value.param or "").startswith("messages")


def test_text_parts_become_one_string() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}, "c"]
    (message,) = normalise_messages([user(parts)])
    assert message["content"] == "a\nb\nc"


PARTS = (
    "{% for m in messages %}[{{ m.role }}]{% for part in m['content'] %}"
    "{% if part['type'] == 'text' %}{{ part['text'] | trim }}{% endif %}{% endfor %}{% endfor %}"
)
FIRST_PART = "{% for m in messages %}[{{ m.role }}]{{ m.content[0].text }}{% endfor %}"
STRICT_PARTS = PARTS.replace("['text'] | trim", "['text'].strip()").replace(
    "{% if part", "{% if part.type != 'text' %}{{ raise_exception('text!') }}{% endif %}{% if part"
)
EITHER = (
    "{% for m in messages %}[{{ m.role }}]{% if m.content is string %}{{ m.content }}"
    "{% else %}{{ m.content[0]['text'] + '!' }}{% endif %}{% endfor %}"
)


SYSTEM_IN_PARTS = (
    "{% if messages[0].role == 'system' %}[system]{{ messages[0].content[0]['text'] }}{% endif %}"
    "{% for m in messages if m.role != 'system' %}[{{ m.role }}]{% if m.content is string %}"
    "{{ m.content }}{% else %}{% for part in m.content %}{{ part.text }}{% endfor %}{% endif %}"
    "{% endfor %}"
)


@pytest.mark.parametrize("source", [PARTS, FIRST_PART, STRICT_PARTS, SYSTEM_IN_PARTS, EITHER])
def test_templates_that_read_only_parts_get_parts(source: str) -> None:
    """CHAT-02: those of models with images, which pass over a text without a word, or refuse it."""
    chat = [system(), user([{"type": "text", "text": "Hi"}]), assistant("Well")]
    assert render(source, *chat) == "[system]Be brief[user]Hi[assistant]Well"
    for last in ("Well", ""):
        prompt = render(source, user(), assistant(last), continue_final_message=True)
        assert prompt == f"[user]Hi[assistant]{last}"


def test_messages_are_copied() -> None:
    given = [{"role": "developer", "content": [{"type": "text", "text": "a"}]}]
    normalise_messages(given)
    assert given == [{"role": "developer", "content": [{"type": "text", "text": "a"}]}]


def test_tool_calls_in_messages() -> None:
    """Null content beside tool calls is empty; JSON arguments reach the template as objects."""
    calls = [
        {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}},
        {"id": "2", "type": "function", "function": {"name": "g", "arguments": "{broken"}},
        {"id": "3", "type": "function", "function": {"name": "h", "arguments": ""}},
    ]
    (message, answer) = normalise_messages(
        [
            assistant(None, tool_calls=calls),
            {"role": "tool", "tool_call_id": "1", "content": "42", "name": "f"},
        ]
    )
    assert message["content"] == ""
    assert [call["function"]["arguments"] for call in message["tool_calls"]] == [
        *({"x": 1}, "{broken", {})
    ]
    assert (answer["tool_call_id"], answer["name"]) == ("1", "f")
    assert calls[0]["function"] == {"name": "f", "arguments": '{"x": 1}'}


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "tool_calls", "name", "extra"])
def test_a_null_in_a_message_is_as_good_as_nothing(name: str) -> None:
    """Clients send an answer back with every field that it could have had."""
    template = ChatTemplate("{{ messages[0] | tojson }}")
    message = {"role": "assistant", "content": "x"}
    assert template.render([{**message, name: None}]) == template.render([message])


@pytest.mark.parametrize("calls", [None, []])
def test_empty_tool_calls_are_no_tool_calls(calls: Any) -> None:
    """Templates test `'tool_calls' in message`."""
    source = "{{ 'tool_calls' in messages[0] }}"
    assert render(source, assistant("x", tool_calls=calls)) == "False"


@pytest.mark.parametrize("source", [CHATML, TRIMMING], ids=["keeps", "trims"])
@pytest.mark.parametrize("text", ["The answer is", "The answer is ", "  x\n", "user", "", "é 😀"])
def test_continued_message_ends_the_prompt(source: str, text: str) -> None:
    """CHAT-14: the prompt ends inside the last message, spaces as the template leaves them."""
    prompt = render(source, user(), assistant(text), continue_final_message=True)
    shown = text if source == CHATML else text.strip()
    assert prompt == f"<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n{shown}"


def test_continued_message_of_text_parts() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    prompt = render(CHATML, user(), assistant(parts), continue_final_message=True)
    assert prompt.endswith("assistant\na\nb")


def test_continuing_excludes_a_generation_prompt() -> None:
    with pytest.raises(RequestError, match="exclude each other"):
        render(CHATML, user(), add_generation_prompt=True, continue_final_message=True)


def test_continuing_a_message_that_is_not_shown() -> None:
    with pytest.raises(RequestError, match="does not show"):
        render("{{ messages[0].content }}", user(), assistant(), continue_final_message=True)


@pytest.mark.parametrize("name", ["messages", "tools", "documents", "add_generation_prompt"])
def test_template_kwargs_cannot_replace_the_conversation(name: str) -> None:
    """CHAT-08: chat_template_kwargs overriding messages is a 400."""
    with pytest.raises(RequestError, match=name) as caught:
        render(CHATML, user(), template_kwargs={name: []})
    assert caught.value.param == "chat_template_kwargs"


def test_template_kwargs_reach_the_template() -> None:
    kwargs = {"enable_thinking": False}
    assert render("{{ enable_thinking }}", user(), template_kwargs=kwargs) == "False"


def test_hugging_face_extensions() -> None:
    """Names and tags that published templates use."""
    source = (
        "{%- generation %}{{ {'a': '<é>'} | tojson }}{% endgeneration %}"
        "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m.role }}"
        "{% endfor %}{{ strftime_now('%Y') | length }}"
        "{% set ns = namespace(x=1) %}{% set ns.x = 2 %}{{ ns.x }}"
    )
    assert render(source, user(), assistant()) == '{"a": "<é>"}user42'


def test_whitespace_control_is_hugging_faces() -> None:
    """trim_blocks and lstrip_blocks: lines with only a tag leave nothing."""
    source = (
        "{% for m in messages %}\n    {% if true %}\n{{ m.role }}\n    {% endif %}\n{% endfor %}\n"
    )
    assert render(source, user()) == "user\n"


def test_template_from_the_command_line(tmp_path: Path) -> None:
    """CHAT-02: --chat-template as a path and as text."""
    path = tmp_path / "template.jinja"
    path.write_text(CHATML, encoding="utf-8")
    assert read_chat_template(str(path)) == CHATML
    assert read_chat_template(CHATML) == CHATML
    assert read_chat_template("{{ 'x' }}" * 1000) == "{{ 'x' }}" * 1000


@pytest.mark.parametrize("value", ["no/such/file.jinja", "x" * 5000, ""])
def test_template_option_that_is_neither(value: str) -> None:
    with pytest.raises(ConfigError, match="chat_template"):
        read_chat_template(value)


@pytest.mark.parametrize(
    "source", ["{{ x", "{% for m in messages %}", "{% nonsense %}", "{{ 1 | f }}"]
)
def test_a_broken_template_of_the_operator_is_found_at_the_start(
    tmp_path: Path, source: str
) -> None:
    path = tmp_path / "template.jinja"
    path.write_text(f"\n{source}")
    for value in (str(path), source):
        with pytest.raises(ConfigError, match=r"chat_template: .*\(line [12]\)"):
            read_chat_template(value)


REAL = {
    "chatml": CHATML,
    "trimming": TRIMMING,
    "loop": "{% for m in messages %}{{ '[' + m['role'] + ']' + m['content'] }}{% endfor %}"
    "{{ '!' if add_generation_prompt }}",
}


@pytest.mark.parametrize("source", REAL.values(), ids=REAL)
@pytest.mark.parametrize("last", ["Sure: ", "Sure", "  Sure\n"])
def test_same_as_transformers(source: str, last: str) -> None:
    """The reference implementation, where it is installed."""
    module = pytest.importorskip("transformers.utils.chat_template_utils")
    chat = [system(), user(), assistant(last)]
    for options in (
        {"add_generation_prompt": True, "continue_final_message": False},
        {"add_generation_prompt": False, "continue_final_message": True},
    ):
        (expected,), _ = module.render_jinja_template([chat], chat_template=source, **options)
        assert render(source, *chat, **options) == expected
