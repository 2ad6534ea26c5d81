"""What a model wrote, as parts of a message (reasoning, text, tool calls) and as a whole one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class TextPart:
    """A piece of the answer itself."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningPart:
    """A piece of the thinking before the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallPart:
    """A piece of a call."""

    index: int  # of the call: 0, 1, ...
    arguments: str  # the pieces of one call join to JSON text
    id: str | None = None  # set in the first piece of a call, None in all later ones
    name: str | None = None  # as `id`


Part = TextPart | ReasoningPart | ToolCallPart


@dataclass(slots=True)
class ToolCall:
    """A whole call. `arguments` is JSON text as the model wrote it, which need not be valid."""

    id: str
    name: str
    arguments: str


@dataclass(slots=True)
class Message:
    """All parts of one message, joined."""

    text: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)

    @classmethod
    def of(cls, parts: Iterable[Part]) -> Message:
        """The message that these parts make."""
        texts: list[str] = []
        thoughts: list[str] = []
        calls: list[tuple[ToolCallPart, list[str]]] = []
        for part in parts:
            if isinstance(part, TextPart):
                texts.append(part.text)
            elif isinstance(part, ReasoningPart):
                thoughts.append(part.text)
            else:
                if part.index == len(calls):
                    calls.append((part, []))
                calls[part.index][1].append(part.arguments)
        whole = [ToolCall(first.id or "", first.name or "", "".join(a)) for first, a in calls]
        return cls("".join(texts), "".join(thoughts), whole)
