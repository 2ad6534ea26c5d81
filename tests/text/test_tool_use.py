"""`ToolUse`: what tools, tool_choice and parallel_tool_calls mean, and what is wrong with them."""

from __future__ import annotations

from typing import Any

import pytest

from tinyserve.errors import RequestError
from tinyserve.text.tool_use import Function, read_tool_use


def tool(name: str = "f", **function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **function}}


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


TWO = [tool("f"), tool("g", description="d", parameters={"type": "object"})]


@pytest.mark.parametrize(
    ("tool_choice", "choice", "allowed", "max_calls"),
    [
        (None, "auto", ("f", "g"), None),
        ("auto", "auto", ("f", "g"), None),
        ("required", "required", ("f", "g"), None),
        (named("g"), "named", ("g",), 1),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [tool("g")]}},
            "required",
            ("g",),
            None,
        ),
    ],
)
def test_tool_choice_says_what_may_be_called(
    tool_choice: Any, choice: str, allowed: tuple[str, ...], max_calls: int | None
) -> None:
    use = read_tool_use(TWO, tool_choice)
    assert use is not None
    names = tuple(function.name for function in use.functions)
    assert (use.choice, names, use.max_calls) == (choice, allowed, max_calls)
    assert use.is_forced == (choice != "auto")
    assert len(use.definitions) == 2


def test_functions_keep_their_parameters_and_strictness() -> None:
    use = read_tool_use([tool("f"), tool("g", parameters={"type": "object"}, strict=True)])
    assert use is not None
    assert use.functions == (Function("f"), Function("g", {"type": "object"}, is_strict=True))


def test_one_call_at_a_time() -> None:
    use = read_tool_use(TWO, None, False)
    assert use is not None
    assert use.max_calls == 1


@pytest.mark.parametrize(("tools", "choice"), [(None, None), (None, "none"), (TWO, "none")])
def test_without_tools_or_wish_for_them_there_is_no_use(tools: Any, choice: Any) -> None:
    assert read_tool_use(tools, choice) is None
    assert read_tool_use([], "auto") is None
    assert read_tool_use([], None) is None


def test_definitions_are_put_in_order_and_keep_what_they_hold() -> None:
    odd = {"function": {"x": 1, "strict": True, "parameters": None, "name": "a.b-c_9"}}
    use = read_tool_use([{**odd, "type": "function"}])
    assert use is not None
    assert use.definitions == ({"type": "function", "function": {"name": "a.b-c_9", "x": 1}},)
    (definition,) = read_tool_use([TWO[1]]).definitions  # type: ignore[union-attr]
    assert list(definition["function"]) == ["name", "description", "parameters"]


@pytest.mark.parametrize(
    ("tools", "choice", "param"),
    [
        ([tool("f"), tool("f")], None, "tools[1].function.name"),
        ([tool("")], None, "tools[0].function.name"),
        ([tool("a b")], None, "tools[0].function.name"),
        ([tool("x" * 129)], None, "tools[0].function.name"),
        ([tool("f\n")], None, "tools[0].function.name"),
        ([{"type": "function"}], None, "tools[0].function"),
        ([{"function": {"name": "f"}}], None, "tools[0].type"),
        ([{"type": "custom", "custom": {"name": "f"}}], None, "tools[0].type"),
        (["f"], None, "tools[0]"),
        ([tool(parameters=[])], None, "tools[0].function.parameters"),
        ([tool(parameters="{}")], None, "tools[0].function.parameters"),
        ([tool(description=5)], None, "tools[0].function.description"),
        ([tool(strict="yes")], None, "tools[0].function.strict"),
        ([tool(f"f{i}") for i in range(1025)], None, "tools"),
        (TWO, "any", "tool_choice"),
        (TWO, 5, "tool_choice"),
        (TWO, named("h"), "tool_choice"),
        (TWO, {"type": "function"}, "tool_choice.function"),
        (TWO, {"type": "tool", "name": "f"}, "tool_choice.type"),
        (TWO, {"type": "allowed_tools"}, "tool_choice.allowed_tools.mode"),
        (
            TWO,
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}},
            "tool_choice.allowed_tools.tools",
        ),
        (None, "auto", "tool_choice"),
        (None, "required", "tool_choice"),
        (None, named("f"), "tool_choice"),
        ([], "required", "tool_choice"),
    ],
)
def test_what_is_refused_is_named(tools: Any, choice: Any, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        read_tool_use(tools, choice)
    assert caught.value.param == param
    assert caught.value.status == 400
