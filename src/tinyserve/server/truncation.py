"""How much of a prompt stays, where the client asks for it to be cut (`truncate_prompt_tokens`)."""

from __future__ import annotations

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
