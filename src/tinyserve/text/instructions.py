"""Instructions where a chat template refuses them: several system messages, or a late one.

Many templates take one system message, at the start. Agents send several, and some between turns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def with_instructions_first(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages with one system message at most, the first. Later instructions become words of
    the user's, in one message with those before or after them, so that turns still alternate.

    The messages are normalised: their content is a string.
    """
    result: list[dict[str, Any]] = []
    was_late = False
    for message in messages:
        is_system = message["role"] == "system"
        is_late = is_system and any(m["role"] != "system" for m in result)
        told = {**message, "role": "user" if is_late else message["role"]}
        if result and result[-1]["role"] == told["role"] and (is_system or was_late):
            before = result.pop()
            told = {**before, **told, "content": f"{before['content']}\n\n{told['content']}"}
        result.append(told)
        was_late = is_late
    return result
