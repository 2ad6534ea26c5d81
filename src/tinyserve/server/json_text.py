"""Values as the JSON text of answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def to_json(value: Any) -> str:
    """Compact JSON; refuses NaN, which no client could read."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def in_pieces(answer: Mapping[str, Any]) -> str:
    """`to_json(answer)`, with a call for each entry of a list: one call for a million numbers would
    hold the interpreter, and with it the event loop, until it is done.
    """
    members = []
    for name, value in answer.items():
        if isinstance(value, list):
            text = f"[{','.join(map(to_json, value))}]"
        else:
            text = to_json(value)
        members.append(f"{to_json(name)}:{text}")
    return f"{{{','.join(members)}}}"
