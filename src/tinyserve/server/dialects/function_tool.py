"""A tool of another protocol as the function that a chat request offers.

The Responses and Messages APIs name the parameters differently and agree about the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tinyserve.server.dialects.json_node import Node
from tinyserve.text.tool_json import TOOL_NAME, TOOL_NAME_RULE


def function_tool(node: Node, name: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """A function with the description and the strictness that the client's tool at `node` has.

    Raises RequestError naming the member at fault.
    """
    if not TOOL_NAME.fullmatch(name):
        raise node.get("name").fault(TOOL_NAME_RULE)
    function: dict[str, Any] = {"name": name, "parameters": parameters}
    description = node.get("description").text_or("")
    if description:
        function["description"] = description
    if node.get("strict").value is not None:
        function["strict"] = node.get("strict").flag_or(False)
    return {"type": "function", "function": function}
