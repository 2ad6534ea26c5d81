"""How much of a prompt stays, and how long its answer may be, where the client leaves it open."""

from __future__ import annotations

from dataclasses import replace

from tinyserve.engine.sampling import SamplingParams
from tinyserve.server.protocol import GenerationRequest


def truncated(
    ids: list[int], body: GenerationRequest, params: SamplingParams, room: int
) -> list[int]:
    """The prompt, or its end where the client has asked for that (-1: what leaves room, of `room`
    tokens, for the answer).
    """
    keep = body.truncate_prompt_tokens
    if keep == -1:
        wanted = params.max_tokens if params.max_tokens is not None else params.min_tokens or 1
        keep = max(1, room - wanted)
    return ids if keep is None else ids[-keep:]


def with_default_length(
    params: SamplingParams, body: GenerationRequest, left: int
) -> SamplingParams:
    """`params`, whose default `max_tokens` shrinks to what is `left` of the room; one that the
    client has named is kept, and refused later if it does not fit.
    """
    default = params.max_tokens
    room = max(left, params.min_tokens, 1)
    if default is None or default <= room or "max_tokens" in body.sampling_fields():
        return params
    return replace(params, max_tokens=room)
