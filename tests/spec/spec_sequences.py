"""Sequences as proposers see them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tinyserve.spec.proposer import Draft, Proposer


@dataclass
class Text:
    """A sequence made of nothing but tokens; all of them count as output."""

    token_ids: list[int] = field(default_factory=list)
    seq_id: int = 0
    is_private: bool = False

    @property
    def output_ids(self) -> list[int]:
        return self.token_ids


def drafts(proposer: Proposer[Text], text: Text, count: int = 8) -> list[int]:
    """What is proposed after the text."""
    (draft,) = proposer.propose([(text, count)])
    assert isinstance(draft, Draft)
    assert len(draft.token_ids) <= count
    return draft.token_ids


def text_of(tokens: Iterable[int], seq_id: int = 0, *, is_private: bool = False) -> Text:
    return Text(list(tokens), seq_id, is_private)
