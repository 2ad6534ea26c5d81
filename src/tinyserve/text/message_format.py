"""`MessageFormat`: how one model writes its messages, read off its chat template or set.

Puts together the parser of a message, and says which special tokens it has to see. Knows no tokens
itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tinyserve.errors import RequestError
from tinyserve.text.grammar_spec import GrammarSpec
from tinyserve.text.messages import MessageParser
from tinyserve.text.reasoning import CLOSER, OPENER, ThinkingSplit, ThinkReader
from tinyserve.text.template import content_text
from tinyserve.text.tool_formats import ToolFormat, detect_tool_format
from tinyserve.text.tool_grammar import SpecialId, calls_grammar
from tinyserve.text.tool_reader import CallReader
from tinyserve.text.tool_use import ToolUse


@dataclass(frozen=True)
class MessageFormat:
    """`tools` None: calls are not read. `reasoning`: "none", "qwen3" or "deepseek_r1"."""

    tools: ToolFormat | None = None
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

    def starts_thinking(self, is_open: bool | None) -> bool:
        """Whether a message begins inside thinking, after a prompt that has opened it (True),
        closed it (False), or neither (None).
        """
        return is_open is True or (is_open is None and self.reasoning == "deepseek_r1")

    def markers(self, tools: ToolUse | None) -> tuple[str, ...]:
        """What a parser must see although it may be special tokens."""
        thinking = (OPENER, CLOSER) if self.reads_thinking else ()
        return (*(self.tools.markers if tools and self.tools else ()), *thinking)

    def visible_ids(self, tools: ToolUse | None, special_id: SpecialId) -> frozenset[int]:
        """The special tokens among the markers; `special_id` knows them by their text."""
        ids = (special_id(marker) for marker in self.markers(tools))
        return frozenset(token_id for token_id in ids if token_id is not None)

    def calls_spec(self, tools: ToolUse | None, special_id: SpecialId) -> GrammarSpec | None:
        """What calls of the tools look like; None where no calls are read. Raises RequestError."""
        if tools is None or self.tools is None:
            return None
        text = calls_grammar(
            self.tools, tools.functions, max_calls=tools.max_calls, special_id=special_id
        )
        return GrammarSpec("lark", text, param="tools")

    def constraint(
        self,
        spec: GrammarSpec | None,
        tools: ToolUse | None,
        special_id: SpecialId,
        is_open: bool | None,
    ) -> GrammarSpec | None:
        """What the whole message keeps to, where its answer is to keep to `spec`.

        Where the answer has to be calls, that is the constraint: a `response_format` is for text,
        of which there will be none, and OpenAI's API takes both. Where the model may choose, calls
        stay possible beside it. What the model thinks before stays free. `is_open` as in
        `starts_thinking`. Raises RequestError.
        """
        if tools is not None and tools.is_forced:
            if spec is not None and spec.param != "response_format":
                raise RequestError(
                    f"{spec.param} cannot go with a tool_choice that demands calls",
                    param=spec.param,
                )
            spec = self.calls_spec(tools, special_id)
        elif tools is not None and spec is not None:
            spec = replace(spec, or_else=self.calls_spec(tools, special_id))
        return None if spec is None else self.after_thinking(spec, is_open)

    def after_thinking(self, spec: GrammarSpec, is_open: bool | None) -> GrammarSpec:
        """A constraint of the answer that leaves the thinking before it free; `is_open` as in
        `starts_thinking`.
        """
        begins = self.starts_thinking(is_open)
        may_think = self.reads_thinking and is_open is None and not begins
        return replace(spec, after=CLOSER if begins else None, may_think=may_think)

    def thinking_splits(
        self, is_open: bool | None, before: str = ""
    ) -> Callable[[], ThinkingSplit] | None:
        """What makes a choice's `ThinkingSplit`, after a text `before` that is shown with it; None
        where no thinking is read. `is_open` as in `starts_thinking`.
        """
        if not self.reads_thinking:
            return None
        begins = self.starts_thinking(is_open)
        return lambda: ThinkingSplit(is_open=begins, before=before)

    def new_parser(self, tools: ToolUse | None, *, is_open: bool | None = None) -> MessageParser:
        """A parser of one message; `is_open` as in `starts_thinking`."""
        reasoning = calls = None
        if self.reads_thinking:
            reasoning = ThinkReader(is_open=self.starts_thinking(is_open))
        if tools is not None and self.tools is not None:
            calls = CallReader(
                self.tools,
                tools.functions,
                max_calls=tools.max_calls,
                demands_calls=tools.is_forced,
            )
        return MessageParser(reasoning=reasoning, tools=calls)


# The markers while a prompt is searched: halves of characters, which no text holds.
_MARKS = {OPENER: "\ud800", CLOSER: "\ud801"}


def thinking_after(prompt: str, messages: Sequence[Mapping[str, Any]]) -> bool | None:
    """What a rendered prompt leaves: thinking that is open (True), closed (False), or none (None).

    What other people said in `messages` may hold markers too, so only the prompt's end counts: what
    follows the last message that is not the assistant's.
    """
    prompt = _marked(prompt).rstrip()
    last = messages[-1] if messages else {}
    if last.get("role") == "assistant" and not prompt.endswith(tuple(_MARKS.values())):
        own = _marked(content_text(last.get("content"), may_be_null=True))
        cut = max(map(own.rfind, _MARKS.values()))
        rest = own[cut + 1 :].strip()
        if rest and prompt.endswith(rest):  # it is continued
            if cut >= 0:
                return own[cut] == _MARKS[OPENER]
            prompt = prompt[: -len(rest)].rstrip()
    if prompt.endswith(tuple(_MARKS.values())):
        return prompt.endswith(_MARKS[OPENER])
    said = [m.get("content") for m in messages if m.get("role") != "assistant"]
    others = _marked(content_text(said[-1], may_be_null=True)).strip() if said else ""
    at = prompt.rfind(others) if others else -1
    tail = prompt[at + len(others) :] if at >= 0 else ""
    opened, closed = map(tail.rfind, _MARKS.values())
    return None if opened == closed == -1 else opened > closed


def _marked(text: str) -> str:
    """The text with its markers as one character each, so that no word is found within one."""
    for marker, mark in _MARKS.items():
        text = text.replace(marker, mark)
    return text
