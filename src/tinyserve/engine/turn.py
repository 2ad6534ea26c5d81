"""`Turn`: one answer in a conversation, offline: its prompt, its constraint, and how it is read.

The server's counterpart is `server/chat.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tinyserve.engine.exclusive import interrupts_put_off
from tinyserve.engine.intake import Intake
from tinyserve.engine.request import EngineRequest
from tinyserve.engine.sampling import SamplingParams
from tinyserve.errors import RequestError
from tinyserve.text.answer_format import AnswerFormat
from tinyserve.text.grammar_spec import GrammarSpec, spec_of_options
from tinyserve.text.response_format import response_format_spec
from tinyserve.text.tool_use import ToolUse


@dataclass(frozen=True)
class Turn:
    """A conversation of the offline API that waits for the model's answer."""

    intake: Intake
    prompt_ids: list[int]
    answer: AnswerFormat
    response_format: Mapping[str, Any] | None = None  # OpenAI's
    continues: bool = False  # the answer goes on from the last message

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
        # A template may raise anything, which is then reported as its error; Ctrl-C must not be.
        with interrupts_put_off():
            ids = intake.encode_chat(messages, tools=definitions, **template)
        answer = AnswerFormat.after(ids, messages, intake.message_format, tools, intake.tokenizer)
        continues = bool(template.get("continue_final_message"))
        return cls(intake, ids, answer, response_format, continues)

    def request(self, request_id: str, params: SamplingParams) -> EngineRequest:
        """What the engine is asked. Raises RequestError."""
        spec = self.answer.constraint(self._answer_spec(params))
        grammar = None if spec is None else self.intake.grammars.compile(spec)
        return self.intake.request(
            request_id,
            self.prompt_ids,
            params,
            answer=self.answer,
            continues=self.continues,
            grammar=grammar,
        )

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
