"""`Extensions`: the fields beyond their own APIs that all generating endpoints take alike.

vLLM's, SGLang's and llama-server's fields and a few of this server's own, declared once: the bodies
of `/v1/completions`, `/v1/chat/completions`, `/v1/responses` and `/v1/messages` inherit them, so
that an option is never known to one and ignored by another. What they mean is checked elsewhere.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, FailFast

MAX_LOGIT_BIAS = 1024
MAX_STOP_TOKEN_IDS = 1024
MAX_ALLOWED_TOKEN_IDS = 1 << 17
MAX_BAD_WORDS = 512


class _FailFast(FailFast):
    """The first wrong entry of a list is enough: an error for each of a million would hold up the
    loop."""

    __hash__ = object.__hash__  # unions of annotated types want it


FAST = _FailFast()


def at_most(limit: int) -> BeforeValidator:
    """Refuses a longer list or object before its entries are looked at."""

    def check(value: Any) -> Any:
        if isinstance(value, list | dict) and len(value) > limit:
            raise ValueError(f"at most {limit} entries, got {len(value)}")
        return value

    return BeforeValidator(check)


def string_or(kind: type, words: str) -> BeforeValidator:
    """Accepts a string, a `kind` (`words` in the error) or null. The error of pydantic's own union
    would name each member by a path of its own.
    """

    def check(value: Any) -> Any:
        if value is None or isinstance(value, str | kind):
            return value
        raise ValueError(f"must be a string or {words}")

    return BeforeValidator(check)


def _one_or_many_strings(value: Any) -> Any:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return value
    raise ValueError("must be a string or a list of strings")


Strings = Annotated[str | list[str] | None, BeforeValidator(_one_or_many_strings)]
Object = dict[str, Any]


class Extensions(BaseModel):
    """What a request may ask for on every endpoint that generates."""

    # Deferred: each body's validator is made for its first request, some milliseconds, rather than
    # all of them at every start.
    model_config = ConfigDict(defer_build=True, strict=True, extra="allow", allow_inf_nan=False)

    priority: int | None = None
    cache_salt: str | None = None
    speculative: bool | None = None  # false: no drafts for this request
    truncate_prompt_tokens: int | None = None

    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Annotated[dict[str, float] | None, at_most(MAX_LOGIT_BIAS)] = None
    seed: int | None = None
    stop: Strings = None
    stop_token_ids: Annotated[list[int] | None, at_most(MAX_STOP_TOKEN_IDS)] = None
    include_stop_str_in_output: bool | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    allowed_token_ids: Annotated[
        Annotated[list[int], FAST] | None, at_most(MAX_ALLOWED_TOKEN_IDS)
    ] = None
    bad_words: Annotated[list[str] | None, at_most(MAX_BAD_WORDS)] = None
    skip_special_tokens: bool | None = None

    # Constraints on the answer's text, under all their names; `server.structured` checks them.
    response_format: Object | None = None
    structured_outputs: Object | None = None
    guided_json: Any = None
    guided_regex: str | None = None
    guided_choice: Annotated[list[str], FAST] | None = None
    guided_grammar: str | None = None
    guided_whitespace_pattern: str | None = None
    guided_decoding_backend: str | None = None
    json_schema: Any = None
    regex: str | None = None
    ebnf: str | None = None
    grammar: str | None = None

    def extensions(self) -> dict[str, Any]:
        """The fields of this class that the client has set."""
        values = {name: getattr(self, name) for name in Extensions.model_fields}
        return {name: value for name, value in values.items() if value is not None}
