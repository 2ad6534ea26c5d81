"""Prompt lookup: what followed the last few tokens the last time they stood together.

Each sequence has an index of its own, from every run of `min_n` tokens to where it was followed by
another token. It grows with the sequence: a token costs one insertion, once, however often drafts
are asked for. (Saxena 2023, "Prompt lookup decoding".)

    tokens      ... a b c  d e f g ...  a b c
                          |<- draft      |<- the longest run, of at most max_n, that was seen before

A draft that runs into the end of the text goes on with its own beginning: a text that repeats
itself is expected to do so again.
"""

from __future__ import annotations

from collections.abc import Sequence

from tinyserve.spec.proposer import Draft, Known

MAX_LOOKS = 32  # at places where the shortest run was followed; a common word has thousands


class NgramIndex:
    """Finds earlier places of a sequence at which a run of tokens that now ends it was followed.

    Only runs of `min_n` tokens are indexed, so that memory does not grow with `max_n`: the latest
    place where each was followed, and from each place the one before. How much longer the runs at
    two places agree is read off the tokens themselves.
    """

    def __init__(self, min_n: int, max_n: int) -> None:
        self._min_n, self._max_n = min_n, max_n
        self._latest: dict[tuple[int, ...], int] = {}  # run -> where its last follower stands
        self._before: list[int] = []  # place -> where the same run was followed before; 0: nowhere

    def extend(self, tokens: Sequence[int]) -> None:
        """Take in what is new; `tokens` is the whole sequence, which only grows."""
        latest, size = self._latest, self._min_n
        for end in range(len(self._before), len(tokens)):
            if end < size:
                self._before.append(0)
                continue
            run = tuple(tokens[end - size : end])
            self._before.append(latest.get(run, 0))
            latest[run] = end

    def follower(self, tokens: Sequence[int]) -> int | None:
        """The place of the token that came after the longest run at the end of `tokens` when that
        run stood in the text before. Runs count up to `max_n` tokens; of several places the latest
        is taken, among the last `MAX_LOOKS`. None where there is no such place.
        """
        length = len(tokens)
        place = self._latest.get(tuple(tokens[max(0, length - self._min_n) :]), 0)
        found, longest = None, 0
        for _ in range(MAX_LOOKS):
            if not place:
                break
            size = self._min_n
            most = min(self._max_n, place)
            while size < most and tokens[place - size - 1] == tokens[length - size - 1]:
                size += 1
            if size > longest:
                found, longest = place, size
            if size == self._max_n:
                break
            place = self._before[place]
        return found


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
