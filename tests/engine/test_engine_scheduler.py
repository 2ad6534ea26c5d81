"""One step at a time: token budget, seats, order, chunks, and what is left for whom."""

from __future__ import annotations

import pytest
from helpers.fake_engine import FakeEngine, generate_alone

LONG = list(range(60))


def chunk_lengths(engine: FakeEngine) -> dict[str, int]:
    """Tokens of the last step by request."""
    lengths = [len(chunk.token_ids) for chunk in engine.last_plan.chunks]
    return dict(zip(engine.planned_ids(), lengths, strict=True))


def test_a_step_never_exceeds_the_token_budget() -> None:
    engine = FakeEngine(max_num_batched_tokens=16, max_num_seqs=8)
    for length in (40, 3, 25, 1, 17):
        engine.add(range(length), max_tokens=6)
    engine.run()
    sizes = [plan.num_tokens for plan in engine.runner.plans]
    assert max(sizes) == 16
    assert sum(sizes) == 40 + 3 + 25 + 1 + 17 + 5 * 5 - engine.core.stats().num_prefix_hit_tokens


def test_a_budget_smaller_than_the_running_set_still_finishes_everything() -> None:
    engine = FakeEngine(max_num_batched_tokens=2, max_num_seqs=8)
    ids = [engine.add([i, i + 1, i + 2], max_tokens=5) for i in range(6)]
    engine.run()
    assert max(plan.num_tokens for plan in engine.runner.plans) == 2
    for i, request_id in enumerate(ids):
        alone = generate_alone([i, i + 1, i + 2], max_tokens=5)[0]
        assert engine.results[request_id][0].token_ids == alone


def test_the_oldest_prompt_advances_even_where_decodes_could_take_the_whole_budget() -> None:
    engine = FakeEngine(policy="priority", max_num_batched_tokens=2, max_num_seqs=4)
    for _ in range(3):
        engine.add([1], max_tokens=50)
    for _ in range(3):
        engine.step()
    urgent = engine.add([1, 2, 3, 4], priority=-1, max_tokens=1)
    for _ in range(4):
        engine.step()
    assert engine.results[urgent][0].finish_reason == "length"
    engine.run()


def test_seats_are_never_exceeded_and_freed_seats_are_taken_next_step() -> None:
    engine = FakeEngine(max_num_seqs=2)
    engine.add([1], max_tokens=1)
    engine.add([2], max_tokens=9)
    engine.add([3], max_tokens=9)
    engine.step()
    assert engine.planned_ids() == ["r0", "r1"]
    engine.step()
    assert engine.planned_ids() == ["r1", "r2"]
    assert engine.core.stats().num_running == 2


def test_decodes_come_first_and_by_priority_then_arrival() -> None:
    engine = FakeEngine()
    engine.add([1], priority=1, max_tokens=9)
    engine.add([2], priority=0, max_tokens=9)
    engine.add([3], priority=0, max_tokens=9)
    engine.step()
    engine.add(LONG, priority=-1, max_tokens=9)
    engine.step()
    assert engine.planned_ids() == ["r1", "r2", "r0", "r3"]


def test_waiting_requests_are_admitted_by_priority_then_arrival() -> None:
    engine = FakeEngine(max_num_seqs=1)
    for priority in (5, 3, 5, 3, 0):
        engine.add([7], priority=priority, max_tokens=1)
    order = []
    while engine.core.has_work():
        engine.step()
        order += engine.planned_ids()
    assert order == ["r4", "r1", "r3", "r0", "r2"]


def test_a_long_prompt_is_spread_over_steps_beside_running_decodes() -> None:
    engine = FakeEngine(max_num_batched_tokens=16)
    engine.add([1], max_tokens=20)
    engine.step()
    engine.add(LONG, max_tokens=1)
    for _ in range(4):
        engine.step()
        assert chunk_lengths(engine) == {"r0": 1, "r1": 15}
    engine.run()


def test_a_short_prompt_behind_a_long_one_is_served_at_once() -> None:
    """CON-12: the budget is shared between prompts; the gap of the decodes is one step."""
    engine = FakeEngine(num_blocks=256, max_num_batched_tokens=64, max_num_seqs=8)
    for i in range(4):
        engine.add([i], max_tokens=100)
    engine.step()
    long = engine.add(range(90), max_tokens=1)
    other = engine.add(range(100, 10, -1), max_tokens=1)
    short = engine.add([5] * 10, max_tokens=1)
    engine.step()
    assert engine.results[short][0].finish_reason == "length"
    lengths = chunk_lengths(engine)
    assert lengths[long] > lengths[other] > 0, "the older prompt keeps the larger share"
    assert engine.last_plan.num_tokens == 64, "nothing of the budget is wasted"
    for i in range(4):
        assert len(engine.results[f"r{i}"][0].token_ids) == 2


def test_a_prompt_alone_takes_the_whole_budget() -> None:
    engine = FakeEngine(max_num_batched_tokens=32)
    engine.add(LONG, max_tokens=1)
    engine.step()
    assert chunk_lengths(engine) == {"r0": 32}
    engine.step()
    assert chunk_lengths(engine) == {"r0": 28}


def test_prompts_beside_decodes_get_few_tokens_in_all_however_many_they_are() -> None:
    engine = FakeEngine(max_num_batched_tokens=64, chunked_prefill_size=32, max_num_seqs=8)
    engine.add([1], max_tokens=40)
    engine.step()
    for prompt in (LONG, [2] * 8, [3] * 8, [4] * 8):
        engine.add(prompt, max_tokens=1)
    engine.step()
    assert chunk_lengths(engine) == {"r0": 1, "r1": 16, "r2": 8, "r3": 8}
    engine.run()
    assert max(plan.num_tokens for plan in engine.runner.plans) == 1 + 32
    num_tokens = sum(plan.num_tokens for plan in engine.runner.plans)
    assert engine.core.stats().num_scheduled_tokens == num_tokens


def test_prompts_take_the_whole_budget_again_once_nothing_decodes() -> None:
    engine = FakeEngine(max_num_batched_tokens=32, chunked_prefill_size=4, max_num_seqs=2)
    engine.add([1], max_tokens=3)
    engine.step()
    engine.add(LONG, max_tokens=1)
    taken = []
    for _ in range(4):
        engine.step()
        taken.append(chunk_lengths(engine)["r1"])
    assert taken == [4, 4, 32, 20]


def test_a_whole_prompt_runs_beside_decodes_but_only_the_first() -> None:
    engine = FakeEngine(
        max_num_batched_tokens=64, chunked_prefill_size=8, enable_chunked_prefill=False
    )
    engine.add([1], max_tokens=20)
    engine.step()
    for prompt in ([2] * 30, [3] * 5, [4] * 5):
        engine.add(prompt, max_tokens=1)
    for expected in ({"r1": 30}, {"r2": 5}, {"r3": 5}):
        engine.step()
        assert chunk_lengths(engine) == {"r0": 1, **expected}


def test_without_chunking_a_prompt_runs_whole_even_over_the_budget() -> None:
    engine = FakeEngine(max_num_batched_tokens=16, enable_chunked_prefill=False)
    engine.add([1], max_tokens=20)
    engine.step()
    for prompt in (LONG, [2] * 8, [3] * 8, [4] * 8):
        engine.add(prompt, max_tokens=1)
    engine.step()
    assert chunk_lengths(engine) == {"r0": 1, "r1": 60}
    engine.step()
    assert chunk_lengths(engine) == {"r0": 1, "r2": 8}, "a second prompt only within the budget"
    engine.step()
    assert chunk_lengths(engine) == {"r0": 1, "r3": 8}
    engine.run()
    for plan in engine.runner.plans:
        for chunk in plan.chunks:
            assert chunk.num_logits == 1, "no prompt was split"


def test_unchunked_prompts_that_fit_share_a_step() -> None:
    engine = FakeEngine(max_num_batched_tokens=16, enable_chunked_prefill=False)
    for token in range(5):
        engine.add([token] * 5, max_tokens=1)
    engine.step()
    assert engine.planned_ids() == ["r0", "r1", "r2"]
    assert engine.status("r4") == "waiting", "nobody is admitted past the budget"


@pytest.mark.parametrize("chunked", [True, False])
def test_only_chunks_that_complete_what_is_known_yield_logits(chunked: bool) -> None:
    engine = FakeEngine(max_num_batched_tokens=16, enable_chunked_prefill=chunked)
    engine.add(range(40), max_tokens=3)
    engine.run()
    chunks = [chunk for plan in engine.runner.plans for chunk in plan.chunks]
    prompt = [0, 0, 1] if chunked else [1]
    assert [chunk.num_logits for chunk in chunks] == [*prompt, 1, 1]


def test_prompts_wait_while_the_pool_has_no_room_for_all_of_them() -> None:
    engine = FakeEngine(num_blocks=10, caching=False)
    engine.add([1] * 20, max_tokens=4)
    engine.add([2] * 20, max_tokens=4)  # its five blocks would leave none free
    engine.step()
    assert engine.planned_ids() == ["r0"]
    engine.run()
    assert engine.core.stats().num_preemptions_swap == 0
    assert engine.core.stats().num_preemptions_recompute == 0


def test_a_prompt_that_needs_the_whole_pool_runs_when_it_is_alone() -> None:
    engine = FakeEngine(num_blocks=10)
    engine.add([1], max_tokens=4)
    engine.add(range(40), max_tokens=1)
    engine.run()
    assert engine.results["r1"][0].token_ids == generate_alone(range(40), max_tokens=1)[0]


def test_the_guard_raises_where_nothing_can_be_planned() -> None:
    engine = FakeEngine(num_blocks=4)
    engine.add([1] * 8, max_tokens=2)
    engine.kv._allocator._free.clear()  # a leak, as if a bug had lost every block
    with pytest.raises(RuntimeError, match="stuck"):
        engine.core.step()


def test_an_idle_engine_plans_nothing() -> None:
    engine = FakeEngine()
    assert not engine.core.has_work()
    assert engine.core.step() == []
    assert engine.runner.plans == []


def test_scheduling_does_not_search_through_those_who_wait() -> None:
    """The work of a step is the same beside ten and beside ten thousand waiting requests."""

    def comparisons(num_waiting: int) -> int:
        engine = FakeEngine(num_blocks=1000, max_num_seqs=4)
        for i in range(4 + num_waiting):
            engine.add([i % 90], max_tokens=1000 if i < 4 else 1)
        engine.step()
        count = 0

        class Order(tuple):  # type: ignore[type-arg]
            def __lt__(self, other: object) -> bool:
                nonlocal count
                count += 1
                return tuple(self) < tuple(other)  # type: ignore[arg-type]

        for job in engine.core._jobs.values():
            for seq in job.sequences:
                seq.order = Order(seq.order)
        for _ in range(20):
            engine.core.step()
        return count

    assert comparisons(2000) == comparisons(10)
