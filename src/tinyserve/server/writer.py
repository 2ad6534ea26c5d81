"""`Writer`: how one response is written, whole or as a stream of bytes.

The seam between what the engine said (deltas, the same for every protocol) and what a client
reads. One writer serves one response and may keep state; it is called on the event loop alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tinyserve.server.deltas import Delta, DeltaMaker, Usage
from tinyserve.server.errors import HTTPFailure


@dataclass(frozen=True)
class Identity:
    """What is the same in every chunk of one response."""

    response_id: str
    created: int
    model: str
    fingerprint: str


class Writer(Protocol):
    """Turns deltas into the bytes of a stream, or into one JSON object."""

    def opening(self, maker: DeltaMaker) -> bytes:
        """What the stream of `maker`'s deltas begins with; may be empty."""
        ...

    def frames(self, deltas: Sequence[Delta], usage: Usage) -> bytes:
        """The events of some deltas; `usage` is the count so far."""
        ...

    def closing(self, usage: Usage) -> bytes:
        """What ends a stream after every choice has finished."""
        ...

    def error(self, told: HTTPFailure) -> bytes:
        """What ends a stream that failed after it had begun; the body is in the path's dialect."""
        ...

    def whole(self, deltas: Sequence[Delta], maker: DeltaMaker) -> dict[str, Any]:
        """The answer that is not streamed, from all deltas of the request."""
        ...
