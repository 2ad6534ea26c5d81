"""The seam through which drafts come in: what a proposer sees, and what it gives back.

A draft is a run of tokens that may come next. The engine computes all of it in one step and keeps
what the model would have said anyway, so a wrong draft costs time and never changes an output.
Proposers are deterministic: the same calls give the same drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar


class Known(Protocol):
    """A sequence as most proposers see it. Its tokens only ever grow; do not keep or change them.

    `is_private`: its tokens must not show in what is proposed to others.
    """

    @property
    def seq_id(self) -> int: ...
    @property
    def token_ids(self) -> list[int]: ...
    @property
    def output_ids(self) -> list[int]: ...
    @property
    def is_private(self) -> bool: ...


SeqT_contra = TypeVar("SeqT_contra", contravariant=True)


@dataclass(slots=True)
class Draft:
    """Tokens that may come next. `probs`: for each, the distribution over the vocabulary that it
    was drawn from (an array of the back end's); empty where the proposer was certain.
    """

    token_ids: list[int] = field(default_factory=list)
    probs: list[Any] = field(default_factory=list)


NO_DRAFT = Draft()  # never changed


class Proposer(Protocol[SeqT_contra]):
    """Guesses what comes next, for all sequences of a step at once."""

    @property
    def max_drafts(self) -> int:
        """The most tokens it ever proposes for a sequence."""
        ...

    def propose(self, wanted: Sequence[tuple[SeqT_contra, int]]) -> list[Draft]:
        """A draft for each (sequence, most tokens, at least 1), in the same order; empty where it
        has no guess.
        """
        ...

    def forget(self, seq: SeqT_contra) -> None:
        """The sequence has ended. It may never have been proposed for. Idempotent."""
        ...
