"""Checks of a request that need neither tokens nor the engine: limits, and fields that contradict.

Each raises RequestError naming the field.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tinyserve.engine.intake import Prompt, split_prompts
from tinyserve.errors import RequestError
from tinyserve.server.protocol import ChatRequest, CompletionRequest, GenerationRequest

MAX_PROMPTS = 1024  # in one request
MAX_CHOICES = 1024  # prompts times n
MAX_SALT_LENGTH = 1024
MAX_PRIORITY = 2**31


def check_limits(
    body: GenerationRequest, logprobs: Mapping[str, int | None], max_logprobs: int
) -> None:
    """What both routes share. `logprobs`: field -> how many likeliest tokens it asks for."""
    for name, value in logprobs.items():
        if value is not None and not 0 <= value <= max_logprobs:
            raise RequestError(
                f"{name} must be between 0 and {max_logprobs}, got {value}", param=name
            )
    if body.stream and body.prompt_logprobs is not None:
        raise RequestError("prompt_logprobs is not available in a stream", param="prompt_logprobs")
    if body.stream_options is not None and not body.stream:
        raise RequestError("stream_options needs stream: true", param="stream_options")
    keep = body.truncate_prompt_tokens
    if keep is not None and keep < 1:
        raise RequestError(
            f"truncate_prompt_tokens must be at least 1, got {keep}", param="truncate_prompt_tokens"
        )
    if body.cache_salt is not None and not 1 <= len(body.cache_salt) <= MAX_SALT_LENGTH:
        raise RequestError(
            f"cache_salt must have 1 to {MAX_SALT_LENGTH} characters", param="cache_salt"
        )
    if body.priority is not None and abs(body.priority) >= MAX_PRIORITY:
        raise RequestError("priority is out of range", param="priority")


def check_completion(body: CompletionRequest) -> None:
    if body.suffix:
        raise RequestError("suffix is not supported by this model", param="suffix")
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise RequestError("best_of is supported only where it equals n", param="best_of")


def check_chat(body: ChatRequest) -> None:
    if body.top_logprobs is not None and not body.logprobs:
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
