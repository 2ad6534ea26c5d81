"""Proposers that need no text to learn from: one knows the future, one guesses blindly.

They bound what speculation can bring and what it can cost; tests and benchmarks use them.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

from tinyserve.spec.proposer import Draft, Known


class OracleProposer:
    """Proposes how finished sequences went on. Each token is right with probability `accuracy`;
    wrong ones are random. What is drawn depends on the seed, the sequence's id and the position.
    """

    def __init__(
        self,
        futures: Iterable[Sequence[int]],
        vocab_size: int,
        max_drafts: int = 4,
        *,
        accuracy: float = 1.0,
        seed: int = 0,
    ) -> None:
        self.max_drafts = max_drafts
        self._futures = [list(tokens) for tokens in futures]
        self._vocab_size = vocab_size
        self._accuracy = accuracy
        self._seed = seed

    def propose(self, wanted: Sequence[tuple[Known, int]]) -> list[Draft]:
        return [Draft(self._next(seq, count)) for seq, count in wanted]

    def forget(self, seq: Known) -> None:
        pass

    def _next(self, seq: Known, count: int) -> list[int]:
        known = seq.token_ids
        length = len(known)
        dice = random.Random(repr((self._seed, seq.seq_id, length)))
        future = next((f for f in self._futures if f[:length] == known), [])
        truth = future[length : length + count]
        truth += [-1] * (count - len(truth))
        return [
            token
            if token >= 0 and dice.random() < self._accuracy
            else dice.randrange(self._vocab_size)
            for token in truth
        ]


class RandomProposer:
    """Proposes random tokens, any number of them: nearly always wrong."""

    def __init__(self, vocab_size: int, max_drafts: int = 4, *, seed: int = 0) -> None:
        self.max_drafts = max_drafts
        self._vocab_size = vocab_size
        self._seed = seed

    def propose(self, wanted: Sequence[tuple[Known, int]]) -> list[Draft]:
        return [Draft(self._any(seq, count)) for seq, count in wanted]

    def forget(self, seq: Known) -> None:
        pass

    def _any(self, seq: Known, count: int) -> list[int]:
        dice = random.Random(repr((self._seed, seq.seq_id, len(seq.token_ids))))
        return [dice.randrange(self._vocab_size) for _ in range(dice.randint(0, count))]
