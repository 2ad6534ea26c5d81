"""`Turn`: one answer in a conversation, offline: its prompt, its constraint, and how it is read.

The server's counterpart is `server/chat_context.py`; both leave the rules to `MessageFormat`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tinyserve.engine.intake import Intake
from tinyserve.engine.request import EngineRequest
from tinyserve.engine.sampling import SamplingParams
from tinyserve.errors import RequestError
from tinyserve.text.grammar_spec import GrammarSpec, spec_of_options
from tinyserve.text.message_format import thinking_after
from tinyserve.text.messages import Message, MessageParser
from tinyserve.text.response_format import response_format_spec
from tinyserve.text.tool_use import ToolUse


@dataclass(frozen=True)
class Turn:
    """`thinking`: whether the prompt ends in thinking that is open, closed, or in none (None).
    `response_format` is OpenAI's. `continues`: the answer goes on from the last message.
    """

    intake: Intake
    prompt_ids: list[int]
    tools: ToolUse | None
    thinking: bool | None
    response_format: Mapping[str, Any] | None = None
    continues: bool = False

    @classmethod
    def after(
        cls,
        intake: Intake,
        messages: Sequence[Mapping[str, Any]],
        tools: ToolUse | None,
        response_format: Mapping[str, Any] | None = None,
        **template: Any,
    ) -> Turn:
        """The turn that answers `messages`. Raises RequestError."""
        definitions = None if tools is None else tools.definitions
        ids = intake.encode_chat(messages, tools=definitions, **template)
        thinking = None
        if intake.message_format.reads_thinking or (tools is not None and tools.is_forced):
            prompt = intake.tokenizer.decode(ids, skip_special_tokens=False)
            thinking = thinking_after(prompt, messages)
        continues = bool(template.get("continue_final_message"))
        return cls(intake, ids, tools, thinking, response_format, continues)

    def request(self, request_id: str, params: SamplingParams) -> EngineRequest:
        """What the engine is asked. Raises RequestError."""
        form, special_id = self.intake.message_format, self.intake.tokenizer.special_id
        spec = form.constraint(self._answer_spec(params), self.tools, special_id, self.thinking)
        if spec is None and self.tools is not None and self.tools.is_forced:
            raise RequestError(
                "tool_choice demands calls, which does not go with tool_call_parser 'none'",
                param="tool_choice",
            )
        grammar = None if spec is None else self.intake.grammars.compile(spec)
        return self.intake.request(
            request_id,
            self.prompt_ids,
            params,
            visible_ids=form.visible_ids(self.tools, special_id),
            continues=self.continues,
            new_thinking=form.thinking_splits(self.thinking),
            grammar=grammar,
        )

    def read(self, text: str) -> Message:
        """The message in what the model wrote."""
        parser = self.new_parser()
        return Message.of([*parser.push(text), *parser.flush()])

    def new_parser(self) -> MessageParser:
        """What reads one answer, piece by piece."""
        return self.intake.message_format.new_parser(self.tools, is_open=self.thinking)

    def _answer_spec(self, params: SamplingParams) -> GrammarSpec | None:
        """What the answer keeps to, under either of its names."""
        spec = None
        if self.response_format is not None:
            if not isinstance(self.response_format, Mapping):
                raise RequestError("response_format must be a mapping", param="response_format")
            spec = response_format_spec(self.response_format)
        if params.structured_outputs is None:
            return spec
        if spec is not None:
            raise RequestError(
                "response_format and structured_outputs exclude each other: send one constraint",
                param="response_format",
            )
        return spec_of_options(params.structured_outputs, "structured_outputs")
