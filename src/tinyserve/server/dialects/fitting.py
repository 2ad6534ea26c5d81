"""Making a conversation fit the context, where its protocol asks for that.

The Responses API may ask for `truncation: auto`: then the oldest turns go, and the answer says how
many messages went. The Messages API makes clients name a `max_tokens`, which they set far beyond
any small model's context: it is lowered to the room that is left, and the answer says so when that
room is used up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tinyserve.errors import ContextLengthError
from tinyserve.server.protocol import ChatRequest
from tinyserve.server.service import Service
from tinyserve.server.truncation import truncated


@dataclass(frozen=True)
class Fitted:
    """A conversation that fits, with its token ids."""

    body: ChatRequest
    prompt_ids: list[int]
    num_dropped: int = 0  # messages that had to go


async def as_it_is(service: Service, body: ChatRequest) -> Fitted:
    """The conversation with nothing cut."""
    return Fitted(body, await service.prompt_of(body))


async def without_oldest(service: Service, body: ChatRequest) -> Fitted:
    """The longest end of the conversation that leaves room for the answer.

    Instructions stay, and what is kept begins with a user's message, so that no tool's result is
    left without its call. What does not fit even so is returned whole, to be refused like any
    other.
    """
    room = service.room - (body.max_tokens or 1)
    whole = await as_it_is(service, body)
    if len(whole.prompt_ids) <= room:
        return whole
    best = whole
    cuts = [i for i, message in enumerate(body.messages) if message.role == "user"]
    low, high = 0, len(cuts) - 1
    while low <= high:  # later cuts leave less: find the first that fits
        middle = (low + high) // 2
        tried = await _cut(service, body, cuts[middle])
        if len(tried.prompt_ids) <= room:
            best, high = tried, middle - 1
        else:
            low = middle + 1
    return best


async def with_lower_max_tokens(
    service: Service, body: ChatRequest, refuse: Callable[[int, int], ContextLengthError]
) -> Fitted:
    """The conversation, its `max_tokens` lowered to the room that the prompt leaves.

    Where it leaves none, raises `refuse(tokens of the prompt, tokens of the context)`. A prompt
    that leaves any is not cut for the sake of a `max_tokens` that is lowered anyway.
    """
    ids = await service.prompt_of(body)
    fits = len(ids) < service.room
    room = len(ids) if fits else service.room - (body.max_tokens or 1)
    ids = truncated(ids, body.truncate_prompt_tokens, room)
    left = service.room - len(ids)
    if left < 1:
        raise refuse(len(ids), service.room)
    if body.max_tokens is None or body.max_tokens <= left:
        return Fitted(body, ids)
    return Fitted(body.model_copy(update={"max_tokens": left}), ids)


async def _cut(service: Service, body: ChatRequest, start: int) -> Fitted:
    """The conversation from message `start` on, with the instructions before it."""
    before = [m for m in body.messages[:start] if m.role in ("system", "developer")]
    kept = [*before, *body.messages[start:]]
    shorter = body.model_copy(update={"messages": kept})
    ids = await service.prompt_of(shorter)
    return Fitted(shorter, ids, len(body.messages) - len(kept))
