"""`AnswerFormat`: how the answer to one prompt is written, so what constrains it and what reads it.

That is the model's `MessageFormat`, read off its chat template or set, and what this prompt
decides: the tools that may be called, and whether thinking has begun. The server and the offline
API make one for each answer of a conversation, and leave the rules to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tinyserve.errors import RequestError
from tinyserve.text.grammar_source import SpecialId
from tinyserve.text.grammar_spec import GrammarSpec
from tinyserve.text.message_parser import MessageParser
from tinyserve.text.messages import Message
from tinyserve.text.normalise import content_text
from tinyserve.text.reasoning import CLOSER, OPENER, ThinkingSplit, ThinkReader
from tinyserve.text.tokenizer import Tokenizer
from tinyserve.text.tool_formats import ToolFormat, detect_tool_format
from tinyserve.text.tool_grammar import calls_grammar
from tinyserve.text.tool_reader import CallReader
from tinyserve.text.tool_use import ToolUse


@dataclass(frozen=True)
class MessageFormat:
    """How one model writes its messages."""

    calls: ToolFormat | None = None  # None: calls are not read
    reasoning: str = "none"  # none | qwen3 | deepseek_r1

    @classmethod
    def detect(
        cls, source: str | None, *, tool_call_parser: str = "auto", reasoning_parser: str = "none"
    ) -> MessageFormat:
        """The format that the settings name, or for "auto" that the chat template shows."""
        if reasoning_parser == "auto":
            reasoning_parser = "qwen3" if CLOSER in (source or "") else "none"
        return cls(detect_tool_format(source, tool_call_parser), reasoning_parser)

    @property
    def reads_thinking(self) -> bool:
        return self.reasoning != "none"


@dataclass(frozen=True)
class AnswerFormat:
    """How the answer to one prompt is written."""

    form: MessageFormat
    tools: ToolUse | None = None  # None: none may be called
    # Whether the prompt ends in thinking that is open (True), closed (False), or in none (None).
    thinking: bool | None = None
    echo: str = ""  # read before the model's text
    special_id: SpecialId = lambda text: None  # finds the id of a special token by its text

    @classmethod
    def after(
        cls,
        prompt_ids: Sequence[int],
        messages: Iterable[Mapping[str, Any]],
        form: MessageFormat,
        tools: ToolUse | None,
        tokenizer: Tokenizer,
        echo: str = "",
    ) -> AnswerFormat:
        """The format of the answer to a prompt that was rendered from `messages`."""
        thinking = None
        if form.reads_thinking or (tools is not None and tools.is_forced):
            prompt = tokenizer.decode(prompt_ids, skip_special_tokens=False)
            # An echo is read with the answer, so what it opens is not yet open.
            before = prompt[: prompt.rfind(echo)] if echo else prompt
            thinking = thinking_after(before, list(messages))
        return cls(form, tools, thinking, echo, tokenizer.special_id)

    @property
    def is_plain(self) -> bool:
        """Whether all that the model writes is the answer's text."""
        return not self.reads_thinking and (self.tools is None or self.form.calls is None)

    @property
    def reads_thinking(self) -> bool:
        return self.form.reads_thinking

    @property
    def starts_thinking(self) -> bool:
        """Whether the model's text begins inside thinking."""
        opens_itself = self.form.reasoning == "deepseek_r1"
        return opens_itself if self.thinking is None else self.thinking

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts that a parser must see, even where they are special tokens of the model."""
        calls = self.form.calls.markers if self.tools and self.form.calls else ()
        return (*calls, OPENER, CLOSER) if self.reads_thinking else calls

    @property
    def visible_ids(self) -> frozenset[int]:
        """The special tokens among the markers."""
        ids = map(self.special_id, self.markers)
        return frozenset(token_id for token_id in ids if token_id is not None)

    def constraint(self, spec: GrammarSpec | None) -> GrammarSpec | None:
        """The constraint on the whole message, where `spec` is that on its answer.

        Where the answer has to be calls, that is the constraint: a `response_format` is for text,
        of which there will be none, and OpenAI's API takes both. Where the model may choose, calls
        stay possible beside it. What the model thinks before stays free. Raises RequestError.
        """
        if self.tools is not None and self.tools.is_forced:
            if spec is not None and spec.param != "response_format":
                raise RequestError(
                    f"{spec.param} cannot go with a tool_choice that demands calls",
                    param=spec.param,
                )
            spec = self._calls_spec()
            if spec is None:
                raise RequestError(
                    "tool_choice demands calls, which does not go with tool_call_parser 'none'",
                    param="tool_choice",
                )
        elif self.tools is not None and spec is not None:
            spec = replace(spec, or_else=self._calls_spec())
        if spec is None:
            return None
        begins = self.starts_thinking
        may_think = self.reads_thinking and self.thinking is None and not begins
        return replace(spec, after=CLOSER if begins else None, may_think=may_think)

    def _calls_spec(self) -> GrammarSpec | None:
        """What calls of the tools look like; None where no calls are read. Raises RequestError."""
        form, tools = self.form.calls, self.tools
        if tools is None or form is None:
            return None
        text = calls_grammar(
            form, tools.functions, max_calls=tools.max_calls, special_id=self.special_id
        )
        return GrammarSpec("lark", text, param="tools")

    def new_split(self) -> ThinkingSplit | None:
        """What tells one choice's thinking from its answer; None where no thinking is read."""
        if not self.reads_thinking:
            return None
        return ThinkingSplit(is_open=self.starts_thinking, before=self.echo)

    def new_parser(self) -> MessageParser:
        """What reads one choice, piece by piece."""
        form, tools = self.form.calls, self.tools
        reasoning = calls = None
        openers: tuple[str, ...] = ()
        closers: tuple[str, ...] = ()
        if tools is not None and form is not None:
            openers, closers = form.openers, form.closers
            calls = CallReader(
                form, tools.functions, max_calls=tools.max_calls, demands_calls=tools.is_forced
            )
        if self.reads_thinking:
            reasoning = ThinkReader(
                is_open=self.starts_thinking, call_openers=openers, call_closers=closers
            )
        return MessageParser(reasoning=reasoning, tools=calls)

    def read(self, text: str) -> Message:
        """The message in what the model wrote."""
        parser = self.new_parser()
        return Message.of([*parser.push(text), *parser.flush()])


# Stand for the markers while a prompt is searched: lone surrogates, which no text holds.
_MARKS = {OPENER: "\ud800", CLOSER: "\ud801"}


def thinking_after(prompt: str, messages: Sequence[Mapping[str, Any]]) -> bool | None:
    """What a rendered prompt leaves: thinking that is open (True), closed (False), or none (None).

    What other people said in `messages` may hold markers too, so only the prompt's end counts: what
    follows the last message that is not the assistant's.
    """
    prompt = _marked(prompt).rstrip()
    last = messages[-1] if messages else {}
    if last.get("role") == "assistant" and not prompt.endswith(tuple(_MARKS.values())):
        own = _marked(content_text(last.get("content"), may_be_null=True, may_think=True))
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
