"""From a chat request to its prompt, and to the context that its answer is written from.

Knows which fields of a request the chat template sees. Tools go to the template where they may be
called at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tinyserve.engine.build import Engine
from tinyserve.engine.sampling import SamplingParams
from tinyserve.errors import RequestError
from tinyserve.server.protocol import ChatRequest
from tinyserve.server.structured import size_of, spec_of
from tinyserve.server.writer import Identity, Writer
from tinyserve.text.answer_format import AnswerFormat
from tinyserve.text.grammar_spec import GrammarSpec
from tinyserve.text.normalise import content_text
from tinyserve.text.tokenizer import Tokenizer
from tinyserve.text.tool_use import ToolUse, read_tool_use

TEMPLATE_CHARACTERS = 32  # roughly what a template adds to each message


@dataclass(frozen=True)
class ChatContext:
    """What is settled of a chat request before its answer is written; the writers of all chat
    protocols are made from it. `params` is how its tokens are drawn, the model's defaults included;
    `answer` how its text is read.
    """

    body: ChatRequest
    tokenizer: Tokenizer
    identity: Identity
    params: SamplingParams
    answer: AnswerFormat

    def constraint(self) -> GrammarSpec | None:
        """What the answer has to keep to, its thinking and its calls included. Raises
        RequestError.
        """
        return self.answer.constraint(spec_of(self.body))


MakeWriter = Callable[[ChatContext], Writer]


def chat_prompt(engine: Engine, body: ChatRequest) -> list[int]:
    """The prompt of a conversation, as token ids. Raises RequestError."""
    intake, tools = engine.intake, tool_use(engine, body)
    template = intake.tokenizer.chat_template
    if body.chat_template:
        if not engine.config.server.trust_request_chat_template:
            raise RequestError(
                "chat_template may only be set by the operator (--chat-template), unless the "
                "server runs with --trust-request-chat-template",
                param="chat_template",
            )
        template = template.replaced(body.chat_template)
    kwargs = dict(body.chat_template_kwargs or {})
    if body.reasoning_effort is not None:
        kwargs.setdefault("reasoning_effort", body.reasoning_effort)
    if body.reasoning_effort == "none":
        kwargs.setdefault("enable_thinking", False)  # the usual name in templates
    return intake.encode_chat(
        [message.for_template() for message in body.messages],
        tools=None if tools is None else tools.definitions,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=bool(body.continue_final_message),
        documents=body.documents,
        template_kwargs=kwargs,
        template=template,
        add_special_tokens=bool(body.add_special_tokens),
    )


def tool_use(engine: Engine, body: ChatRequest) -> ToolUse | None:
    """The tools that the model may call. Raises RequestError."""
    tools = read_tool_use(body.tools, body.tool_choice, body.parallel_tool_calls)
    if tools is None:
        return None
    if tools.is_forced and engine.intake.message_format.calls is None:
        raise RequestError(
            "tool_choice: calls cannot be demanded with --tool-call-parser none",
            param="tool_choice",
        )
    if not tools.is_forced and not engine.config.server.enable_auto_tool_choice:
        raise RequestError(
            "tool_choice 'auto' is turned off (--no-enable-auto-tool-choice)",
            param="tool_choice",
        )
    return tools


def chat_context(
    engine: Engine,
    body: ChatRequest,
    ids: Sequence[int],
    identity: Identity,
    params: SamplingParams,
) -> ChatContext:
    """The context of an answer; `ids` are the prompt's. Raises RequestError."""
    intake, tools = engine.intake, tool_use(engine, body)
    echo = ""
    if body.echo and body.continue_final_message:
        echo = content_text(body.messages[-1].content, may_be_null=True, may_think=True)
    messages = (message.for_template() for message in body.messages)
    answer = AnswerFormat.after(ids, messages, intake.message_format, tools, intake.tokenizer, echo)
    return ChatContext(body, intake.tokenizer, identity, params, answer)


def prompt_size(body: ChatRequest) -> int:
    """About how many characters the prompt will have, and its grammar."""
    size = TEMPLATE_CHARACTERS * len(body.messages)
    size += sum(len(m.content) for m in body.messages if isinstance(m.content, str))
    others = [m.content for m in body.messages if not isinstance(m.content, str)]
    calls = [m.tool_calls for m in body.messages if m.tool_calls]
    shown = (body.tools, body.documents, body.chat_template_kwargs, body.chat_template)
    values = (*others, *calls, *shown)
    return size + size_of(body) + sum(len(str(value)) for value in values if value)
