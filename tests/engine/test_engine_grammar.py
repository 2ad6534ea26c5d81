"""A grammar in the engine: each choice its own, moved by the tokens it took and by nothing else."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from helpers.fake_engine import VOCAB, FakeEngine, generate_alone, roomy_engine
from numpy.typing import NDArray

from tinyserve.engine.kernel_draws import draw_of
from tinyserve.engine.sampling import SampleRow, SamplingParams
from tinyserve.errors import RequestError
from tinyserve.spec.proposer import Draft, Known

EOS = 100
PROMPT = [1, 2, 3, 4, 5]


class Rhythm:
    """A language of `length` tokens: each is, modulo 4, one more than the sum of those before it.

    Refuses to go on after the token `trap`. Remembers what it was told.
    """

    def __init__(self, length: int = 20, trap: int | None = None) -> None:
        self.length = length
        self.trap = trap
        self.taken: list[int] = []
        self.num_masked = 0

    def follow(self, taken: Sequence[int]) -> list[int]:
        if len(taken) >= self.length:
            return [EOS]
        return [t for t in range(EOS) if t % 4 == (sum(taken) + 1) % 4]

    def masks(self, drafts: Sequence[int] = ()) -> list[NDArray[np.uint32]]:
        if self.taken and self.taken[-1] == self.trap:
            raise RequestError("trapped")
        counts = range(self.count_valid(drafts) + 1)
        if self.trap in drafts:
            counts = counts[: list(drafts).index(self.trap) + 1]
        self.num_masked += len(counts)
        return [packed(self.follow([*self.taken, *drafts[:count]])) for count in counts]

    def take(self, token_id: int) -> None:
        assert token_id in self.follow(self.taken), "a token that the mask did not allow"
        self.taken.append(token_id)

    def count_valid(self, drafts: Sequence[int]) -> int:
        for count, token in enumerate(drafts):
            allowed = self.follow([*self.taken, *drafts[:count]])
            if token not in allowed or token == EOS:
                return count
        return len(drafts)


def packed(ids: Sequence[int]) -> NDArray[np.uint32]:
    bits = np.zeros(-(-VOCAB // 32) * 32, np.uint8)
    bits[list(ids)] = 1
    return np.packbits(bits, bitorder="little").view(np.uint32)


class Maker:
    """The factory of a request; keeps the grammars it has made, one per choice."""

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.made: list[Rhythm] = []

    def __call__(self) -> Rhythm:
        self.made.append(Rhythm(**self.options))
        return self.made[-1]


class Drafts:
    """A proposer that knows the truth and tells it with some probability at each token."""

    max_drafts = 4

    def __init__(self, truth: list[int], share: float) -> None:
        self.truth = truth
        self.share = share
        self.dice = random.Random(5)

    def propose(self, wanted: Sequence[tuple[Known, int]]) -> list[Draft]:
        return [Draft(self._guess(list(seq.token_ids))[:most]) for seq, most in wanted]

    def _guess(self, known: list[int]) -> list[int]:
        right = self.truth[len(known) : len(known) + 4]
        return [t if self.dice.random() < self.share else self.dice.randrange(VOCAB) for t in right]

    def forget(self, seq: Known) -> None: ...


def an_engine(**options: Any) -> FakeEngine:
    return FakeEngine(eos_token_ids=(EOS,), **options)


def alone(**options: Any) -> list[list[int]]:
    engine = an_engine(
        num_blocks=128, block_size=16, max_num_seqs=64, max_num_batched_tokens=4096, caching=False
    )
    request_id = engine.add(PROMPT, grammar=Maker(), max_tokens=40, **options)
    engine.run()
    return [choice.token_ids for choice in engine.results[request_id]]


def is_right(tokens: list[int], length: int = 20) -> bool:
    return (
        tokens[-1] == EOS and Rhythm(length).count_valid(tokens[:-1]) == length == len(tokens) - 1
    )


def test_the_answer_keeps_to_the_grammar_and_ends_with_it() -> None:
    engine, grammar = an_engine(), Maker()
    engine.add(PROMPT, grammar=grammar, max_tokens=40)
    engine.run()
    (choice,) = engine.results["r0"]
    assert is_right(choice.token_ids)
    assert (choice.finish_reason, choice.stop_reason) == ("stop", None)
    assert grammar.made[0].taken == choice.token_ids


def test_an_answer_cut_by_its_limit_ends_as_any_other() -> None:
    engine = an_engine()
    engine.add(PROMPT, grammar=Maker(), max_tokens=7)
    engine.run()
    (choice,) = engine.results["r0"]
    assert (len(choice.token_ids), choice.finish_reason) == (7, "length")
    assert Rhythm().count_valid(choice.token_ids) == 7


def test_each_choice_has_a_state_of_its_own() -> None:
    """GD-12: nothing is shared between the choices of a request."""
    engine, grammar = an_engine(), Maker()
    engine.add(PROMPT, grammar=grammar, n=4, temperature=1.0, seed=7, max_tokens=40)
    engine.run()
    answers = [choice.token_ids for choice in engine.results["r0"]]
    assert all(map(is_right, answers))
    assert len({tuple(answer) for answer in answers}) == 4
    assert [made.taken for made in grammar.made] == answers
    assert answers == alone(n=4, temperature=1.0, seed=7)


@pytest.mark.parametrize("num_swap_blocks", [0, 40], ids=["recomputed", "swapped"])
def test_preemption_leaves_no_trace(num_swap_blocks: int) -> None:
    """GD-12: dropped or swapped out in the middle, an answer goes on where it was."""
    engine = an_engine(num_blocks=16, num_swap_blocks=num_swap_blocks, max_num_seqs=6)
    grammars = [Maker() for _ in range(3)]
    for seed, grammar in enumerate(grammars):
        engine.add(PROMPT, grammar=grammar, n=2, temperature=1.0, seed=seed, max_tokens=40)
    engine.run()
    stats = engine.core.stats()
    assert stats.num_preemptions_swap + stats.num_preemptions_recompute > 0
    for seed, grammar in enumerate(grammars):
        answers = [choice.token_ids for choice in engine.results[f"r{seed}"]]
        assert answers == alone(n=2, temperature=1.0, seed=seed)
        assert [made.taken for made in grammar.made] == answers
    engine.assert_empty()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("share", [0.0, 0.5, 0.9, 1.0])
def test_drafts_change_nothing_and_leave_no_trace(share: float, temperature: float) -> None:
    """SPEC-07's kind: the grammar of a row is that of the drafts before it."""
    truth = alone(temperature=temperature, seed=4)[0]
    engine = an_engine(proposer=Drafts([*PROMPT, *truth], share))
    grammar = Maker()
    engine.add(PROMPT, grammar=grammar, temperature=temperature, seed=4, max_tokens=40)
    engine.run()
    assert engine.results["r0"][0].token_ids == truth == grammar.made[0].taken
    stats = engine.core.stats()
    if share == 1.0:
        assert stats.num_accepted_tokens == stats.num_draft_tokens > 10
    engine.assert_empty()


def test_drafts_that_the_grammar_rules_out_are_not_computed() -> None:
    wrong = [EOS] * 100
    engine = an_engine(proposer=Drafts(wrong, 1.0))
    engine.add(PROMPT, grammar=Maker(), max_tokens=40)
    engine.add(PROMPT, max_tokens=10)
    engine.run()
    assert is_right(engine.results["r0"][0].token_ids)
    by_request = {id_ for plan in engine.runner.plans for id_ in _drafted(engine, plan)}
    assert by_request <= {"r1"}


def _drafted(engine: FakeEngine, plan: Any) -> list[str]:
    return [
        engine.runner.sequences[chunk.seq_id].job.request.request_id
        for chunk in plan.chunks
        if chunk.num_logits > 1
    ]


@pytest.mark.parametrize("options", [{"min_tokens": 30}, {"ignore_eos": True}])
def test_an_end_that_the_grammar_demands_comes_whatever_holds_it_back(
    options: dict[str, Any],
) -> None:
    """min_tokens and ignore_eos put an end off only while something else may follow."""
    engine = an_engine()
    engine.add(PROMPT, grammar=Maker(), max_tokens=40, **options)
    engine.run()
    (choice,) = engine.results["r0"]
    assert is_right(choice.token_ids)
    assert choice.finish_reason == "stop"


class Anything(Rhythm):
    """Any tokens, and an end whenever one likes."""

    def follow(self, taken: Sequence[int]) -> list[int]:
        return list(range(VOCAB))


@pytest.mark.parametrize(
    ("options", "least"), [({"min_tokens": 25}, 25), ({"ignore_eos": True}, 40)]
)
def test_an_end_that_the_grammar_allows_is_put_off(options: dict[str, Any], least: int) -> None:
    lengths = []
    for seed in range(20):
        engine = an_engine(num_blocks=64)
        engine.add(PROMPT, grammar=Anything, max_tokens=40, seed=seed, temperature=1.0, **options)
        engine.run()
        lengths.append(len(engine.results["r0"][0].token_ids))
    assert min(lengths) >= least


def test_where_no_token_is_left_that_request_alone_ends() -> None:
    engine = an_engine()
    bans = tuple((token,) for token in range(EOS) if token % 4 == 1)  # all that may come first
    engine.add(PROMPT, grammar=Maker(), bad_words_ids=bans, max_tokens=40, n=2)
    engine.add(PROMPT, max_tokens=5)
    engine.run()
    for choice in engine.results["r0"]:
        assert choice.finish_reason == "error"
        assert isinstance(choice.error, RequestError)
        assert "no token may come next" in str(choice.error)
    assert engine.results["r1"][0].token_ids == generate_alone(PROMPT, max_tokens=5)[0]
    assert engine.core.stats().num_corrupted == 0
    engine.assert_empty()


@pytest.mark.parametrize("has_drafts", [False, True])
def test_a_grammar_that_gives_up_ends_its_request_alone(has_drafts: bool) -> None:
    truth = alone()[0]
    proposer = Drafts([*PROMPT, *truth], 1.0) if has_drafts else None
    engine = an_engine(proposer=proposer)
    trap = Maker(trap=truth[6])
    engine.add(PROMPT, grammar=trap, max_tokens=40)
    engine.add(PROMPT, grammar=Maker(), max_tokens=40)
    engine.run()
    (choice,) = engine.results["r0"]
    assert choice.finish_reason == "error"
    assert "trapped" in str(choice.error)
    assert choice.token_ids == truth[: len(choice.token_ids)]
    assert truth[6] in choice.token_ids
    assert engine.results["r1"][0].token_ids == truth
    engine.assert_empty()


@pytest.mark.parametrize("broken", [0, 1])
def test_a_fault_of_one_choice_ends_the_request_with_all_of_them(broken: int) -> None:
    engine, made = an_engine(), itertools.count()

    class Breaking(Rhythm):
        def masks(self, drafts: Sequence[int] = ()) -> list[NDArray[np.uint32]]:
            if self.index == broken and len(self.taken) == 3:
                raise RequestError("broken")
            return super().masks(drafts)

        def __init__(self) -> None:
            super().__init__()
            self.index = next(made)

    engine.add(PROMPT, grammar=Breaking, n=2, max_tokens=40)
    engine.run()
    choices = engine.results["r0"]
    assert [(c.finish_reason, len(c.token_ids)) for c in choices] == [("error", 3)] * 2
    engine.assert_empty()


def test_a_prompt_in_chunks_asks_for_no_mask_before_its_end() -> None:
    engine, grammar = an_engine(max_num_batched_tokens=2, max_num_seqs=2), Maker()
    engine.add(range(20), grammar=grammar, max_tokens=3)
    while not engine.results["r0"][0].token_ids:
        assert not grammar.made[0].taken
        engine.step()
    assert grammar.made[0].num_masked == 1
    engine.run()


def test_kernels_get_a_mask_as_wide_as_the_logits() -> None:
    """They read a bit for each token, whatever the mask was made for."""
    row = SampleRow(0, SamplingParams(), 0, 0, 1, [1], [], mask=packed([3, 40]))
    wide = draw_of(row, 0, 300).mask
    assert wide is not None
    assert len(wide) == 10
    assert (wide[:4] == packed([3, 40])).all()
    assert not wide[4:].any()
    assert draw_of(row, 0, VOCAB).mask is row.mask


def test_without_a_grammar_rows_have_no_mask() -> None:
    engine = roomy_engine()
    seen = []
    run = engine.runner.run

    def watch(plan: Any) -> Any:
        logits = run(plan)
        sample = logits.sample

        def keep(rows: Any) -> Any:
            seen.extend(row.mask for row in rows)
            return sample(rows)

        logits.sample = keep  # type: ignore[method-assign]
        return logits

    engine.runner.run = watch  # type: ignore[method-assign]
    engine.generate(PROMPT, max_tokens=3)
    assert seen == [None] * 3
