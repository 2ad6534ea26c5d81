"""The bodies of OpenAI's two older APIs, completions and chat, strictly typed.

Nothing is coerced ("false" is not a boolean, 1.5 is not a count, NaN is not a number). An explicit
null means the same as leaving the field out. Unknown fields are kept apart (`model_extra`).
`ChatRequest` is also what the bodies of the other chat APIs are translated to.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, WithJsonSchema

from tinyserve.server.extensions import FAST, Extensions, string_or

# Request fields that go straight into SamplingParams under their own name.
SAMPLING_FIELDS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "seed",
    "stop",
    "stop_token_ids",
    "include_stop_str_in_output",
    "min_tokens",
    "max_tokens",
    "ignore_eos",
    "prompt_logprobs",
    "n",
    "allowed_token_ids",
    "bad_words",
    "skip_special_tokens",
)


class StreamOptions(BaseModel):
    """`stream_options`; neither is on unless asked for."""

    model_config = ConfigDict(defer_build=True, strict=True, extra="allow")

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class GenerationRequest(Extensions):
    """What OpenAI's two older APIs share."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    prompt_logprobs: int | None = None
    n: int | None = None

    def sampling_fields(self) -> dict[str, Any]:
        """What the client has set of SamplingParams, by its names."""
        values = {name: getattr(self, name) for name in SAMPLING_FIELDS}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def continuous_usage(self) -> bool:
        return self.include_usage and bool(
            self.stream_options and self.stream_options.continuous_usage_stats
        )


_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
PROMPT_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"type": "string", "minLength": 1},
        {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1},
        _IDS,
        {"type": "array", "items": _IDS, "minItems": 1},
    ]
}


class CompletionRequest(GenerationRequest):
    """`POST /v1/completions`. `engine.intake`, which knows the vocabulary, checks `prompt`."""

    prompt: Annotated[Any, WithJsonSchema(PROMPT_SCHEMA)] = None
    echo: bool | None = None
    logprobs: int | None = None
    best_of: int | None = None
    suffix: str | None = None
    add_special_tokens: bool | None = None

    @property
    def shows_best(self) -> bool:
        """Whether more choices are made than shown."""
        return self.best_of is not None and self.best_of > (self.n or 1)

    @property
    def scores_prompt(self) -> bool:
        """Whether an echo shows the logprobs of the prompt's tokens, too."""
        return bool(self.echo) and self.logprobs is not None

    def sampling_fields(self) -> dict[str, Any]:
        """What best_of chooses by, and an echo shows, has to be computed whether or not it is shown
        under its own name.
        """
        fields = super().sampling_fields()
        if self.logprobs is not None:
            fields["logprobs"] = self.logprobs
        if self.shows_best:
            fields["n"] = self.best_of
            fields.setdefault("logprobs", 0)
        if self.scores_prompt:
            fields["prompt_logprobs"] = max(self.logprobs or 0, self.prompt_logprobs or 0)
        return fields


class ChatMessage(BaseModel):
    """One message of a conversation. `text.normalise` checks what its parts may be."""

    model_config = ConfigDict(defer_build=True, strict=True, extra="allow")

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Annotated[str | list[Any] | None, string_or(list, "a list of content parts")] = None
    name: str | None = None
    tool_calls: Annotated[list[dict[str, Any]], FAST] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None

    def for_template(self) -> dict[str, Any]:
        """The message as the chat template reads it, unknown keys included."""
        return {k: v for k, v in self.model_dump().items() if v is not None}


class ChatRequest(GenerationRequest):
    """`POST /v1/chat/completions`. `text.tool_use` checks what `tools` hold."""

    messages: Annotated[list[ChatMessage], FAST]
    tools: Annotated[list[dict[str, Any]], FAST] | None = None
    tool_choice: Annotated[str | dict[str, Any] | None, string_or(dict, "an object")] = None
    parallel_tool_calls: bool | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    max_completion_tokens: int | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: Annotated[list[dict[str, Any]], FAST] | None = None
    reasoning_effort: str | None = None
    echo: bool | None = None
    add_special_tokens: bool | None = None  # true: a BOS, where the template writes none

    @property
    def num_logprobs(self) -> int | None:
        """How many likeliest tokens are shown beside each; None: no logprobs at all."""
        return (self.top_logprobs or 0) if self.logprobs else None

    def sampling_fields(self) -> dict[str, Any]:
        fields = super().sampling_fields()
        if self.max_completion_tokens is not None:
            fields["max_tokens"] = self.max_completion_tokens
        if self.num_logprobs is not None:
            fields["logprobs"] = self.num_logprobs
        return fields
