"""Prompt lookup, suffix automata, oracle and random: what they propose, and at what price."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spec_sequences import drafts, text_of

from tinyserve.spec.automaton import ROOT, SuffixAutomaton
from tinyserve.spec.drafter import Drafter, Outcome
from tinyserve.spec.ngram import NgramIndex, NgramProposer
from tinyserve.spec.oracle import OracleProposer, RandomProposer
from tinyserve.spec.suffix import PastOutputs, SuffixProposer

short_texts = st.lists(st.integers(0, 3), max_size=40)


def last_follower(tokens: Sequence[int], min_n: int, max_n: int) -> int | None:
    """Where the follower stands of the longest run at the end, by looking at all of the text."""
    for size in range(max_n, min_n - 1, -1):
        run = tokens[len(tokens) - size :] if size <= len(tokens) else None
        for end in range(len(tokens) - 1, size - 1, -1):
            if run is not None and tokens[end - size : end] == run:
                return end
    return None


@given(short_texts, st.integers(1, 3), st.integers(0, 3), st.lists(st.integers(1, 5)))
def test_the_index_finds_what_a_scan_would_find(
    tokens: list[int], min_n: int, more: int, pieces: list[int]
) -> None:
    """Whatever the pieces in which the text grew."""
    index = NgramIndex(min_n, min_n + more)
    seen = 0
    for piece in pieces:
        seen = min(seen + piece, len(tokens))
        index.extend(tokens[:seen])
    index.extend(tokens)
    assert index.follower(tokens) == last_follower(tokens, min_n, min_n + more)


def test_the_index_grows_with_the_text_not_with_the_longest_run() -> None:
    dice = random.Random(1)
    text = [dice.randrange(500) for _ in range(2000)]

    def size(max_n: int) -> int:
        index = NgramIndex(2, max_n)
        index.extend(text)
        return sum(map(len, index._latest)) + len(index._latest) + len(index._before)

    assert size(64) == size(2) < 4 * len(text)


def test_the_index_looks_at_a_bounded_number_of_places() -> None:
    """Where a run is everywhere, and always after something else."""
    text = CountedTokens(token for i in range(1000) for token in (10 + i, 1, 2))
    index = NgramIndex(2, 64)
    index.extend(text)
    text.num_read = 0
    assert index.follower(text) == len(text) - 3, "none is longer than the latest"
    assert text.num_read < 200


def test_ngram_proposes_what_followed_last_time() -> None:
    proposer = NgramProposer(8, min_n=2, max_n=3)
    assert drafts(proposer, text_of([1, 2, 3, 4, 5, 1, 2]), 3) == [3, 4, 5]
    assert drafts(proposer, text_of([1, 2, 3, 1, 2, 4, 1, 2], 1), 1) == [4], "the latest counts"
    assert drafts(proposer, text_of([9, 1, 2, 7, 1, 2, 5, 9, 1, 2], 2), 1) == [7], "the longest"
    assert drafts(proposer, text_of([1, 2, 3], 3)) == []
    assert drafts(proposer, text_of([1], 4)) == []


def test_a_loop_goes_on() -> None:
    """A draft that reaches the end of the text goes round, also longer than the loop."""
    for proposer in (NgramProposer(8), SuffixProposer(8)):
        text = text_of([1, 2, 3] * 9)
        assert drafts(proposer, text) == [1, 2, 3, 1, 2, 3, 1, 2]


class CountedTokens(list[int]):
    """A list that counts how many of its items were read."""

    num_read = 0

    def __getitem__(self, index: Any) -> Any:
        result = super().__getitem__(index)
        self.num_read += len(result) if isinstance(index, slice) else 1
        return result


@pytest.mark.parametrize("proposer", [NgramProposer(4), SuffixProposer(4)], ids=["ngram", "suffix"])
def test_growing_costs_the_new_tokens_only(proposer: Any) -> None:
    """No rescan: what is read of a text of 4,000 tokens does not grow with its length."""
    dice = random.Random(1)
    text = text_of(CountedTokens(dice.randrange(20) for _ in range(2000)))
    text.token_ids = CountedTokens(text.token_ids)
    proposer.propose([(text, 4)])
    text.token_ids.num_read = 0  # type: ignore[attr-defined]
    for _ in range(2000):
        text.token_ids.append(dice.randrange(20))
        proposer.propose([(text, 4)])
    assert text.token_ids.num_read < 2000 * 60  # type: ignore[attr-defined]


@given(short_texts)
def test_the_automaton_knows_every_run(tokens: list[int]) -> None:
    """Its longest repeated end is the text's; every run leads somewhere and no other does."""
    automaton = SuffixAutomaton()
    for end, token in enumerate(tokens, 1):
        automaton.append(token)
        text = tokens[:end]
        repeated = [
            size
            for size in range(end)
            if any(text[i : i + size] == text[end - size :] for i in range(end - size))
        ]
        assert automaton.length[automaton.suffix()] == max(repeated)
    assert len(automaton.next) <= max(2, 2 * len(tokens))
    runs = {tuple(tokens[i:j]) for i in range(len(tokens)) for j in range(i, len(tokens) + 1)}
    for run in runs:
        state = ROOT
        for token in run:
            state = automaton.next[state][token]
    for run in runs:
        for token in range(4):
            state = ROOT
            for known in run:
                state = automaton.next[state][known]
            assert (token in automaton.next[state]) == ((*run, token) in runs)


@given(short_texts, st.lists(st.integers(0, 3), max_size=12))
def test_matching_finds_the_longest_known_end(tokens: list[int], other: list[int]) -> None:
    automaton = SuffixAutomaton()
    for token in tokens:
        automaton.append(token)
    state, length = ROOT, 0
    for token in other:
        state, length = automaton.step(state, length, token)
    runs = {tuple(tokens[i:j]) for i in range(len(tokens)) for j in range(i, len(tokens) + 1)}
    known = [size for size in range(len(other) + 1) if tuple(other[len(other) - size :]) in runs]
    assert length == max(known, default=0)


def test_suffix_follows_the_commoner_continuation() -> None:
    proposer = SuffixProposer(8)
    text = text_of([1, 2, 3, 9, 1, 2, 3, 8, 1, 2, 4, 7, 1, 2, 3, 6, 1, 2])
    assert drafts(proposer, text, 1) == [3], "three times against once"


def test_suffix_drafts_grow_with_what_was_seen() -> None:
    """What came once gives few drafts, what came many times many, at most twice the match."""
    known = list(range(100, 110))
    lengths = []
    for times in (1, 2, 4, 8):
        text = text_of([x for i in range(times) for x in (*known, i)] + known[:6], times)
        lengths.append(len(drafts(SuffixProposer(20), text, 20)))
    assert lengths[0] == 3
    assert lengths == sorted(lengths)
    assert lengths[-1] == 4, "what follows differs from time to time"
    again = text_of([*(known * 8), *known[:2]], 9)
    assert len(drafts(SuffixProposer(40), again, 40)) >= 6, "seen often"
    short = text_of([x for i in range(9) for x in (1, 2, *known, i)] + [50, 1, 2], 10)
    assert drafts(SuffixProposer(20), short, 20) == known[:4]
    assert drafts(SuffixProposer(8), text_of([*known, 7, known[5]], 11)) == [], "says too little"


def test_suffix_learns_from_past_outputs_of_all() -> None:
    proposer = SuffixProposer(8)
    answer = list(range(50, 80))
    first = text_of(answer, 1)
    assert drafts(proposer, first) == []
    proposer.forget(first)
    later = text_of([1, 2, 3, *answer[4:12]], 2)
    assert drafts(proposer, later) == answer[12:15]


def test_a_source_that_misleads_is_not_followed_for_long() -> None:
    """Past outputs say 9 where this sequence says 5: after a few mistakes its own text counts."""
    proposer = SuffixProposer(4)
    for seq_id in (1, 2):
        text = text_of([*range(60, 70), 1, 2, 3, 9, 9, 9, 9] * 2, seq_id)
        drafts(proposer, text)
        proposer.forget(text)
    text = text_of([], 3)
    guesses = []
    for number in range(20):
        text.token_ids += [number % 7 + 100, 68, 69, 1, 2, 3]
        guesses.append(drafts(proposer, text, 4)[:1])
        text.token_ids += [5, 5, 5, 5]
    assert guesses[0] == [9]
    assert guesses[10:] == [[5]] * 10


def test_private_outputs_stay_private() -> None:
    """A request with a cache salt of its own leaves nothing behind for others."""
    proposer = SuffixProposer(8)
    secret = text_of(range(50, 80), 1, is_private=True)
    drafts(proposer, secret)
    proposer.forget(secret)
    assert drafts(proposer, text_of([1, *range(50, 60)], 2)) == []
    assert SuffixProposer(8, max_past=0)._past.num_tokens == 0


def test_past_outputs_are_bounded_and_the_latest_stay() -> None:
    past = PastOutputs(200)
    for number in range(100):
        past.add([number * 100 + i for i in range(20)])
        assert past.num_tokens <= 200 + 2
    latest = [9900 + i for i in range(10)]
    assert past.best(latest, 4)[0] == [9910, 9911, 9912]
    assert past.best(list(range(10)), 4) == ([], 0.0)
    past.add(list(range(50_000, 60_000)))
    assert past.num_tokens <= 202


def test_a_draft_never_runs_from_one_output_into_another() -> None:
    past = PastOutputs(1000)
    for _ in range(3):
        past.add(list(range(10, 20)))
        past.add(list(range(30, 40)))
    assert past.best([14, 15, 16, 17], 8)[0] == [18, 19]


@pytest.mark.parametrize("make", [NgramProposer, SuffixProposer])
def test_forgetting_frees_and_never_fails(make: Any) -> None:
    proposer = make(4)
    text = text_of([1, 2, 3, 1, 2], 5)
    proposer.forget(text)  # never proposed for
    drafts(proposer, text)
    proposer.forget(text)
    proposer.forget(text)
    held = proposer._indexes if make is NgramProposer else proposer._readers
    assert not held


@pytest.mark.parametrize("make", [NgramProposer, SuffixProposer])
def test_the_same_calls_give_the_same_drafts(make: Any) -> None:
    def walk() -> list[list[int]]:
        dice = random.Random(3)
        proposer = make(6)
        texts = [text_of([dice.randrange(4) for _ in range(10)], i) for i in range(5)]
        found = []
        for step in range(300):
            text = dice.choice(texts)
            text.token_ids.append(dice.randrange(4))
            found.append(drafts(proposer, text, 1 + step % 6))
            if step % 50 == 49:
                proposer.forget(text)
                text.token_ids = [dice.randrange(4) for _ in range(10)]
                text.seq_id += 5
        return found

    first = walk()
    assert first == walk()
    assert sum(len(draft) for draft in first) > 300


def test_oracle_and_random() -> None:
    future = list(range(40))
    assert drafts(OracleProposer([future], 50), text_of(future[:10]), 4) == [10, 11, 12, 13]
    some = OracleProposer([future], 1000, accuracy=0.5)
    right = [
        drafts(some, text_of(future[:n]), 1) == [future[n]] for n in range(1, 40) for _ in range(3)
    ]
    assert 0.2 < sum(right) / len(right) < 0.8
    blind = RandomProposer(10, 4)
    lengths = {len(drafts(blind, text_of(range(n)), 4)) for n in range(50)}
    assert lengths == {0, 1, 2, 3, 4}
    assert all(0 <= token < 10 for n in range(20) for token in drafts(blind, text_of(range(n))))


def test_the_drafter_tells_the_controller_what_a_step_gave() -> None:
    told: list[Any] = []

    class Recorder:
        def choose(self, limits: Sequence[tuple[int, int]], num_rows: int) -> list[int]:
            assert (limits, num_rows) == ([(1, 4), (2, 4)], 2)
            return [2, 0]

        def learn(self, *step: Any) -> None:
            told.append(step)

        def forget(self, seq_id: int) -> None: ...

    clock = iter([1.0, 1.5])
    drafter = Drafter(NgramProposer(4), Recorder(), clock=lambda: next(clock))
    wanted = [(text_of([1, 2, 3, 1, 2], seq_id), 4) for seq_id in (1, 2)]
    ((index, draft),) = drafter.propose(wanted, 2)
    assert (index, draft.token_ids) == (0, [3, 1])
    drafter.record(1, 2, 1)
    drafter.record(2, 0, 0)
    drafter.learn(4, 0.25)
    drafter.record(1, 0, 0)
    drafter.learn(9, 0.25)  # a prompt shared the step: its time says nothing
    drafter.learn(9, 0.25)  # nothing but a prompt
    assert told == [(0.25, 0.5, 2, [Outcome(1, 2, 1)]), (None, 0.0, 1, [])]
    assert drafter.num_accepted == [1, 0, 0, 0]


@pytest.mark.parametrize(
    ("came", "trust"),
    [([1, 2, 3], 1.0), ([1, 2, 7], 0.9), ([1], 1.0), ([1, 7, 3], 0.85), ([7], 0.7)],
)
def test_each_source_is_judged_by_what_came(came: list[int], trust: float) -> None:
    """Up to its first wrong token, and once, whether or not its draft was taken."""
    proposer = SuffixProposer(4)
    drafts(proposer, text_of([4, 5, 6]))
    reader = proposer._readers[0]
    for source in (reader.own, reader.past):
        source.draft, source.begin = [1, 2, 3], 3
    for _ in range(2):
        drafts(proposer, text_of([4, 5, 6, *came]))
        assert reader.own.trust == pytest.approx(trust)
        assert reader.past.trust == pytest.approx(trust)
