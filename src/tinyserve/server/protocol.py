"""What a client may send: the request bodies, strictly typed.

Nothing is coerced ("false" is not a boolean, 1.5 is not a count, NaN is not a number). Unknown
fields are kept apart so that they can be logged; of those, what this version does not serve is
refused by name, never ignored. An explicit null means the same as leaving the field out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    ValidationError,
    WithJsonSchema,
)

from tinyserve.errors import RequestError
from tinyserve.server.extensions import FAST, Extensions

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


def _content(value: Any) -> Any:
    """A union in words a client understands; pydantic's own would name each member."""
    if value is None or isinstance(value, str | list):
        return value
    raise ValueError("must be a string or a list of content parts")


class ChatMessage(BaseModel):
    """One message of a conversation. `text.normalise` checks what its parts may be."""

    model_config = ConfigDict(defer_build=True, strict=True, extra="allow")

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Annotated[str | list[Any] | None, BeforeValidator(_content)] = None
    name: str | None = None
    tool_calls: Annotated[list[dict[str, Any]], FAST] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None

    def for_template(self) -> dict[str, Any]:
        """The message as the chat template reads it, unknown keys included."""
        return {k: v for k, v in self.model_dump().items() if v is not None}


def _tool_choice(value: Any) -> Any:
    if value is None or isinstance(value, str | dict):
        return value
    raise ValueError("must be a string or an object")


class ChatRequest(GenerationRequest):
    """`POST /v1/chat/completions`. `text.tool_use` checks what `tools` hold."""

    messages: Annotated[list[ChatMessage], FAST]
    tools: Annotated[list[dict[str, Any]], FAST] | None = None
    tool_choice: Annotated[str | dict[str, Any] | None, BeforeValidator(_tool_choice)] = None
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


Body = TypeVar("Body", bound=GenerationRequest)
Model = TypeVar("Model", bound=BaseModel)

_UNION_TAGS = {"str", "int", "float", "bool", "dict", "list"}


def parse_body(kind: type[Body], body: bytes) -> Body:
    """A completion or chat request. Raises as `read_model`, and for what is not served here."""
    request = read_model(kind, body)
    _refuse_unserved(request.model_extra or {})
    return request


def read_model(kind: type[Model], body: bytes) -> Model:
    """A body of any kind, typed; RequestError names the first field at fault."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise _request_error(error, body) from None


def as_chat_request(fields: Mapping[str, Any]) -> ChatRequest:
    """The ChatRequest that another protocol's body stands for; checked as `parse_body` does."""
    try:
        request = ChatRequest.model_validate(dict(fields))
    except ValidationError as error:
        raise _request_error(error) from None
    _refuse_unserved(request.model_extra or {})
    return request


_BYTE_ORDER_MARKS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")


def _request_error(error: ValidationError, body: bytes = b"") -> RequestError:
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    # Of the members of a union, the one that went deepest is what the client meant.
    same_field = [e for e in errors if e["loc"][:1] == errors[0]["loc"][:1]]
    first = max(same_field, key=lambda e: len(e["loc"]))
    path = [p for p in first["loc"] if not _is_union_tag(p)]
    param = _spell(path)
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "json_invalid":
        reason = message.removeprefix("Invalid JSON: ")
        if not body.strip():
            reason = "it is empty"
        elif body.startswith(_BYTE_ORDER_MARKS):
            reason = "it begins with a byte order mark; send UTF-8 without one"
        return RequestError(f"The request body is not valid JSON: {reason}", code="invalid_json")
    if not path:
        return RequestError("The request body must be a JSON object")
    return RequestError(f"{param}: {message}", param=param, code="invalid_type")


def _spell(path: Sequence[int | str]) -> str:
    """messages[0].content"""
    return "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in path).removeprefix(".")


def _is_union_tag(part: int | str) -> bool:
    return isinstance(part, str) and (part in _UNION_TAGS or "[" in part)


# Fields of the OpenAI API and of other servers that change the answer and are not served here, each
# with the value that turns it off. A request with any other value is refused.
_UNSERVED: dict[str, Any] = {
    "use_beam_search": False, "num_beams": 1, "best_of": 1, "structural_tag": None,
    "typical_p": 1, "tfs_z": 1, "top_a": 0, "mirostat": 0, "dynatemp_range": 0,
    "dry_multiplier": 0, "xtc_probability": 0, "stop_regex": None, "prompt_embeds": None,
    "logits_processors": None, "custom_logit_processor": None, "lora_path": None,
    "lora": None, "lora_request": None, "adapters": None, "adapter_id": None,
    "top_n_sigma": -1, "t_max_predict_ms": -1, "documents": None, "thinking_token_budget": None,
    "no_repeat_ngram_size": 0, "smoothing_factor": 0, "epsilon_cutoff": 0, "eta_cutoff": 0,
    "penalty_alpha": 0, "mirostat_mode": 0, "guidance_scale": 1, "cfg_scale": 1,
    "negative_prompt": None,
}  # fmt: skip

# What other APIs and servers call a field of these. A limit, a constraint or an instruction that is
# ignored is worse than none.
_CALLED_OTHERWISE = {
    "functions": "tools", "function_call": "tool_choice", "stop_sequences": "stop",
    "max_completion_tokens": "max_tokens", "max_output_tokens": "max_tokens",
    "max_new_tokens": "max_tokens", "n_predict": "max_tokens", "num_predict": "max_tokens",
    "max_tokens_to_sample": "max_tokens", "min_new_tokens": "min_tokens",
    "repeat_penalty": "repetition_penalty", "num_return_sequences": "n", "n_probs": "logprobs",
    "stop_strings": "stop", "stopping_strings": "stop", "ban_eos_token": "ignore_eos",
    "text": "response_format", "output_format": "response_format", "format": "response_format",
    "response_schema": "response_format", "regex_pattern": "regex", "grammar_string": "grammar",
    "system": "a system message", "instructions": "a system message",
}  # fmt: skip
_OFF: dict[str, Any] = {"repeat_penalty": 1, "function_call": "none", "num_return_sequences": 1}


def _refuse_unserved(extra: Mapping[str, Any]) -> None:
    """Raise RequestError where a field asks for what this version cannot do."""
    for name, nothing in _UNSERVED.items():
        if extra.get(name) and extra[name] != nothing:
            raise RequestError(f"{name} is not supported here", param=name)
    for name, ours in _CALLED_OTHERWISE.items():
        if extra.get(name) and extra[name] != _OFF.get(name):
            raise RequestError(f"{name} is not known here: send {ours} instead", param=name)
    for name, value in extra.items():
        if name.startswith("guided_") and value is not None:  # a constraint, or an option of one
            raise RequestError(f"{name} is not known to this server", param=name)
    modalities = extra.get("modalities")
    if modalities is not None and modalities != ["text"]:
        raise RequestError("modalities: only ['text'] is supported", param="modalities")
    for name in ("audio", "web_search_options"):
        if extra.get(name):
            raise RequestError(f"{name} is not supported by this server", param=name)


KNOWN_AND_HARMLESS = frozenset(
    {
        "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
        "prompt_cache_retention", "verbosity", "prediction", "modalities",
        "functions", "function_call",
    }
)  # fmt: skip
