"""`OpenAIWriter`: what the answers of completions and chats have in common, whole and streamed.

The `Writer` of one response: it turns deltas into OpenAI's objects. Frames of a stream are built by
hand from a prefix that is fixed per response and the JSON of the delta alone; nothing is validated
per token.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tinyserve.engine.sampling import SampledToken
from tinyserve.server.deltas import (
    MIN_LOGPROB,
    Delta,
    DeltaMaker,
    GroupPrompt,
    ScoredToken,
    Usage,
    WholeChoice,
    join,
)
from tinyserve.server.errors import HTTPFailure
from tinyserve.server.json_text import to_json
from tinyserve.server.protocol import GenerationRequest
from tinyserve.server.writer import Identity
from tinyserve.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class WriterOptions:
    """What the client wants to see."""

    usage: bool = False  # streams: a last chunk with the usage
    continuous_usage: bool = False  # streams: the running usage in every chunk
    token_ids: bool = False
    tokens_as_ids: bool = False
    prompt_logprobs: int | None = None  # whole answers: how many likeliest beside a prompt's token

    @classmethod
    def of(cls, body: GenerationRequest) -> WriterOptions:
        """The options that a request asks for."""
        return cls(
            usage=body.include_usage,
            continuous_usage=body.continuous_usage,
            token_ids=bool(body.return_token_ids),
            tokens_as_ids=bool(body.return_tokens_as_token_ids),
            prompt_logprobs=body.prompt_logprobs,
        )


def usage_object(usage: Usage) -> dict[str, Any]:
    result: dict[str, Any] = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
    if usage.reasoning_tokens is not None:
        result["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning_tokens}
    return result


class OpenAIWriter(ABC):
    """What the writers of both routes share; see `Writer`."""

    whole_object: str
    chunk_object: str

    def __init__(
        self,
        tokenizer: Tokenizer,
        identity: Identity,
        options: WriterOptions,
        *,
        num_choices: int = 1,
    ) -> None:
        self._tokenizer = tokenizer
        self._identity = identity
        self._options = options
        self._num_choices = num_choices
        self._prompts: dict[int, GroupPrompt] = {}  # to go out with a choice's first chunk
        head = to_json(self._head(self.chunk_object))[:-1]
        self._prefix = f'{head},"choices":[{{"index":'

    def opening(self, maker: DeltaMaker) -> bytes:
        return b""

    def frames(self, deltas: Sequence[Delta], usage: Usage) -> bytes:
        return sse([self.chunk(delta, usage) for delta in deltas])

    def closing(self, usage: Usage) -> bytes:
        tail = [self.usage_chunk(usage)] if self._options.usage else []
        return sse(tail) + DONE

    def error(self, told: HTTPFailure) -> bytes:
        """An error event and no [DONE]: never an end that looks complete."""
        return sse([to_json(told.body)])

    def chunk(self, delta: Delta, usage: Usage) -> str:
        """The JSON of one chunk of a stream."""
        return self._chunk(delta, self._delta_text(delta), usage)

    def _chunk(self, delta: Delta, text: str, usage: Usage) -> str:
        """A chunk with `text` as the members of its choice that hold text."""
        finish = "null" if delta.finish_reason is None else f'"{delta.finish_reason}"'
        logprobs = "null" if delta.logprobs is None else to_json(self.logprobs(delta.logprobs))
        extra = ""
        if delta.stop_reason is not None:
            extra += f',"stop_reason":{to_json(delta.stop_reason)}'
        if self._options.token_ids:
            extra += f',"token_ids":{to_json(delta.token_ids)}'
            prompt = self._prompts.pop(delta.index, None)
            if prompt is not None:
                extra += f',"prompt_token_ids":{to_json(list(prompt.token_ids))}'
        return (
            f"{self._prefix}{delta.index},{text},"
            f'"logprobs":{logprobs},"finish_reason":{finish}{extra}}}]{self._usage(usage)}}}'
        )

    def usage_chunk(self, usage: Usage) -> str:
        """The last chunk of a stream that was asked for usage: no choices."""
        head = self._head(self.chunk_object)
        return to_json({**head, "choices": [], "usage": usage_object(usage)})

    def whole(self, deltas: Sequence[Delta], maker: DeltaMaker) -> dict[str, Any]:
        choices = [self._whole_choice(c) for c in join(deltas, self._num_choices)]
        answer = {
            **self._head(self.whole_object),
            "choices": choices,
            "usage": usage_object(maker.usage),
        }
        per_prompt = len(choices) // len(maker.prompts)
        for i, choice in enumerate(choices):
            self._place(answer, choice, self._prompt_fields(maker, maker.prompts[i // per_prompt]))
        return answer

    def _prompt_fields(self, maker: DeltaMaker, prompt: GroupPrompt) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        if self._options.token_ids:
            fields["prompt_token_ids"] = list(prompt.token_ids)
        scores = maker.prompt_logprobs(prompt)
        if self._options.prompt_logprobs is not None and scores is not None:
            fields["prompt_logprobs"] = self.prompt_logprobs(prompt.token_ids, scores)
        return fields

    def _place(
        self, answer: dict[str, Any], choice: dict[str, Any], fields: dict[str, Any]
    ) -> None:
        """Put what concerns the prompt into the answer, which has one prompt."""
        answer.update(fields)

    @abstractmethod
    def logprobs(self, tokens: Sequence[ScoredToken]) -> dict[str, Any]:
        """The route's logprobs object."""

    @abstractmethod
    def _delta_text(self, delta: Delta) -> str:
        """The members of a chunk's choice that hold its text."""

    @abstractmethod
    def _whole_text(self, choice: WholeChoice) -> dict[str, Any]:
        """The members of a whole choice that hold its text."""

    def prompt_logprobs(
        self, token_ids: Sequence[int], scores: Sequence[SampledToken | None]
    ) -> list[dict[str, Any] | None]:
        """vLLM's `prompt_logprobs`: for each prompt token, id -> logprob, rank, text."""
        return [
            None if score is None else self._prompt_entry(token_id, score)
            for token_id, score in zip(token_ids, scores, strict=True)
        ]

    def _prompt_entry(self, token_id: int, score: SampledToken) -> dict[str, Any]:
        top = score.top[: self._options.prompt_logprobs]  # an echo may have asked for more
        ranked = [(i, p, rank) for rank, (i, p) in enumerate(top, start=1)]
        if all(i != token_id for i, _, _ in ranked):
            ranked.append((token_id, score.logprob or 0.0, score.rank or 0))
        return {
            str(i): {
                "logprob": max(p, MIN_LOGPROB),
                "rank": rank,
                "decoded_token": self.token_text(i),
            }
            for i, p, rank in ranked
        }

    def token_text(self, token_id: int, strip: int = 0) -> str:
        """A token as a string that tells it apart."""
        if self._options.tokens_as_ids:
            return f"token_id:{token_id}"
        return self._tokenizer.token_label(token_id, strip)

    def _head(self, kind: str) -> dict[str, Any]:
        identity = self._identity
        return {
            "id": identity.response_id,
            "object": kind,
            "created": identity.created,
            "model": identity.model,
            "system_fingerprint": identity.fingerprint,
        }

    def _usage(self, usage: Usage) -> str:
        if self._options.continuous_usage:
            return f',"usage":{to_json(usage_object(usage))}'
        return ',"usage":null' if self._options.usage else ""

    def _whole_choice(self, choice: WholeChoice) -> dict[str, Any]:
        result: dict[str, Any] = {
            "index": choice.index,
            **self._whole_text(choice),
            "logprobs": None if choice.logprobs is None else self.logprobs(choice.logprobs),
            "finish_reason": choice.finish_reason,
        }
        if choice.stop_reason is not None:
            result["stop_reason"] = choice.stop_reason
        if self._options.token_ids:
            result["token_ids"] = choice.token_ids
        return result


def sse(chunks: Iterable[str]) -> bytes:
    """The chunks as server-sent events (WHATWG HTML, section 9.2)."""
    return "".join(f"data: {chunk}\n\n" for chunk in chunks).encode()


DONE = b"data: [DONE]\n\n"
