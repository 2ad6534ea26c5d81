"""The tools of a Responses request, as the functions that a chat template can show a model.

Function tools pass as they are. A custom tool takes free text: the model is offered a function with
one string, `input`, and its call is turned back. The tools of a namespace are offered one by one,
under their own names where these are unique. What the API's owner would run itself (web search,
image generation, ...) cannot be offered; its kinds are kept in `left_out`, to be logged.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tinyserve.server.dialects.function_tool import function_tool
from tinyserve.server.dialects.json_node import Node
from tinyserve.server.json_text import to_json
from tinyserve.text.tool_json import whole_characters

INPUT = "input"  # the only parameter of a custom tool
_OPTIONAL = {"description": None, "parameters": None, "strict": None}  # members of a function


@dataclass(frozen=True)
class Origin:
    """The tool behind an offered function, by the client's names."""

    name: str
    namespace: str = ""
    is_custom: bool = False


@dataclass
class ToolSet:
    """The tools of a request: `functions` as the chat request has them, `echoed` as the client
    wrote them, functions with all their members.
    """

    functions: list[dict[str, Any]] = field(default_factory=list)
    echoed: list[Any] = field(default_factory=list)
    left_out: set[str] = field(default_factory=set)
    origins: dict[str, Origin] = field(default_factory=dict)  # the keys are the offered names

    def origin(self, offered: str) -> Origin:
        """The tool that the model has called."""
        return self.origins.get(offered, Origin(offered))

    def offered_name(self, name: str, namespace: str) -> str:
        """What the model knows the client's tool as."""
        for offered, origin in self.origins.items():
            if (origin.name, origin.namespace) == (name, namespace):
                return offered
        return f"{namespace}__{name}" if namespace else name


def read_tools(value: Sequence[Any] | None) -> ToolSet:
    """Raises RequestError naming the tool."""
    tools = ToolSet()
    for node in Node(list(value or ()), "tools").items():
        kind = node.get("type").text()
        if kind in ("function", "custom"):
            _offer(node, "", tools)
        elif kind == "namespace":
            namespace = node.get("name").text()
            for inner in node.get("tools").items():
                if inner.get("type").text() in ("function", "custom"):
                    _offer(inner, namespace, tools)
                else:
                    tools.left_out.add(inner.get("type").text())
        else:
            tools.left_out.add(kind)
            continue
        tools.echoed.append({**_OPTIONAL, **node.value} if kind == "function" else node.value)
    return tools


def read_choice(value: str | Mapping[str, Any] | None, tools: ToolSet) -> Any:
    """The chat request's `tool_choice`. Raises RequestError."""
    node = Node(value, "tool_choice")
    if value is None or isinstance(value, str):
        mode = "auto" if value is None else node.one_of(("none", "auto", "required"))
        if mode == "required" and not tools.functions:
            raise node.fault("a call is required, but no tool can be offered")
        return mode
    kind = node.get("type").text()
    if kind == "allowed_tools":
        mode = node.get("mode").one_of(("auto", "required"))
        named = node.get("tools").items()
        chosen = [_chosen(c, tools) for c in named if c.get("type").text() not in tools.left_out]
        if named and not chosen:
            if mode == "required":
                raise node.get("tools").fault(
                    "a call is required, but none of these can be offered"
                )
            return "none"
        return {"type": kind, kind: {"mode": mode, "tools": chosen}}
    return _chosen(node, tools)


def custom_arguments(text: str) -> str:
    """The free text of a custom tool's call, as the arguments that the model has written."""
    return to_json({INPUT: text})


def custom_input(arguments: str) -> str:
    """The free text in the arguments; arguments of any other form are the text themselves."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    text = value.get(INPUT) if isinstance(value, dict) else None
    return whole_characters(text) if isinstance(text, str) else arguments


def _chosen(node: Node, tools: ToolSet) -> dict[str, Any]:
    kind = node.get("type").text()
    if kind not in ("function", "custom"):
        raise node.get("type").fault(f"{kind[:64]!r} cannot be offered by this server")
    name = tools.offered_name(node.get("name").text(), node.get("namespace").text_or(""))
    if name not in tools.origins:
        raise node.get("name").fault(f"there is no tool named {name[:64]!r}")
    return {"type": "function", "function": {"name": name}}


def _offer(node: Node, namespace: str, tools: ToolSet) -> None:
    name, is_custom = node.get("name").text(), node.value["type"] == "custom"
    offered = f"{namespace}__{name}" if name in tools.origins and namespace else name
    if offered in tools.origins:
        raise node.get("name").fault(f"there are two tools named {offered[:64]!r}")
    tools.origins[offered] = Origin(name, namespace, is_custom)
    parameters = _free_text(node) if is_custom else _parameters(node.get("parameters"))
    tools.functions.append(function_tool(node, offered, parameters))


def _parameters(node: Node) -> Mapping[str, Any]:
    return {"type": "object", "properties": {}} if node.value is None else node.object()


def _free_text(node: Node) -> dict[str, Any]:
    """The schema of a tool that takes free text: one string. If a grammar is given for it, the
    model is only told so; a regular expression is enforced, since JSON schema has a keyword for it.
    """
    text: dict[str, Any] = {"type": "string", "description": "The text that the tool takes."}
    form = node.get("format")
    if form.value is not None and form.get("type").one_of(("text", "grammar")) == "grammar":
        syntax = form.get("syntax").one_of(("lark", "regex"))
        definition = form.get("definition").text()
        if syntax == "regex":
            text["pattern"] = f"^(?:{definition})$"
        else:
            text["description"] += f" It follows this Lark grammar:\n{definition}"
    return {
        "type": "object",
        "properties": {INPUT: text},
        "required": [INPUT],
        "additionalProperties": False,
    }
