"""Objects held against the types of the official clients, and streams of named events read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

from pydantic import BaseModel, TypeAdapter

# Members of OpenAI's responses that its client has no name for.
UNNAMED = frozenset({"frequency_penalty", "presence_penalty", "store"})


def strictly(kind: Any, value: Any, *, extra: frozenset[str] = frozenset()) -> Any:
    """`value` as a client's `kind`: every type exact, and no member that the client does not know,
    but for those named in `extra`.
    """
    result = _adapter(kind).validate_python(value, strict=True)
    unknown = set(_unknown(result)) - extra
    assert not unknown, f"members that {kind} does not have: {unknown}"
    return result


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _unknown(value: Any) -> Iterator[str]:
    if isinstance(value, BaseModel):
        yield from value.model_extra or ()
        for name in type(value).model_fields:
            yield from _unknown(getattr(value, name))
    elif isinstance(value, list):
        for item in value:
            yield from _unknown(item)


def named_events(text: str) -> list[dict[str, Any]]:
    """The data of each event; its name must be its data's type. Comments are skipped."""
    assert text.endswith("\n\n")
    events = []
    for block in text.removesuffix("\n\n").split("\n\n"):
        if block.startswith(":"):
            continue
        name, data = block.split("\n")
        event: dict[str, Any] = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    return events
