"""The controller in a simulated world: times and acceptance are given, its choices are judged.

No clock and no dice that are not seeded: each test gives the same choices in every run.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from tinyserve.spec.controller import AdaptiveController
from tinyserve.spec.drafter import Outcome
from tinyserve.spec.step_times import StepTimes

Cost = Callable[[int], float]  # seconds of a step by its rows


def bus_bound(rows: int) -> float:
    """One stream on a CPU: three rows for nothing, then a fifth of a step for each."""
    return 0.010 * (1 + 0.2 * max(0, rows - 3))


def compute_bound(rows: int) -> float:
    """Every row at its full price."""
    return 0.002 * rows


@dataclass
class World:
    """Sequences that decode, and what a second of it brings."""

    cost: Cost
    acceptance: Callable[[int, int], float]  # (sequence, step) -> of each draft
    num_seqs: int = 1
    most: int = 8
    draft_time: float = 0.0
    dice: random.Random = field(default_factory=lambda: random.Random(1))
    noise: float = 0.0
    controller: AdaptiveController = field(default_factory=AdaptiveController)
    seconds: float = 0.0
    tokens: int = 0
    drafts: list[int] = field(default_factory=list)  # of each step

    def run(self, num_steps: int) -> World:
        for _ in range(num_steps):
            self.step()
        return self

    def step(self) -> None:
        limits = [(seq_id, self.most) for seq_id in range(self.num_seqs)]
        chosen = self.controller.choose(limits, self.num_seqs)
        assert all(0 <= count <= self.most for count in chosen)
        given = [(i, count) for i, count in enumerate(chosen) if count]
        outcomes = [Outcome(i, count, self._accepted(i, count)) for i, count in given]
        rows = self.num_seqs + sum(chosen)
        proposing = self.draft_time * max(chosen)
        seconds = self.cost(rows) * (1 + self.noise * self.dice.random()) + proposing
        self.controller.learn(seconds, proposing, self.num_seqs, outcomes)
        self.seconds += seconds
        self.tokens += self.num_seqs + sum(outcome.num_accepted for outcome in outcomes)
        self.drafts.append(sum(chosen))

    def _accepted(self, seq_id: int, count: int) -> int:
        chance = self.acceptance(seq_id, len(self.drafts))
        accepted = 0
        while accepted < count and self.dice.random() < chance:
            accepted += 1
        return accepted

    @property
    def speedup(self) -> float:
        """Tokens a second over those of plain decoding."""
        plain = self.num_seqs / (self.cost(self.num_seqs) * (1 + self.noise / 2))
        return self.tokens / self.seconds / plain


def always(chance: float) -> Callable[[int, int], float]:
    return lambda seq_id, step: chance


def test_easy_text_at_one_stream_is_drafted_to_the_full() -> None:
    world = World(bus_bound, always(0.97)).run(400)
    assert sum(world.drafts[100:]) > 0.9 * 8 * 300
    assert world.speedup > 2.5


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_hopeless_text_costs_next_to_nothing(noise: float) -> None:
    assert World(bus_bound, always(0.0), noise=noise).run(1000).speedup > 0.97
    assert World(lambda rows: 0.002 + 0.002 * rows, always(0.02)).run(2000).speedup > 0.98


def test_load_turns_speculation_off() -> None:
    """Sixteen streams that pay for every row: not even good drafts are worth it."""
    world = World(compute_bound, always(0.7), num_seqs=16).run(1000)
    assert world.speedup > 0.98
    assert sum(world.drafts[200:]) < 0.1 * 16 * 800


def test_certain_drafts_pay_even_under_load() -> None:
    def cost(rows: int) -> float:
        return 0.004 + 0.002 * rows

    world = World(cost, always(1.0), num_seqs=16).run(300)
    assert world.speedup > 1.05


def test_the_right_number_of_drafts_is_found() -> None:
    """Within three per cent of the best fixed number, for many acceptances."""
    for chance in (0.3, 0.5, 0.7, 0.9):
        fixed = max(sum(chance**i for i in range(k + 1)) / bus_bound(1 + k) for k in range(9)) / (
            1 / bus_bound(1)
        )
        assert World(bus_bound, always(chance)).run(4000).speedup > 0.95 * fixed


def test_it_comes_back_on_when_text_turns_easy() -> None:
    def acceptance(seq_id: int, step: int) -> float:
        return 0.95 if step >= 1000 else 0.0

    world = World(compute_and_bus, acceptance).run(1000)
    assert sum(world.drafts[500:]) < 100
    world.run(200)
    assert sum(world.drafts[1150:]) > 50 * 3


def compute_and_bus(rows: int) -> float:
    return 0.010 + 0.0015 * (rows - 1)


def test_load_that_goes_lets_it_back_on() -> None:
    world = World(compute_bound, always(0.8), num_seqs=16).run(300)
    off = sum(world.drafts[200:])
    world.num_seqs, world.cost = 1, compute_and_bus
    world.run(300)
    assert off < 100
    assert sum(world.drafts[500:]) > 100 * 3


def test_each_sequence_gets_what_it_is_worth() -> None:
    def acceptance(seq_id: int, step: int) -> float:
        return 0.95 if seq_id == 0 else 0.02

    world = World(compute_and_bus, acceptance, num_seqs=2).run(300)
    chosen = world.controller.choose([(0, 8), (1, 8)], 2)
    assert chosen[0] >= 4
    assert chosen[1] <= 2


def test_a_poor_draft_model_is_off_within_a_second() -> None:
    """Proposals as slow as the model itself, and wrong."""
    world = World(bus_bound, always(0.1), draft_time=0.008)
    while world.seconds < 1:
        world.step()
    assert sum(world.drafts[-50:]) <= 2
    world.run(2000)
    assert world.speedup > 0.97


def test_a_good_draft_model_stays_on() -> None:
    world = World(bus_bound, always(0.85), draft_time=0.001).run(1000)
    assert world.speedup > 1.8


def test_prompts_in_a_step_do_not_disturb_the_times() -> None:
    world = World(bus_bound, always(0.9)).run(50)
    before = world.controller.times.estimate(5)
    for _ in range(50):
        chosen = world.controller.choose([(0, 8)], 1)
        world.controller.learn(None, 0.0, 1, [Outcome(0, chosen[0], chosen[0])])
    assert world.controller.times.estimate(5) == before


def test_a_hiccup_changes_nothing() -> None:
    world = World(bus_bound, always(0.95)).run(100)
    before = world.controller.choose([(0, 8)], 1)
    world.controller.learn(5.0, 0.0, 1, [Outcome(0, before[0], before[0])])
    assert world.controller.choose([(0, 8)], 1) == before


def test_no_drafts_before_a_plain_step_was_measured() -> None:
    controller = AdaptiveController()
    assert controller.choose([(0, 8), (1, 8)], 2) == [0, 0]
    controller.learn(0.01, 0.0, 2, [])
    assert sum(controller.choose([(0, 8), (1, 8)], 2)) > 0


def test_records_end_with_their_sequences() -> None:
    world = World(bus_bound, always(0.5), num_seqs=4).run(20)
    for seq_id in range(4):
        world.controller.forget(seq_id)
        world.controller.forget(seq_id)
    assert not world.controller._records


def test_nothing_is_kept_of_a_sequence_that_ends_with_its_drafts() -> None:
    """The step that ends it forgets it first, and is learnt from afterwards."""
    controller = World(bus_bound, always(0.9)).run(20).controller
    rate = controller.rate(0)
    controller.forget(0)
    for seq_id in range(1, 50):
        (count,) = controller.choose([(seq_id, 8)], 1)
        controller.forget(seq_id)
        controller.learn(0.01, 0.0, 1, [Outcome(seq_id, count, 0)] if count else [])
    assert not controller._records
    assert controller.rate(50) < rate / 2  # what came of their drafts counts all the same


def test_times_between_and_beyond_what_was_measured() -> None:
    times = StepTimes()
    for rows, seconds in ((1, 1.0), (5, 3.0), (9, 4.0)):
        times.add(rows, seconds)
    assert times.estimate(5) == 3.0
    assert times.estimate(3) == 2.0
    assert times.estimate(13) == 5.0
    assert times.estimate(1000) > 200
    assert times.age(9) == 0
    assert times.age(1) == 2
    assert times.age(2) is None
    times.add(9, 100.0)
    times.add(9, 4.2)
    assert times.estimate(9) == 4.2


def test_hopeless_drafts_are_seldom_thought_about(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no draft pays, the next steps go without asking; another number of sequences asks."""
    thoughts: list[int] = []
    think = AdaptiveController._best

    def noted(
        self: AdaptiveController, limits: Sequence[tuple[int, int]], num_rows: int
    ) -> list[int]:
        thoughts.append(len(limits))
        return think(self, limits, num_rows)

    monkeypatch.setattr(AdaptiveController, "_best", noted)
    world = World(num_seqs=16, cost=lambda rows: rows, acceptance=lambda *_: 0.0).run(100)
    thoughts.clear()
    world.run(400)
    assert 50 <= len(thoughts) <= 200
    world.num_seqs = 15
    world.run(2)  # one of them may be plain, to be measured
    assert thoughts[-1] == 15


@pytest.mark.parametrize("seconds", [0.0, 0.015])
def test_a_coarse_clock_divides_by_nothing(seconds: float) -> None:
    """A step shorter than a tick takes no time, or, with drafts, less than none."""
    world = World(cost=lambda rows: seconds * (rows > 4), acceptance=lambda seq, step: 0.7)
    world.draft_time = 0.0
    world.run(300)
    assert world.tokens >= 300
