"""`ChatWriter`: the answers of `/v1/chat/completions`, whole and streamed.

Where the model may think or call tools, its text is read into the parts of a message first; a chunk
then holds one part. Thinking goes into `reasoning_content`, as DeepSeek's API and most clients call
it. The first chunk of a call, and no other, has its id, type and name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from json.encoder import encode_basestring as quote
from typing import Any

from tinyserve.server.chat import ChatContext
from tinyserve.server.choice_reader import ChoiceReader
from tinyserve.server.deltas import Delta, DeltaMaker, ScoredToken, Usage, WholeChoice
from tinyserve.server.dialects.openai.writer import OpenAIWriter, WriterOptions, sse
from tinyserve.server.json_text import to_json
from tinyserve.text.messages import Message, Part, ReasoningPart, TextPart


class ChatWriter(OpenAIWriter):
    """`/v1/chat/completions`."""

    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, context: ChatContext) -> None:
        num_choices, options = context.params.n, WriterOptions.of(context.body)
        super().__init__(context.tokenizer, context.identity, options, num_choices=num_choices)
        num_readers = 0 if context.answer.is_plain else num_choices
        self._readers = [ChoiceReader(context) for _ in range(num_readers)]
        self._counts_thinking = context.answer.reads_thinking
        self._whole_messages: list[Message] = []  # one per choice, if its text is read

    def opening(self, maker: DeltaMaker) -> bytes:
        """The role, for each choice; the first chunk tells the prompt's ids, too."""
        usage = self._usage(replace(maker.usage, completion_tokens=0))  # nothing was said yet
        prompt = ""
        if self._options.token_ids:
            prompt = f',"prompt_token_ids":{to_json(list(maker.prompts[0].token_ids))}'
        return sse(
            f'{self._prefix}{index},"delta":{{"role":"assistant","content":""}},'
            f'"logprobs":null,"finish_reason":null}}]{usage}{"" if index else prompt}}}'
            for index in range(self._num_choices)
        )

    def frames(self, deltas: Sequence[Delta], usage: Usage) -> bytes:
        if not self._readers:
            return super().frames(deltas, usage)
        chunks = []
        for delta in deltas:
            pieces = self._readers[delta.index].read(delta)
            self._count_thinking(usage)
            chunks += [self._chunk(p.delta, _part_text(p.part), usage) for p in pieces]
        return sse(chunks)

    def whole(self, deltas: Sequence[Delta], maker: DeltaMaker) -> dict[str, Any]:
        if not self._readers:
            return super().whole(deltas, maker)
        parts: list[list[Part]] = [[] for _ in range(self._num_choices)]
        read: list[Delta] = []
        for delta in deltas:
            for piece in self._readers[delta.index].read(delta):
                parts[delta.index] += [piece.part] if piece.part is not None else []
                read.append(piece.delta)
        self._whole_messages = [Message.of(of_choice) for of_choice in parts]
        self._count_thinking(maker.usage)
        return super().whole(read, maker)

    def _count_thinking(self, usage: Usage) -> None:
        if self._counts_thinking:
            usage.reasoning_tokens = sum(reader.reasoning_tokens for reader in self._readers)

    def _delta_text(self, delta: Delta) -> str:
        return _content(delta.text)

    def _whole_text(self, choice: WholeChoice) -> dict[str, Any]:
        if self._whole_messages:
            return {"message": _object(self._whole_messages[choice.index])}
        return {"message": {"role": "assistant", "content": choice.text}}

    def logprobs(self, tokens: Sequence[ScoredToken]) -> dict[str, Any]:
        content = [
            {
                **self._entry(t.token_id, t.logprob, t.strip),
                "top_logprobs": [self._entry(i, p, t.strip) for i, p in t.top],
            }
            for t in tokens
        ]
        return {"content": content, "refusal": None}

    def _entry(self, token_id: int, logprob: float | None, strip: int) -> dict[str, Any]:
        return {
            "token": self.token_text(token_id, strip),
            "logprob": logprob,
            "bytes": list(self._tokenizer.token_bytes(token_id, strip)),
        }


def _object(message: Message) -> dict[str, Any]:
    """OpenAI's message. Content is null where there are calls and nothing else."""
    result: dict[str, Any] = {"role": "assistant", "content": message.text}
    if message.reasoning:
        result["reasoning_content"] = message.reasoning
    if message.tool_calls:
        result["content"] = message.text or None
        result["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in message.tool_calls
        ]
    return result


def _content(text: str) -> str:
    return f'"delta":{{"content":{quote(text)}}}' if text else '"delta":{}'


def _part_text(part: Part | None) -> str:
    """The member of a chunk's choice that holds one part."""
    if part is None:
        return _content("")
    if isinstance(part, TextPart):
        return _content(part.text)
    if isinstance(part, ReasoningPart):
        return f'"delta":{{"reasoning_content":{quote(part.text)}}}'
    function: dict[str, str] = {"arguments": part.arguments}
    call: dict[str, Any] = {"index": part.index, "function": function}
    if part.name is not None:
        function = {"name": part.name, "arguments": part.arguments}
        call = {"index": part.index, "id": part.id, "type": "function", "function": function}
    return f'"delta":{to_json({"tool_calls": [call]})}'
