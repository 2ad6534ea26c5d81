"""Drafts change how many tokens a step gives, and nothing else."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from helpers.fake_engine import VOCAB, FakeEngine, generate_alone

from tinyserve.spec.proposer import Draft, Known

PROMPT = [1, 2, 3, 4, 5]


class Drafts:
    """A proposer made of a function: known tokens to drafts."""

    def __init__(self, propose: Callable[[list[int]], list[int]], max_drafts: int = 4) -> None:
        self.max_drafts = max_drafts
        self.propose_all = propose
        self.forgotten: list[int] = []

    def propose(self, wanted: Sequence[tuple[Known, int]]) -> list[Draft]:
        return [Draft(self.propose_all(list(seq.token_ids))[:most]) for seq, most in wanted]

    def forget(self, seq: Known) -> None:
        self.forgotten.append(seq.seq_id)


def oracle(**options: Any) -> Drafts:
    """Always right."""
    truth = [*PROMPT, *generate_alone(PROMPT, **options)[0]]
    return Drafts(lambda known: truth[len(known) : len(known) + 4])


def noisy(share: float, **options: Any) -> Drafts:
    """Right with some probability at each token."""
    dice = random.Random(3)
    right = oracle(**options)
    return Drafts(
        lambda known: [
            token if dice.random() < share else dice.randrange(VOCAB)
            for token in right.propose_all(known)
        ]
    )


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("share", [0.0, 0.5, 0.9])
def test_output_is_the_same_with_drafts_right_or_wrong(share: float, temperature: float) -> None:
    options: dict[str, Any] = {"max_tokens": 30, "temperature": temperature, "seed": 4}
    engine = FakeEngine(proposer=noisy(share, **options))
    assert engine.generate(PROMPT, **options) == generate_alone(PROMPT, **options)[0]
    assert engine.core.stats().num_draft_tokens > 0
    engine.assert_empty()


def test_right_drafts_save_steps_and_are_counted() -> None:
    engine = FakeEngine(proposer=oracle(max_tokens=21))
    engine.generate(PROMPT, max_tokens=21)
    stats = engine.core.stats()
    assert stats.num_steps == 1 + 4, "one for the prompt, then five tokens a step"
    assert stats.num_draft_tokens == stats.num_accepted_tokens == 16


def test_a_run_of_accepted_drafts_ends_where_a_single_step_would_have_ended() -> None:
    """SPEC-01, SPEC-02: a stop within the run; max_tokens within the run."""
    truth = generate_alone(PROMPT, max_tokens=20)[0]
    for options in (
        {"stop_token_ids": (truth[3],)},
        {"stop": (f"<{truth[3]}>",)},
        {"max_tokens": 4},
        {"stop_token_ids": (truth[3],), "max_tokens": 4},
    ):
        request = {"max_tokens": 20, "text": True, "logprobs": 1, **options}
        with_drafts, without = FakeEngine(proposer=oracle(max_tokens=20)), FakeEngine()
        for engine in (with_drafts, without):
            engine.add(PROMPT, **request)
            engine.run()
        assert with_drafts.results == without.results
        assert len(with_drafts.results["r0"][0].token_ids) == 4


def test_rules_that_look_at_the_output_see_the_drafts() -> None:
    """SPEC-07: min_tokens and bad words hold inside a run."""
    truth = generate_alone(PROMPT, max_tokens=20)[0]
    options: dict[str, Any] = {
        "max_tokens": 20,
        "min_tokens": 6,
        "stop_token_ids": (truth[2],),
        "bad_words_ids": ((truth[3], truth[4]), (truth[0],)),
    }
    engine = FakeEngine(proposer=noisy(0.9, max_tokens=20))
    assert engine.generate(PROMPT, **options) == generate_alone(PROMPT, **options)[0]


def test_rejected_drafts_are_never_published() -> None:
    """PFX-07: only verified tokens enter the prefix cache."""
    wrong = Drafts(lambda known: [(known[-1] + 1) % VOCAB] * 4)
    engine = FakeEngine(proposer=wrong)
    tokens = engine.generate(PROMPT, max_tokens=20)
    for entry in engine.kv._cache._by_block.values():
        chain = list(entry.tokens)
        while entry.parent is not None:
            entry = entry.parent
            chain = [*entry.tokens, *chain]
        assert chain == [*PROMPT, *tokens][: len(chain)]


def test_drafts_respect_the_budget_and_leave_room_for_prompts() -> None:
    engine = FakeEngine(
        proposer=Drafts(lambda known: [1, 2, 3, 4]), max_num_batched_tokens=8, max_num_seqs=4
    )
    for token in range(3):
        engine.add([token], max_tokens=12)
    engine.step()
    engine.add(range(20), max_tokens=2)
    engine.run()
    assert max(plan.num_tokens for plan in engine.runner.plans) <= 8
    for token in range(3):
        expected = generate_alone([token], max_tokens=12)[0]
        assert engine.results[f"r{token}"][0].token_ids == expected


def test_drafts_take_nothing_of_what_prompts_get_beside_decodes() -> None:
    engine = FakeEngine(
        proposer=Drafts(lambda known: [0, 0, 0]), max_num_batched_tokens=64, chunked_prefill_size=8
    )
    engine.add([1], max_tokens=40)
    engine.step()
    engine.add([2] * 60, max_tokens=1)
    engine.step()
    assert [len(chunk.token_ids) for chunk in engine.last_plan.chunks] == [4, 8]


def test_drafts_give_way_where_blocks_are_short() -> None:
    """No sequence is preempted for the sake of a guess."""
    engine = FakeEngine(
        proposer=Drafts(lambda known: [1] * 4), num_blocks=4, block_size=4, caching=False
    )
    engine.add([1] * 7, max_tokens=6)
    engine.add([2] * 3, max_tokens=2)
    engine.run()
    assert engine.core.stats().num_preemptions_recompute == 0
    assert engine.results["r0"][0].token_ids == generate_alone([1] * 7, max_tokens=6)[0]


@pytest.mark.parametrize("num_swap_blocks", [0, 10])
def test_drafts_in_a_tiny_pool(num_swap_blocks: int) -> None:
    dice = random.Random(9)
    engine = FakeEngine(
        proposer=Drafts(lambda known: [dice.randrange(4)] * dice.randrange(4)),
        num_blocks=12,
        num_swap_blocks=num_swap_blocks,
        max_num_seqs=5,
        max_num_batched_tokens=16,
    )
    requests = {}
    for i in range(30):
        prompt = [dice.randrange(3) for _ in range(dice.randrange(1, 16))]
        options = {"n": dice.choice([1, 3]), "max_tokens": dice.randrange(1, 16), "seed": i}
        requests[engine.add(prompt, temperature=1.0, **options)] = prompt, options
    engine.run()
    for request_id, (prompt, options) in requests.items():
        tokens = [choice.token_ids for choice in engine.results[request_id]]
        assert tokens == generate_alone(prompt, temperature=1.0, **options)
    drafts = [c.num_drafts for plan in engine.runner.plans for c in plan.chunks if c.num_drafts]
    stats = engine.core.stats()
    assert (stats.num_drafts, stats.num_draft_tokens) == (len(drafts), sum(drafts))
    engine.assert_empty()


def test_the_last_token_of_a_prompt_gets_no_drafts() -> None:
    """It is one token short of done, as a decode is, but nothing was drawn from it yet."""
    engine = FakeEngine(proposer=oracle(max_tokens=8), max_num_batched_tokens=12, max_num_seqs=8)
    engine.add([6] * 11, max_tokens=20, ignore_eos=True)
    engine.step()
    request_id = engine.add(PROMPT * 2 + PROMPT[:2], n=2, max_tokens=8)
    engine.step()
    assert [chunk.num_logits for chunk in engine.last_plan.chunks][-1] == 0
    engine.run()
    alone = generate_alone(PROMPT * 2 + PROMPT[:2], n=2, max_tokens=8)
    assert [choice.token_ids for choice in engine.results[request_id]] == alone


def test_the_controller_is_told_how_many_decodes_there_are() -> None:
    asked = []

    class Recorder:
        def choose(self, limits: Sequence[tuple[int, int]], num_rows: int) -> list[int]:
            asked.append(([most for _, most in limits], num_rows))
            return [0] * len(limits)

        def learn(self, *step: object) -> None: ...

        def forget(self, seq_id: int) -> None: ...

    engine = FakeEngine(proposer=Drafts(lambda known: [1] * 4), controller=Recorder())
    for length in (3, 9):
        engine.add([length], max_tokens=length)
    engine.step()
    engine.step()
    assert asked[-1] == ([1, 4], 2)  # no more drafts than tokens may follow, less the bonus
    engine.step()
    assert asked[-1] == ([4], 2)
    engine.step()
    assert asked[-1] == ([4], 1)


def test_every_sequence_is_forgotten_once_it_has_ended() -> None:
    """However it ends: its time, a stop, an abort while it waits or runs."""
    proposer = oracle(max_tokens=20)
    engine = FakeEngine(proposer=proposer, max_num_seqs=2)
    ids = [engine.add(PROMPT, max_tokens=20, n=2) for _ in range(3)]
    for _ in range(3):
        engine.step()
    for request_id in ids[1:]:
        assert engine.core.abort(request_id)
    engine.run()
    assert sorted(set(proposer.forgotten)) == list(range(6))
    engine.assert_empty()


def test_a_request_may_do_without_drafts() -> None:
    engine = FakeEngine(proposer=oracle(max_tokens=20))
    request_id = engine.add(PROMPT, max_tokens=20)
    engine.core._jobs[request_id].request.speculative = False
    engine.run()
    assert engine.core.stats().num_draft_tokens == 0
    assert engine.results[request_id][0].token_ids == generate_alone(PROMPT, max_tokens=20)[0]


def test_a_fault_behind_a_wrong_draft_hurts_nobody() -> None:
    """Logits after a rejected draft are nobody's: they may be NaN."""
    truth = generate_alone(PROMPT, max_tokens=12)[0]
    wrong = next(token for token in range(VOCAB) if token not in truth and token not in PROMPT)
    engine = FakeEngine(proposer=Drafts(lambda known: [wrong] * 4))
    engine.runner.nan_token = wrong
    assert engine.generate(PROMPT, max_tokens=12) == truth
    assert engine.core.stats().num_corrupted == 0


def test_a_fault_behind_accepted_drafts_comes_where_it_would_have_come() -> None:
    """The tokens before it are given out; a stop before it ends the request in peace."""
    truth = generate_alone(PROMPT, max_tokens=12)[0]
    assert truth[4] not in (*truth[:4], *PROMPT)
    for options in ({}, {"stop_token_ids": (truth[4],)}, {"max_tokens": 5}):
        results = []
        for proposer in (None, oracle(max_tokens=12)):
            engine = FakeEngine(proposer=proposer)
            engine.runner.nan_token = truth[4]
            engine.add(PROMPT, **{"max_tokens": 12, **options})
            engine.run()
            choice = engine.results["r0"][0]
            results.append((choice.token_ids, choice.finish_reason, str(choice.error)))
            engine.assert_empty()
        assert results[0] == results[1]
        assert results[0][0] == truth[:5]


def test_drafts_never_cost_another_its_blocks() -> None:
    """The older one's drafts could take both free blocks, of which the younger one needs one."""
    engine = FakeEngine(
        proposer=Drafts(lambda known: [1] * 8, max_drafts=8),
        num_blocks=4,
        block_size=4,
        caching=False,
    )
    engine.add([1] * 3, max_tokens=13)
    engine.add([2] * 4, max_tokens=4)
    engine.run()
    assert engine.core.stats().num_preemptions_recompute == 0
    assert engine.core.stats().num_draft_tokens > 0


def test_positions_of_accepted_drafts_are_counted() -> None:
    """SPEC-11."""
    truth = [*PROMPT, *generate_alone(PROMPT, max_tokens=40)[0]]

    def two_right(known: list[int]) -> list[int]:
        right = truth[len(known) : len(known) + 2]
        return [*right, (truth[len(known) + 2] + 1) % VOCAB] if len(known) + 3 < len(truth) else []

    engine = FakeEngine(proposer=Drafts(two_right))
    engine.generate(PROMPT, max_tokens=31)
    stats = engine.core.stats()
    assert stats.num_drafts == 10
    assert stats.num_draft_tokens == 29, "the last has room for two only"
    assert stats.num_accepted_per_position == (10, 10, 0, 0)
    assert stats.num_accepted_tokens == 20


def test_a_draft_that_ends_its_choice_is_an_accepted_one() -> None:
    """SPEC-11: what comes after a stop in the same run was neither accepted nor rejected."""
    truth = generate_alone(PROMPT, max_tokens=12)[0]
    assert truth[2] not in truth[:2]
    for options in ({"stop_token_ids": (truth[2],)}, {"stop": (f"<{truth[2]}>",), "text": True}):
        engine = FakeEngine(proposer=oracle(max_tokens=12))
        assert engine.generate(PROMPT, max_tokens=12, **options) == truth[:3]
        stats = engine.core.stats()
        assert (stats.num_drafts, stats.num_draft_tokens) == (1, 4)
        assert stats.num_accepted_per_position == (1, 1, 0, 0)
