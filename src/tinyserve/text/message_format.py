"""`MessageFormat`: how one model writes its messages, read off its chat template or set.

What one prompt adds to it is `AnswerFormat`'s (`text/answer_format.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from tinyserve.text.reasoning import CLOSER
from tinyserve.text.tool_formats import ToolFormat, detect_tool_format


@dataclass(frozen=True)
class MessageFormat:
    """`calls` None: they are not read. `reasoning`: "none", "qwen3" or "deepseek_r1"."""

    calls: ToolFormat | None = None
    reasoning: str = "none"

    @classmethod
    def detect(
        cls, source: str | None, *, tool_call_parser: str = "auto", reasoning_parser: str = "none"
    ) -> MessageFormat:
        """By the settings; where one is "auto", by the text of the chat template."""
        if reasoning_parser == "auto":
            reasoning_parser = "qwen3" if CLOSER in (source or "") else "none"
        return cls(detect_tool_format(source, tool_call_parser), reasoning_parser)

    @property
    def reads_thinking(self) -> bool:
        return self.reasoning != "none"
