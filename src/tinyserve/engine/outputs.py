"""What the offline API returns: plain records, one per prompt, one per choice, one per step of a
stream.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tinyserve.engine.request import RequestOutput
from tinyserve.engine.sampling import SampledToken
from tinyserve.text.messages import Message, Part


@dataclass
class Choice:
    """One of the n texts of a request. `logprobs`: one entry per token, if they were asked for.

    `message` is the text of a conversation's answer taken apart: text, thinking, tool calls.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[SampledToken] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    message: Message | None = None

    @property
    def cumulative_logprob(self) -> float | None:
        """The logprob of the whole text: the sum over its tokens."""
        return (
            None if self.logprobs is None else sum((t.logprob or 0.0 for t in self.logprobs), 0.0)
        )


@dataclass
class Output:
    """What came of one prompt. The properties are those of the first choice."""

    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[Choice]
    num_cached_tokens: int = 0
    prompt_logprobs: list[SampledToken | None] | None = None
    embedding: NDArray[np.float32] | None = None

    @property
    def text(self) -> str:
        return self.outputs[0].text

    @property
    def message(self) -> Message | None:
        return self.outputs[0].message

    @property
    def token_ids(self) -> list[int]:
        return self.outputs[0].token_ids

    @property
    def finish_reason(self) -> str | None:
        return self.outputs[0].finish_reason

    @property
    def logprobs(self) -> list[SampledToken] | None:
        return self.outputs[0].logprobs

    def add(self, output: RequestOutput) -> None:
        """Take in what one step of the engine added."""
        choice = self.outputs[output.index]
        choice.text += output.new_text
        choice.token_ids += output.new_token_ids
        if output.logprobs is not None:
            choice.logprobs = (choice.logprobs or []) + output.logprobs
        if output.finish_reason is not None:
            choice.finish_reason = output.finish_reason
            choice.stop_reason = output.stop_reason
        if output.prompt_logprobs is not None:
            self.prompt_logprobs = output.prompt_logprobs
        if output.embedding is not None:
            self.embedding = output.embedding
        self.num_cached_tokens = output.num_cached_tokens

    @property
    def is_complete(self) -> bool:
        """Whether every choice has ended."""
        return all(choice.finish_reason is not None for choice in self.outputs)


@dataclass(frozen=True)
class StreamDelta:
    """What one step added to one choice of a stream.

    `parts` is what became certain of a conversation's message: text, thinking, calls. All parts of
    a choice make its message (`Message.of`), the same that a whole answer has.
    """

    index: int
    text: str
    token_ids: list[int]
    logprobs: list[SampledToken] | None
    finish_reason: str | None
    parts: list[Part] = field(default_factory=list)

    @classmethod
    def of(cls, output: RequestOutput, parts: list[Part]) -> StreamDelta:
        return cls(
            output.index,
            output.new_text,
            output.new_token_ids,
            output.logprobs,
            output.finish_reason,
            parts,
        )
