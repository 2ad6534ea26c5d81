"""`/v1/embeddings` without HTTP: the body, the requests for the engine, the answer.

OpenAI's shape with vLLM's extras. Each input is one engine request; together they are one HTTP
request in the fair queue. The engine pools; here only lengths and number formats are made.
"""

from __future__ import annotations

import asyncio
import base64
import secrets
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, WithJsonSchema

from tinyserve.engine.intake import Intake, Prompt, split_prompts
from tinyserve.engine.prompt_rows import unit
from tinyserve.errors import RequestError
from tinyserve.kernels.formats import F32
from tinyserve.server.deltas import Delta, DeltaMaker, DeltaOptions, GroupPrompt, Usage
from tinyserve.server.json_text import in_pieces
from tinyserve.server.limits import check_queueing
from tinyserve.server.protocol import PROMPT_SCHEMA
from tinyserve.server.service import Service
from tinyserve.server.session import Group
from tinyserve.server.truncation import check_truncation, truncated

MAX_INPUTS = 2048  # in one request, as at OpenAI
INLINE_NUMBERS = 65536  # a longer answer is written off the event loop


class EmbeddingRequest(BaseModel):
    """`POST /v1/embeddings`. `engine.intake`, which knows the vocabulary, checks `input`.

    `dimensions` may only be what the model has: cutting vectors short is right for models trained
    for it alone.
    """

    model_config = ConfigDict(defer_build=True, strict=True, extra="allow")

    input: Annotated[Any, WithJsonSchema(PROMPT_SCHEMA)] = None
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    user: str | None = None
    normalize: bool | None = None
    pooling: Literal["last", "mean"] | None = None
    truncate_prompt_tokens: int | None = None
    add_special_tokens: bool | None = None
    priority: int | None = None
    cache_salt: str | None = None


async def embedding_requests(service: Service, body: EmbeddingRequest, client: str) -> Group:
    """Check and tokenize a request. Raises RequestError naming the field."""
    intake = service.engine.intake
    _check(body, intake)
    inputs = _checked_inputs(body.input)
    size = sum(len(text) for text in inputs)
    encoded = await service.off_loop_if(size, _encode, intake, inputs, body)
    group = secrets.token_hex(12)
    grouped = []
    for i, ids in enumerate(encoded):
        request = intake.embedding_request(
            f"{group}-{i}",
            ids,
            pooling=body.pooling,
            priority=body.priority or 0,
            cache_salt=body.cache_salt,
            client=client,
        )
        grouped.append(GroupPrompt(request, i))
    return Group(group, DeltaMaker(intake.tokenizer, grouped, DeltaOptions()))


async def embedding_answer(
    body: EmbeddingRequest, model: str, deltas: Sequence[Delta], usage: Usage
) -> str:
    """The response's JSON."""
    vectors = [d.embedding for d in sorted(deltas, key=_index) if d.embedding is not None]
    if sum(len(vector) for vector in vectors) <= INLINE_NUMBERS:
        return _answer(body, model, vectors, usage)
    return await asyncio.to_thread(_answer, body, model, vectors, usage)


def _check(body: EmbeddingRequest, intake: Intake) -> None:
    """Everything but the input."""
    size = intake.embedding_size
    if body.dimensions is not None and body.dimensions != size:
        raise RequestError(
            f"this model was not trained for shorter embeddings: dimensions may only be {size}, "
            f"got {body.dimensions}",
            param="dimensions",
        )
    check_truncation(body.truncate_prompt_tokens)
    check_queueing(body.priority, body.cache_salt)
    extra = body.model_extra or {}
    if extra.get("truncation_side") not in (None, "left"):
        raise RequestError("truncation_side may only be 'left' here", param="truncation_side")
    if extra.get("messages") is not None:
        raise RequestError("messages cannot be embedded here; use input", param="messages")


def _checked_inputs(value: Any) -> list[Prompt]:
    if value is None:
        raise RequestError("input is required", param="input")
    inputs = split_prompts(value, param="input")
    if len(inputs) > MAX_INPUTS:
        raise RequestError(
            f"at most {MAX_INPUTS} inputs in one request, got {len(inputs)}", param="input"
        )
    return inputs


def _encode(intake: Intake, inputs: Sequence[Prompt], body: EmbeddingRequest) -> list[list[int]]:
    special = body.add_special_tokens is not False
    keep, room = body.truncate_prompt_tokens, intake.limits.longest_prompt
    encoded = []
    for i, text in enumerate(inputs):
        param = "input" if len(inputs) == 1 else f"input[{i}]"
        if not text:
            raise RequestError(f"{param} is empty", param="input")
        ids = intake.encode(text, add_special_tokens=special, is_whole=True, param=param)
        encoded.append(truncated(ids, keep, room))
    return encoded


def _answer(body: EmbeddingRequest, model: str, vectors: Sequence[F32], usage: Usage) -> str:
    data = []
    for index, vector in enumerate(vectors):
        row = vector if body.normalize is False else unit(vector)
        written = _base64(row) if body.encoding_format == "base64" else row.tolist()
        data.append({"object": "embedding", "index": index, "embedding": written})
    count = usage.prompt_tokens
    counts = {"prompt_tokens": count, "total_tokens": count}
    return in_pieces({"object": "list", "data": data, "model": model, "usage": counts})


def _base64(vector: F32) -> str:
    """f32, little-endian, as OpenAI's clients read it."""
    return base64.b64encode(np.asarray(vector, "<f4").tobytes()).decode()


def _index(delta: Delta) -> int:
    return delta.index
