"""When things happened to each choice: every choice ends once, with times in order."""

from __future__ import annotations

from time import monotonic

import pytest
from helpers.fake_engine import VOCAB
from helpers.timed_engine import TimedEngine
from hypothesis import given
from hypothesis import strategies as st

from tinyserve.engine.chronicle import Life
from tinyserve.errors import RequestError


def prompt(length: int, first: int = 1) -> list[int]:
    return [(first + 7 * i) % VOCAB for i in range(length)]


def assert_in_order(life: Life) -> None:
    times = [life.request.arrival, life.request.queued]
    times += [t for t in (life.scheduled, life.first_token, life.last_token) if t is not None]
    times.append(life.finished)
    assert times == sorted(times)


def test_times_of_a_request_come_in_order_and_add_up() -> None:
    timed = TimedEngine()
    before = monotonic()
    timed.add("a", prompt(6), max_tokens=5)
    timed.run()
    life = timed.lives["a", 0]
    assert before <= life.request.arrival
    assert life.finished <= monotonic()
    assert_in_order(life)
    assert (life.reason, life.num_output_tokens) == ("length", 5)
    assert life.ttft_s is not None
    assert life.decode_s is not None
    assert life.prefill_s is not None
    assert life.inference_s is not None
    assert life.inference_s == pytest.approx(life.prefill_s + life.decode_s)
    assert life.e2e_s == pytest.approx(life.ttft_s + life.decode_s)
    assert life.time_per_output_token_s == pytest.approx(life.decode_s / 4)


def test_steps_say_what_the_tokens_say() -> None:
    timed = TimedEngine(max_num_batched_tokens=4)
    timed.add("a", prompt(10), max_tokens=4)
    timed.add("b", prompt(3, 9), max_tokens=1)
    timed.run()
    steps = timed.steps
    assert sum(step.num_tokens for step in steps) == timed.core.stats().num_scheduled_tokens
    assert len(steps) == timed.core.stats().num_steps
    assert sum(len(step.first_tokens) for step in steps) == 2
    gaps = [gap for step in steps for gap in step.gaps]
    assert [count for _, count in gaps] == [1, 1, 1]  # the first token of each has none
    assert all(step.seconds > 0 for step in steps)
    life = timed.lives["a", 0]
    assert sum(seconds for seconds, _ in gaps) == pytest.approx(life.decode_s)
    assert timed.lives["b", 0].decode_s == 0
    assert timed.lives["b", 0].time_per_output_token_s is None, "one token has no pace"


def test_a_preempted_choice_keeps_its_first_token_and_its_gap_shows_the_preemption() -> None:
    """MET-05: preemption in decode belongs to the time between tokens."""
    for swap in (0, 8):
        timed = TimedEngine(
            num_blocks=6, num_swap_blocks=swap, caching=False, max_num_batched_tokens=64
        )
        timed.add("old", prompt(8, 2), max_tokens=12)
        timed.add("young", prompt(8, 5), max_tokens=12)
        firsts: dict[str, float] = {}
        while timed.core.has_work():
            for output in timed.core.step():
                firsts.setdefault(output.request_id, timed.steps[-1].time)
        stats = timed.core.stats()
        assert stats.num_preemptions_swap + stats.num_preemptions_recompute > 0
        for (request_id, _), life in timed.lives.items():
            assert life.first_token == firsts[request_id]
            assert life.num_output_tokens == 12
            assert_in_order(life)
        assert sum(len(step.first_tokens) for step in timed.steps) == 2
        assert sum(count for step in timed.steps for _, count in step.gaps) == 22


def test_dropped_tokens_that_are_computed_again_are_counted() -> None:
    timed = TimedEngine(num_blocks=6, caching=False, max_num_batched_tokens=64)
    timed.add("old", prompt(8, 2), max_tokens=12)
    timed.add("young", prompt(8, 5), max_tokens=12)
    timed.run()
    stats = timed.core.stats()
    assert stats.num_preemptions_recompute > 0
    useful = 2 * (8 + 12 - 1)  # the last token of each needs no row
    assert stats.num_scheduled_tokens == useful + stats.num_recomputed_tokens
    assert stats.num_recomputed_tokens > 0


def test_a_restored_sequence_computes_nothing_again() -> None:
    timed = TimedEngine(num_blocks=6, num_swap_blocks=8, caching=False, max_num_batched_tokens=64)
    timed.add("old", prompt(8, 2), max_tokens=12)
    timed.add("young", prompt(8, 5), max_tokens=12)
    timed.run()
    assert timed.core.stats().num_preemptions_swap > 0
    assert timed.core.stats().num_recomputed_tokens == 0


def test_each_choice_of_an_aborted_request_ends_once() -> None:
    timed = TimedEngine()
    timed.add("a", prompt(6), max_tokens=50, n=3)
    timed.add("b", prompt(6), max_tokens=2)
    for _ in range(4):
        timed.core.step()
    assert timed.core.abort("a")
    assert not timed.core.abort("a")
    timed.run()
    reasons = {key: life.reason for key, life in timed.lives.items()}
    assert reasons == {("a", 0): "abort", ("a", 1): "abort", ("a", 2): "abort", ("b", 0): "length"}


def test_abort_before_the_first_step() -> None:
    timed = TimedEngine()
    timed.add("a", prompt(6))
    timed.core.abort("a")
    life = timed.lives["a", 0]
    assert (life.reason, life.scheduled, life.prefill_s) == ("abort", None, None)
    assert life.queue_s >= 0
    assert not timed.core.has_work()


def test_a_request_that_the_engine_refuses_ends_as_an_error() -> None:
    timed = TimedEngine(num_blocks=4)
    with pytest.raises(RequestError):
        timed.add("huge", prompt(100), n=2)
    assert [life.reason for life in timed.lives.values()] == ["error", "error"]


def test_when_the_engine_dies_everything_ends_as_an_error() -> None:
    timed = TimedEngine()
    timed.add("a", prompt(6), max_tokens=50, n=2)
    timed.add("b", prompt(6), max_tokens=50)
    timed.core.step()
    timed.engine.runner.error = RuntimeError("broken")
    with pytest.raises(RuntimeError):
        timed.core.step()
    assert [life.reason for life in timed.lives.values()] == ["error"] * 3


def test_a_request_without_output_has_no_first_token() -> None:
    timed = TimedEngine()
    timed.add("a", prompt(6), max_tokens=0)
    timed.run()
    life = timed.lives["a", 0]
    assert (life.reason, life.num_output_tokens, life.ttft_s) == ("length", 0, None)


@given(
    st.lists(
        st.tuples(st.integers(1, 20), st.integers(0, 9), st.integers(1, 3), st.integers(0, 12)),
        min_size=1,
        max_size=6,
    )
)
def test_whatever_happens_every_choice_ends_once(
    requests: list[tuple[int, int, int, int]],
) -> None:
    """(prompt, max_tokens, n, step at which it is aborted)."""
    timed = TimedEngine(num_blocks=10, num_swap_blocks=4, max_num_batched_tokens=16, max_num_seqs=4)
    for index, (num_prompt, max_tokens, n, _) in enumerate(requests):
        timed.add(f"r{index}", prompt(num_prompt, index), max_tokens=max_tokens, n=n)
    for step in range(1000):
        for index, (*_, abort_at) in enumerate(requests):
            if step == abort_at:
                timed.core.abort(f"r{index}")
        if not timed.core.has_work():
            break
        timed.core.step()
    lives = timed.lives
    assert len(lives) == sum(n for _, _, n, _ in requests)
    for life in lives.values():
        assert_in_order(life)
    tokens = sum(life.num_output_tokens for life in lives.values())
    assert tokens == timed.core.stats().num_generation_tokens
    counted = [len(s.first_tokens) + sum(c for _, c in s.gaps) for s in timed.steps]
    assert sum(counted) == tokens
