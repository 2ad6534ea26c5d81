"""Checks of a request that need no engine: limits, and fields that contradict each other.

Each raises RequestError naming the field.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tinyserve.engine.intake import Prompt, split_prompts
from tinyserve.engine.request import EngineRequest
from tinyserve.errors import RequestError
from tinyserve.server.deltas import DeltaOptions
from tinyserve.server.protocol import ChatRequest, CompletionRequest, GenerationRequest
from tinyserve.server.truncation import check_truncation

MAX_BEST_OF = 20
MAX_PROMPTS = 1024  # per request
MAX_CHOICES = 1024  # prompts times n
MAX_SALT_LENGTH = 1024
MAX_PRIORITY = 2**31
MAX_CHARACTERS = {"stop": 1024, "bad_words": 256}  # per string
MAX_STOP_CHARACTERS = 16384  # in all: each choice builds tables of them
MAX_SCORES = 1 << 21  # logprobs kept for one answer, of prompts and of what is not streamed


def check_limits(
    body: GenerationRequest, logprobs: Mapping[str, int | None], max_logprobs: int
) -> None:
    """What completions and chats share. `logprobs`: field -> how many likeliest tokens it wants."""
    for name, value in logprobs.items():
        if value is not None and not 0 <= value <= max_logprobs:
            raise RequestError(
                f"{name} must be between 0 and {max_logprobs}, got {value}", param=name
            )
    _check_sizes(body)
    if body.stream and body.prompt_logprobs is not None:
        raise RequestError("prompt_logprobs is not available in a stream", param="prompt_logprobs")
    if body.stream_options is not None and not body.stream:
        raise RequestError("stream_options needs stream: true", param="stream_options")
    check_truncation(body.truncate_prompt_tokens)
    check_queueing(body.priority, body.cache_salt)


def check_queueing(priority: int | None, cache_salt: str | None) -> None:
    """The fields that concern the queue and the prefix cache; embeddings have them, too."""
    if cache_salt is not None and not 1 <= len(cache_salt) <= MAX_SALT_LENGTH:
        raise RequestError(
            f"cache_salt must have 1 to {MAX_SALT_LENGTH} characters", param="cache_salt"
        )
    if priority is not None and abs(priority) >= MAX_PRIORITY:
        raise RequestError("priority is out of range", param="priority")


def _check_sizes(body: GenerationRequest) -> None:
    """Stop strings and bad words cost time at every token, so none may be very long."""
    for name, limit in MAX_CHARACTERS.items():
        value = getattr(body, name) or ()
        for text in (value,) if isinstance(value, str) else value:
            if len(text) > limit:
                raise RequestError(
                    f"{name}: at most {limit} characters in a string, got {len(text)}", param=name
                )
    total = sum(map(len, body.stop)) if isinstance(body.stop, list) else 0
    if total > MAX_STOP_CHARACTERS:
        raise RequestError(
            f"stop: at most {MAX_STOP_CHARACTERS} characters in all, got {total}", param="stop"
        )


def check_completion(body: CompletionRequest) -> None:
    if body.suffix:
        raise RequestError(
            "suffix (text after the completion) is not supported by this model", param="suffix"
        )
    if body.best_of is None:
        return
    if not (body.n or 1) <= body.best_of <= MAX_BEST_OF:
        raise RequestError(
            f"best_of must be between n ({body.n or 1}) and {MAX_BEST_OF}, got {body.best_of}",
            param="best_of",
        )
    if body.stream and body.best_of > (body.n or 1):
        raise RequestError("best_of cannot choose among streams", param="best_of")


def check_scores(
    body: GenerationRequest, requests: Sequence[EngineRequest], options: DeltaOptions
) -> None:
    """Refuse what would keep too many logprobs in memory until the answer is complete. A prompt's
    are shown by each choice of a completion, and once by a chat.
    """
    for_prompts = for_outputs = 0
    for request in requests:
        params = request.params
        if params.prompt_logprobs is not None:
            num_shown = params.n if isinstance(body, CompletionRequest) else 1
            num_tokens = num_shown * len(request.prompt_token_ids)
            for_prompts += (1 + params.prompt_logprobs) * num_tokens
        if options.logprobs is not None and not body.stream:
            for_outputs += (1 + options.logprobs) * params.n * (params.max_tokens or 0)
    of_prompts = "logprobs" if options.score_prompt else "prompt_logprobs"
    for name, count in ((of_prompts, for_prompts), ("logprobs", for_prompts + for_outputs)):
        if count > MAX_SCORES:
            raise RequestError(
                f"{name}: the answer could hold {count} logprobs, and at most {MAX_SCORES} are kept"
                "; ask for fewer of them, fewer tokens or choices, or a stream",
                param=name,
            )


def check_chat(body: ChatRequest) -> None:
    if body.top_logprobs and not body.logprobs:  # none of nothing is no contradiction
        raise RequestError("top_logprobs needs logprobs: true", param="top_logprobs")


def checked_prompts(value: Any, n: int) -> list[Prompt]:
    if value is None:
        raise RequestError("prompt is required", param="prompt")
    prompts = split_prompts(value)
    if len(prompts) > MAX_PROMPTS or len(prompts) * n > MAX_CHOICES:
        raise RequestError(
            f"at most {MAX_PROMPTS} prompts and {MAX_CHOICES} choices (prompts times n) in one "
            f"request, got {len(prompts)} prompts with n={n}",
            param="prompt",
        )
    return prompts
