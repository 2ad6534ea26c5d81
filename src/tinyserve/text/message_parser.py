"""`MessageParser`: what a model wrote, as the parts of a message: reasoning, text, tool calls.

Text goes in as it is generated, in pieces of any size; parts come out as soon as they are certain.
However the text was cut, the joined parts are the same: a stream and a whole answer use the same
parser, and so agree by construction. Nothing that a model writes is an error: what only looks like
a call is text. Knows no tokens, no HTTP; one parser per choice.
"""

from __future__ import annotations

from tinyserve.text.messages import Part, ReasoningPart, TextPart
from tinyserve.text.reasoning import ThinkReader
from tinyserve.text.tool_reader import CallReader


class MessageParser:
    """Reads one message: `reasoning` tells thinking from answer, then `tools` calls from text.
    Without them all of it is text.
    """

    __slots__ = ("_reasoning", "_tools")

    def __init__(
        self, *, reasoning: ThinkReader | None = None, tools: CallReader | None = None
    ) -> None:
        self._reasoning = reasoning
        self._tools = tools

    @property
    def has_calls(self) -> bool:
        """Whether a tool call has begun."""
        return self._tools is not None and self._tools.num_calls > 0

    @property
    def is_call_cut(self) -> bool:
        """Whether the message has ended inside the arguments of a call."""
        return self._tools is not None and self._tools.is_cut

    @property
    def is_reasoning(self) -> bool:
        """Whether the message ends, so far, inside the thinking."""
        return self._reasoning is not None and self._reasoning.is_reasoning

    @property
    def thinking_end(self) -> int | None:
        """How many characters of the message belong to its thinking; None until that is known."""
        return 0 if self._reasoning is None else self._reasoning.end

    def push(self, text: str) -> list[Part]:
        """The parts that became certain with this piece of the message."""
        if self._reasoning is None:
            return self._answer(text)
        thought, answer = self._reasoning.push(text)
        return self._thought(thought) + self._answer(answer)

    def flush(self) -> list[Part]:
        """What was held back: the message has ended. Push nothing after it."""
        parts: list[Part] = []
        if self._reasoning is not None:
            thought, answer = self._reasoning.flush()
            parts = self._thought(thought) + self._answer(answer)
        return parts + self._tools.flush() if self._tools is not None else parts

    def _thought(self, text: str) -> list[Part]:
        return [ReasoningPart(text)] if text else []

    def _answer(self, text: str) -> list[Part]:
        if not text:
            return []
        return [TextPart(text)] if self._tools is None else self._tools.push(text)
