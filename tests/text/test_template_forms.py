"""Templates that want a conversation's calls and tools in another form than they come in."""

from __future__ import annotations

from typing import Any

import pytest

from tinyserve.errors import RequestError
from tinyserve.text.template import ChatTemplate

HEAD = "{% for t in tools or [] %}{{ t.function.name }};{% endfor %}{% for m in messages %}"
TAIL = "<{{ m.role }}>{{ m.content }}{% endfor %}"
CALLS = "{% for c in m.tool_calls or [] %}[{{ c.function.name }} "
# One template for each wish, in the ways that published ones have it.
OBJECTS = HEAD + CALLS + "{% for k, v in c.function.arguments|items %}{{k}}={{v}} {% endfor %}]"
OBJECTS += "{% endfor %}" + TAIL
TEXT = HEAD + CALLS + "{{ '' + c.function.arguments }}]{% endfor %}" + TAIL
SINGLE = (
    HEAD
    + "{% if m.tool_calls and m.tool_calls|length > 1 %}"
    + "{{ raise_exception('one call only') }}{% endif %}"
    + CALLS
    + "{{ c.function.arguments|tojson }}]{% endfor %}"
    + TAIL
)
FULL = (
    "{% for t in tools %}{{ t.function.description + '(' }}"
    "{% for name, p in t.function.parameters.properties|items %}"
    "{{ name + ':' + p.description }}{% endfor %}){% endfor %}"
    "{% for m in messages %}{{ m.tool_calls }}" + TAIL
)
USER = {"role": "user", "content": "Go."}


def tool(**function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", **function}}


def turn(*arguments: Any) -> dict[str, Any]:
    calls = [
        {"id": str(i), "type": "function", "function": {"name": "f", "arguments": text}}
        for i, text in enumerate(arguments)
    ]
    return {"role": "assistant", "content": "Let me see.", "tool_calls": calls}


def result(call_id: str, content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def render(source: str, *messages: dict[str, Any], **options: Any) -> str:
    return ChatTemplate(source).render(list(messages), **options)


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ('{"a": 1}', "a=1 "),
        ('{"a":', 'arguments={"a": '),
        ("[1]", "arguments=[1] "),
        ("5", "arguments=5 "),
        ("null", ""),
        ("", ""),
    ],
)
def test_arguments_that_are_no_object_do_not_end_a_conversation(arguments: str, shown: str) -> None:
    """TOOL-05, where a template goes through the arguments: the turns after it go on."""
    prompt = render(OBJECTS, USER, turn(arguments), result("0", "bad call"), USER, tools=[tool()])
    assert f"[f {shown}]" in prompt
    assert prompt.endswith("<tool>bad call<user>Go.")


def test_arguments_as_text() -> None:
    prompt = render(TEXT, USER, turn('{"a": "é"}', "oops", None), tools=[tool()])
    assert '[f {"a": "é"}][f oops][f {}]<assistant>' in prompt


def test_parallel_calls_where_a_template_takes_one_in_a_message() -> None:
    """Each is followed by its result; what was said and thought stays with the first."""
    messages = [turn('{"a": 1}', '{"a": 2}'), result("1", "two"), result("0", "one"), USER]
    prompt = render(SINGLE, USER, *messages, tools=[tool()])
    assert prompt == (
        'f;<user>Go.[f {"a": 1}]<assistant>Let me see.<tool>one'
        '[f {"a": 2}]<assistant><tool>two<user>Go.'
    )
    messages[1] = result("9", "lost")
    assert "<tool>one" in (prompt := render(SINGLE, USER, *messages, tools=[tool()]))
    assert prompt.endswith("<assistant><tool>lost<user>Go.")


@pytest.mark.parametrize(
    ("function", "shown"),
    [
        ({}, "()"),
        ({"parameters": {}}, "()"),
        ({"description": "Does."}, "Does.()"),
        ({"parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}, "(a:)"),
    ],
)
def test_fields_of_a_tool_that_may_be_left_out(function: dict[str, Any], shown: str) -> None:
    assert render(FULL, USER, tools=[tool(**function)]).startswith(shown)


@pytest.mark.parametrize(
    ("schema", "shown"),
    [
        ({"type": ["null", "string"]}, "string"),
        ({"type": ["null"]}, "null"),
        ({"type": "array", "items": {"type": ["integer", "null"]}}, "array integer"),
        ({"type": "array", "items": True, "description": None}, "array"),
        ({"type": "object", "properties": {"b": {"type": ["number", "null"]}}}, "object number"),
        (True, ""),
    ],
)
def test_schemas_that_a_template_stumbles_over(schema: Any, shown: str) -> None:
    """Hermes' templates recurse without end over a list of types with null in it."""
    source = (
        "{% macro show(p) %}{{ p.description + '' }}{{ '' + (p.type or '') }}"
        "{% if 'items' in p %} {{ p['items'].type }}{% endif %}"
        "{% for name, inner in (p.properties or {})|items %} {{ show(inner) }}{% endfor %}"
        "{% endmacro %}{% for t in tools %}{{ show(t.function.parameters.properties.a) }}"
        "{% endfor %}{# m.tool_calls #}"
    )
    properties = {"a": schema, "b": {}}
    parameters = {"type": "object", "properties": properties, "required": None}
    assert render(source, USER, tools=[tool(parameters=parameters)]).split() == shown.split()


def test_a_template_that_takes_the_conversation_as_it_is_gets_it_so() -> None:
    source = "{{ tools|tojson }}{% for m in messages %}{{ m|tojson }}{% endfor %}{# tool_calls #}"
    prompt = render(source, USER, turn("oops", "5"), tools=[tool()])
    assert prompt.startswith('[{"type": "function", "function": {"name": "f"}}]')
    assert '"arguments": "oops"' in prompt
    assert '"arguments": 5' in prompt


def test_what_no_form_helps_is_refused_with_the_templates_words() -> None:
    source = HEAD + "{{ m.tool_calls }}{{ raise_exception('no ' ~ loop.length) }}" + TAIL
    with pytest.raises(RequestError, match="no 2"):
        render(source, USER, turn("oops", "5"), tools=[tool()])


def test_calls_are_written_as_they_are_taught() -> None:
    """A template that shows calls, but no tools: both are then in one notation, and both show."""
    source = (
        "{% for m in messages %}{% if m.content is none %}"
        "{% for c in m.tool_calls %}|{{ c.function.name }}|{% endfor %}{% endif %}" + TAIL
    )
    calling = {**turn('{"a": 1}'), "content": None}
    prompt = render(source, USER, calling, result("0", "one"), tools=[tool()])
    assert '<assistant><tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>' in prompt
    assert prompt.endswith("<user><tool_response>\none\n</tool_response>")
