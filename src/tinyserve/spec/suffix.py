"""Suffix decoding: drafts from where the longest end of the text has stood before, in the sequence
itself or in what earlier requests were answered. (Oliaro et al. 2024, arXiv 2411.04975.)

A draft follows the automaton from a match, taking at each step the continuation that was seen most
often. It is at most REACH times as long as the match, and ends where its estimated chance to be
accepted so far falls under MIN_CHANCE; a continuation that was seen n times of m counts as n of m +
DOUBT. So what was seen once gives a few drafts, and what came again and again gives many. Besides
the longest match the next shorter ends of it are tried, which were seen more often. Of these, and
of the two sources, the draft is taken that promises the most accepted tokens, promises being
discounted by how the source's latest drafts for this sequence would have done.

Past outputs are kept in two generations of at most half of `max_past` tokens: when the young one is
full, it becomes the old one, and the old one is dropped. Outputs of private sequences are not kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tinyserve.spec.automaton import ROOT, SuffixAutomaton
from tinyserve.spec.proposer import Draft, Known

MIN_MATCH = 2  # tokens; what follows a single token says too little
MIN_CHANCE = 0.2
DOUBT = 0.5
MAX_ENDS = 4  # matches that are tried, the longest first
REACH = 2  # longest draft, in lengths of the match
WINDOW = 32  # tokens; how far back past outputs are matched
MIN_OUTPUT = 8  # tokens; shorter outputs are not worth keeping
KEPT_TRUST = 0.7  # decay of older evidence per verified draft
MAX_PAST = 1 << 15  # tokens; about 14 MB
BREAK = -1  # a token that no text has, between two past outputs


class PastOutputs:
    """The latest outputs of earlier sequences, up to `max_tokens` tokens."""

    def __init__(self, max_tokens: int) -> None:
        self._half = max_tokens // 2
        self._young, self._old = SuffixAutomaton(), SuffixAutomaton()

    @property
    def nbytes(self) -> int:
        return self._young.nbytes + self._old.nbytes

    @property
    def num_tokens(self) -> int:
        return self._young.num_tokens + self._old.num_tokens

    def add(self, tokens: Sequence[int]) -> None:
        """An output is complete; of a very long one the end is kept."""
        tokens = tokens[-(self._half - 1) :] if self._half > 1 else ()
        if len(tokens) < MIN_OUTPUT:
            return
        if self._young.num_tokens + len(tokens) >= self._half:
            self._young, self._old = SuffixAutomaton(), self._young
        for token in tokens:
            self._young.append(token)
        self._young.append(BREAK)

    def best(self, tokens: Sequence[int], count: int) -> tuple[list[int], float]:
        """A draft after `tokens`, and how many of it are expected to be accepted."""
        found: tuple[list[int], float] = ([], 0.0)
        for automaton in (self._young, self._old):
            state, length = ROOT, 0
            if automaton.num_tokens:
                for token in tokens[-WINDOW:]:
                    state, length = automaton.step(state, length, token)
            draft = follow(automaton, state, length, count)
            if draft[1] > found[1]:
                found = draft
        return found


@dataclass(slots=True)
class _Source:
    """How well one source has done for a sequence lately, whether or not its draft was taken."""

    trust: float = 1.0
    draft: list[int] = field(default_factory=list)
    begin: int = 0  # where the draft stood

    def judge(self, tokens: Sequence[int]) -> None:
        """Compare the latest draft with what has come."""
        came = min(len(self.draft), len(tokens) - self.begin)
        if came <= 0:
            return
        right = 0
        while right < came and self.draft[right] == tokens[self.begin + right]:
            right += 1
        judged = min(right + 1, came)  # what comes after a wrong token says nothing
        self.trust += (1 - KEPT_TRUST) * (right / judged - self.trust)


@dataclass(slots=True)
class _Reader:
    """What the proposer knows of one sequence."""

    automaton: SuffixAutomaton = field(default_factory=SuffixAutomaton)
    own: _Source = field(default_factory=_Source)
    past: _Source = field(default_factory=_Source)


class SuffixProposer:
    """Drafts from the sequence's own text and from past outputs. `max_past` 0: its own only."""

    def __init__(self, max_drafts: int, *, max_past: int = MAX_PAST) -> None:
        self.max_drafts = max_drafts
        self._past = PastOutputs(max_past)
        self._readers: dict[int, _Reader] = {}

    def propose(self, wanted: Sequence[tuple[Known, int]]) -> list[Draft]:
        return [Draft(self._next(seq, count)) for seq, count in wanted]

    def forget(self, seq: Known) -> None:
        known = self._readers.pop(seq.seq_id, None)
        if known is not None and not seq.is_private:
            self._past.add(seq.output_ids)

    def memory_report(self) -> dict[str, Any]:
        """About what the automata occupy, in bytes."""
        own = sum(reader.automaton.nbytes for reader in self._readers.values())
        num_bytes = self._past.nbytes + own
        return {"drafts": {"reserved": num_bytes, "touched": num_bytes}}

    def _next(self, seq: Known, count: int) -> list[int]:
        tokens = seq.token_ids
        reader = self._readers.get(seq.seq_id)
        if reader is None:
            reader = self._readers[seq.seq_id] = _Reader()
        own, past, automaton = reader.own, reader.past, reader.automaton
        for position in range(automaton.num_tokens, len(tokens)):
            automaton.append(tokens[position])
        own.judge(tokens)
        past.judge(tokens)
        state = automaton.suffix()
        own.draft, expected = follow(automaton, state, automaton.length[state], count)
        past.draft, expected_of_past = self._past.best(tokens, count)
        own.begin = past.begin = len(tokens)
        best = past if expected_of_past * past.trust > expected * own.trust else own
        return list(best.draft)


def follow(
    automaton: SuffixAutomaton, state: int, match: int, count: int
) -> tuple[list[int], float]:
    """The most promising draft of at most `count` tokens after a match of `match` tokens at `state`
    or a shorter end of it, and how many of its tokens are expected to be accepted.
    """
    best: tuple[list[int], float] = ([], 0.0)
    for _ in range(MAX_ENDS):
        if match < MIN_MATCH:
            break
        found = _continuation(automaton, state, min(count, REACH * match))
        if found[1] > best[1]:
            best = found
        state = automaton.link[state]
        match = automaton.length[state]
    return best


def _continuation(automaton: SuffixAutomaton, state: int, most: int) -> tuple[list[int], float]:
    """The commonest continuation of a state, and its expected number of accepted tokens."""
    draft: list[int] = []
    chance, expected = 1.0, 0.0
    counts = automaton.count
    while len(draft) < most:
        while not automaton.next[state] and state != ROOT:  # the end of the text: as it did before
            state = automaton.link[state]
        if state == ROOT:
            break
        follow_ups = automaton.next[state]
        token = max(follow_ups, key=lambda t: (counts[follow_ups[t]], t))
        if token == BREAK:
            break
        total = sum(counts[target] for target in follow_ups.values())
        state = follow_ups[token]
        chance *= counts[state] / (total + DOUBT)
        if chance < MIN_CHANCE:
            break
        draft.append(token)
        expected += chance
    return draft, expected
