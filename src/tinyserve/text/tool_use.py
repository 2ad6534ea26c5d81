"""`ToolUse`: the tools of one request and how the model may use them, checked.

Reads OpenAI's fields `tools`, `tool_choice` and `parallel_tool_calls`, for the server and the
offline API alike, and refuses what is wrong by its name. Schemas of parameters are taken as they
come; only a grammar has to understand them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tinyserve.errors import RequestError
from tinyserve.text.tool_json import TOOL_NAME, TOOL_NAME_RULE

MAX_TOOLS = 1024
Choice = Literal["auto", "required", "named"]


@dataclass(frozen=True)
class Function:
    """A function that the model may call."""

    name: str
    parameters: Mapping[str, Any] | None = None  # None: it takes none
    is_strict: bool = False


@dataclass(frozen=True)
class ToolUse:
    """The tools of one request, and how the model may use them."""

    definitions: tuple[dict[str, Any], ...]  # those that the model is told of
    # "auto" leaves calls to the model, "required" demands one, "named" one of the only function.
    choice: Choice
    functions: tuple[Function, ...]  # those that it may call
    max_calls: int | None = None  # None: as many as it likes

    @property
    def is_forced(self) -> bool:
        """Whether the answer has to be calls."""
        return self.choice != "auto"


def read_tool_use(
    tools: Sequence[Any] | None, tool_choice: Any = None, parallel_tool_calls: bool | None = None
) -> ToolUse | None:
    """The tools that a request may use; None where it has none, or wants none used.

    Raises RequestError naming the field.
    """
    if tools is not None and not isinstance(tools, list | tuple):
        raise RequestError("tools must be a list", param="tools")
    if tool_choice is None:
        tool_choice = "auto" if tools else "none"
    elif tools is None and tool_choice != "none":
        raise RequestError("tool_choice is only allowed where tools are given", param="tool_choice")
    definitions = _definitions(tools or ())
    functions = [_function(tool) for tool in tools or ()]
    names = [function.name for function in functions]
    choice, allowed = _choice(tool_choice, names)
    if choice == "none" or (choice == "auto" and not definitions):
        return None
    if not definitions:
        raise RequestError(
            "tool_choice asks for a call, but there are no tools", param="tool_choice"
        )
    is_single = choice == "named" or parallel_tool_calls is False
    chosen = tuple(function for function in functions if function.name in allowed)
    return ToolUse(definitions, choice, chosen, 1 if is_single else None)


def _definitions(tools: Sequence[Any]) -> tuple[dict[str, Any], ...]:
    if len(tools) > MAX_TOOLS:
        raise RequestError(f"at most {MAX_TOOLS} tools, got {len(tools)}", param="tools")
    definitions = tuple(_definition(tool, f"tools[{i}]") for i, tool in enumerate(tools))
    seen: set[str] = set()
    for i, definition in enumerate(definitions):
        name = definition["function"]["name"]
        if name in seen:
            raise RequestError(
                f"two tools have the name {name!r}", param=f"tools[{i}].function.name"
            )
        seen.add(name)
    return definitions


def _definition(tool: Any, where: str) -> dict[str, Any]:
    """One tool in the order of keys that models have been trained on."""
    if not isinstance(tool, Mapping):
        raise RequestError(f"{where} must be an object", param=where)
    kind = tool.get("type")
    if kind != "function":
        raise RequestError(f"{where}.type must be 'function', not {kind!r}", param=f"{where}.type")
    function = tool.get("function")
    if not isinstance(function, Mapping):
        raise RequestError(f"{where}.function must be an object", param=f"{where}.function")
    where += ".function"
    name = function.get("name")
    if not isinstance(name, str) or not TOOL_NAME.fullmatch(name):
        raise RequestError(f"{where}.name {TOOL_NAME_RULE}, not {name!r}", param=f"{where}.name")
    kinds = (("description", str, "a string"), ("parameters", Mapping, "an object"))
    for key, wanted, words in kinds:
        if function.get(key) is not None and not isinstance(function[key], wanted):
            raise RequestError(f"{where}.{key} must be {words}", param=f"{where}.{key}")
    strict = function.get("strict")
    if strict is not None and not isinstance(strict, bool):
        raise RequestError(f"{where}.strict must be a boolean", param=f"{where}.strict")
    known = ("name", "description", "parameters")
    ordered = {key: function[key] for key in known if function.get(key) is not None}
    rest = {k: v for k, v in function.items() if k not in (*known, "strict") and v is not None}
    return {"type": "function", "function": {**ordered, **rest}}


def _function(tool: Mapping[str, Any]) -> Function:
    function = tool["function"]
    return Function(function["name"], function.get("parameters"), bool(function.get("strict")))


def _choice(
    tool_choice: Any, names: Sequence[str]
) -> tuple[Literal["none", "auto", "required", "named"], tuple[str, ...]]:
    """What is wanted, and the names it may be done with."""
    if tool_choice in ("none", "auto", "required"):
        return tool_choice, tuple(names)
    if not isinstance(tool_choice, Mapping):
        raise RequestError(
            "tool_choice must be 'none', 'auto', 'required', or an object that names a function",
            param="tool_choice",
        )
    kind = tool_choice.get("type")
    if kind == "function":
        return "named", (_known_name(tool_choice, names, "tool_choice"),)
    if kind == "allowed_tools":
        return _allowed(tool_choice.get("allowed_tools", tool_choice), names)
    raise RequestError(
        f"tool_choice.type must be 'function' or 'allowed_tools', not {kind!r}",
        param="tool_choice.type",
    )


def _allowed(
    value: Any, names: Sequence[str]
) -> tuple[Literal["auto", "required"], tuple[str, ...]]:
    """OpenAI's allowed_tools: a mode, and some of the tools."""
    where = "tool_choice.allowed_tools"
    if not isinstance(value, Mapping) or value.get("mode") not in ("auto", "required"):
        raise RequestError(f"{where}.mode must be 'auto' or 'required'", param=f"{where}.mode")
    tools = value.get("tools")
    if not isinstance(tools, Sequence) or isinstance(tools, str) or not tools:
        raise RequestError(f"{where}.tools must be a list of tools", param=f"{where}.tools")
    allowed = [_known_name(tool, names, f"{where}.tools[{i}]") for i, tool in enumerate(tools)]
    return value["mode"], tuple(dict.fromkeys(allowed))


def _known_name(value: Any, names: Sequence[str], where: str) -> str:
    function = value.get("function", value) if isinstance(value, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        raise RequestError(f"{where}.function.name must be a string", param=f"{where}.function")
    if name not in names:
        raise RequestError(
            f"{where} names the function {name!r}, which is not among the tools",
            param="tool_choice",
        )
    return name
