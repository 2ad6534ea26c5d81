"""Prompt lookup: what followed the last few tokens the last time they stood together.

Each sequence has an index of its own, from every run of `min_n` .. `max_n` tokens to where it was
last followed by another token. It grows with the sequence: a token costs max_n - min_n + 1
insertions, once, however often drafts are asked for. (Saxena 2023, "Prompt lookup decoding".)

    tokens      ... a b c  d e f g ...  a b c
                          |<- draft      |<- the longest run, of at most max_n, that was seen before

A draft that runs into the end of the text goes on with its own beginning: a text that repeats
itself is expected to do so again.
"""

from __future__ import annotations

from collections.abc import Sequence

from tinyserve.spec.proposer import Draft, Known


class NgramIndex:
    """Where the runs of one sequence were followed by something, and by what."""

    def __init__(self, min_n: int, max_n: int) -> None:
        self._sizes = range(min_n, max_n + 1)
        self._follower: dict[tuple[int, ...], int] = {}  # run -> where its follower stands
        self._num_seen = 0

    def extend(self, tokens: Sequence[int]) -> None:
        """Take in what is new; `tokens` is the whole sequence, which only grows."""
        follower = self._follower
        for end in range(max(self._num_seen, self._sizes[0]), len(tokens)):
            for size in self._sizes:
                if size <= end:
                    follower[tuple(tokens[end - size : end])] = end
        self._num_seen = len(tokens)

    def follower(self, tokens: Sequence[int]) -> int | None:
        """Where that stands which followed the longest known run at the end of `tokens`."""
        length = len(tokens)
        for size in reversed(self._sizes):
            if size <= length:
                found = self._follower.get(tuple(tokens[length - size :]))
                if found is not None:
                    return found
        return None


class NgramProposer:
    """Drafts from the sequence's own prompt and output."""

    def __init__(self, max_drafts: int, *, min_n: int = 2, max_n: int = 4) -> None:
        self.max_drafts = max_drafts
        self._min_n, self._max_n = min_n, max_n
        self._indexes: dict[int, NgramIndex] = {}

    def propose(self, wanted: Sequence[tuple[Known, int]]) -> list[Draft]:
        return [Draft(self._next(seq, count)) for seq, count in wanted]

    def forget(self, seq: Known) -> None:
        self._indexes.pop(seq.seq_id, None)

    def _next(self, seq: Known, count: int) -> list[int]:
        tokens = seq.token_ids
        index = self._indexes.get(seq.seq_id)
        if index is None:
            index = self._indexes[seq.seq_id] = NgramIndex(self._min_n, self._max_n)
        index.extend(tokens)
        start = index.follower(tokens)
        return [] if start is None else continued(tokens, start, count)


def continued(tokens: Sequence[int], start: int, count: int) -> list[int]:
    """`count` tokens from `start` on, as if the text went round from its end to `start`."""
    period = tokens[start : start + count]
    return [period[i % len(period)] for i in range(count)]
