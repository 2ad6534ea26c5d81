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
from tinyserve.text.message_format import thinking_after
from tinyserve.text.messages import Message
from tinyserve.text.tool_use import ToolUse


@dataclass(frozen=True)
class Turn:
    """`thinking`: whether the prompt ends in thinking that is open, closed, or in none (None)."""

    intake: Intake
    prompt_ids: list[int]
    tools: ToolUse | None
    thinking: bool | None

    @classmethod
    def after(
        cls,
        intake: Intake,
        messages: Sequence[Mapping[str, Any]],
        tools: ToolUse | None,
        **template: Any,
    ) -> Turn:
        """The turn that answers `messages`. Raises RequestError."""
        definitions = None if tools is None else tools.definitions
        ids = intake.encode_chat(messages, tools=definitions, **template)
        thinking = thinking_after(intake.tokenizer.decode(ids, skip_special_tokens=False), messages)
        return cls(intake, ids, tools, thinking)

    def request(self, request_id: str, params: SamplingParams) -> EngineRequest:
        """What the engine is asked. Raises RequestError."""
        form, special_id = self.intake.message_format, self.intake.tokenizer.special_id
        grammar = None
        if self.tools is not None and self.tools.is_forced:
            spec = form.calls_spec(self.tools, special_id)
            if spec is None or params.structured_outputs is not None:
                raise RequestError(
                    "tool_choice demands calls, which goes neither with structured_outputs nor "
                    "with tool_call_parser 'none'",
                    param="tool_choice",
                )
            grammar = self.intake.grammars.compile(form.after_thinking(spec, self.thinking))
        return self.intake.request(
            request_id,
            self.prompt_ids,
            params,
            visible_ids=form.visible_ids(self.tools, special_id),
            grammar=grammar,
        )

    def read(self, text: str) -> Message:
        """The message in what the model wrote."""
        parser = self.intake.message_format.new_parser(self.tools, is_open=self.thinking)
        return Message.of([*parser.push(text), *parser.flush()])
