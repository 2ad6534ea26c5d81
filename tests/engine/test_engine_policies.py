"""The four policies: who is admitted next, and who may displace whom."""

from __future__ import annotations

from helpers.fake_engine import FakeEngine, generate_alone

from tinyserve.engine.policies import FairPolicy


def run_order(engine: FakeEngine) -> list[str]:
    """Requests in the order in which they first ran."""
    order: dict[str, None] = {}
    while engine.core.has_work():
        engine.step()
        order |= dict.fromkeys(engine.planned_ids())
    return list(order)


def test_static_batches_admit_nobody_until_all_have_finished() -> None:
    engine = FakeEngine(policy="static", max_num_seqs=2)
    for max_tokens in (1, 5, 2, 2):
        engine.add([1], max_tokens=max_tokens)
    running = []
    while engine.core.has_work():
        engine.step()
        running.append(engine.planned_ids())
    assert running == [["r0", "r1"], *[["r1"]] * 4, *[["r2", "r3"]] * 2]


def test_a_static_batch_is_closed_to_those_who_come_later() -> None:
    engine = FakeEngine(policy="static", max_num_seqs=4)
    engine.add([1], max_tokens=3)
    engine.step()
    engine.add([2], max_tokens=1)
    for expected in (["r0"], ["r0"], ["r1"]):
        engine.step()
        assert engine.planned_ids() == expected


def test_a_static_batch_fills_its_seats_over_several_steps() -> None:
    """Prompts that do not fit one step's budget still belong to one batch."""
    engine = FakeEngine(policy="static", max_num_seqs=3, max_num_batched_tokens=16)
    for token in range(4):
        engine.add([token] * 30, max_tokens=30)
    order = run_order(engine)
    assert order == ["r0", "r1", "r2", "r3"]
    first_of_r3 = next(
        index
        for index, plan in enumerate(engine.runner.plans)
        if any(chunk.seq_id == 3 for chunk in plan.chunks)
    )
    before = {chunk.seq_id for plan in engine.runner.plans[:first_of_r3] for chunk in plan.chunks}
    assert before == {0, 1, 2}
    later = {chunk.seq_id for plan in engine.runner.plans[first_of_r3:] for chunk in plan.chunks}
    assert later == {3}


def test_static_forks_take_the_seats_of_their_batch() -> None:
    engine = FakeEngine(policy="static", max_num_seqs=3)
    engine.add([1, 2, 3], n=4, temperature=1.0, seed=7, max_tokens=4)
    engine.run()
    tokens = [choice.token_ids for choice in engine.results["r0"]]
    assert tokens == generate_alone([1, 2, 3], n=4, temperature=1.0, seed=7, max_tokens=4)
    engine.assert_empty()


def test_the_seat_of_a_finished_static_member_is_not_given_to_a_fork() -> None:
    engine = FakeEngine(policy="static", max_num_seqs=2, max_num_batched_tokens=16)
    engine.add([1], max_tokens=1)
    engine.add(range(40), n=2, max_tokens=3)
    while engine.core.has_work():
        engine.step()
        assert engine.planned_ids().count("r1") <= 1, "the second choice is of the next batch"
    assert engine.results["r1"][1].token_ids == generate_alone(range(40), max_tokens=3)[0]


def test_static_members_that_were_preempted_come_back_within_their_batch() -> None:
    engine = FakeEngine(policy="static", max_num_seqs=3, num_blocks=8)
    for token in range(5):
        engine.add([token] * 6, max_tokens=12)
    engine.run()
    assert engine.core.stats().num_preemptions_recompute
    for token in range(5):
        alone = generate_alone([token] * 6, max_tokens=12)[0]
        assert engine.results[f"r{token}"][0].token_ids == alone


def test_continuous_never_takes_a_seat_away() -> None:
    engine = FakeEngine(policy="continuous", max_num_seqs=1)
    engine.add([1], priority=10, max_tokens=6)
    engine.step()
    engine.add([2], priority=0, max_tokens=1)
    assert run_order(engine) == ["r0", "r1"]
    assert engine.core.stats().num_preemptions_swap == 0


def test_priority_takes_a_seat_from_a_lower_priority() -> None:
    """CON-11: two long low-priority requests hold both seats; the urgent one starts at once."""
    for num_swap_blocks in (0, 16):
        engine = FakeEngine(policy="priority", max_num_seqs=2, num_swap_blocks=num_swap_blocks)
        engine.add([1, 1], priority=10, max_tokens=20)
        engine.add([2, 2], priority=10, max_tokens=20)
        for _ in range(3):
            engine.step()
        engine.add([3, 3], priority=0, max_tokens=3)
        engine.step()
        assert engine.planned_ids() == ["r0", "r2"], "the youngest of the lowest gives way"
        assert engine.status("r1") == ("swapped" if num_swap_blocks else "waiting")
        engine.run()
        for i, (token, length) in enumerate(((1, 20), (2, 20), (3, 3))):
            alone = generate_alone([token] * 2, max_tokens=length)[0]
            assert engine.results[f"r{i}"][0].token_ids == alone
        engine.assert_empty()


def test_priority_takes_blocks_from_a_lower_priority() -> None:
    engine = FakeEngine(policy="priority", num_blocks=10, num_swap_blocks=10, max_num_seqs=4)
    engine.add([1] * 20, priority=1, max_tokens=8)
    engine.step()
    engine.add([2] * 20, priority=0, max_tokens=8)
    engine.step()
    assert engine.planned_ids() == ["r1"]
    engine.run()
    assert engine.results["r0"][0].token_ids == generate_alone([1] * 20, max_tokens=8)[0]


def test_equal_priorities_do_not_displace_each_other() -> None:
    engine = FakeEngine(policy="priority", max_num_seqs=1)
    engine.add([1], priority=1, max_tokens=5)
    engine.step()
    engine.add([2], priority=1, max_tokens=1)
    assert run_order(engine) == ["r0", "r1"]


def test_the_displaced_keep_their_arrival_time() -> None:
    """They come back before later requests of the same priority."""
    engine = FakeEngine(policy="priority", max_num_seqs=1, num_swap_blocks=8)
    engine.add([1], priority=5, max_tokens=6)
    engine.step()
    engine.add([2], priority=5, max_tokens=1)
    engine.add([3], priority=0, max_tokens=2)
    finished = []
    while engine.core.has_work():
        finished += [output.request_id for output in engine.step() if output.finish_reason]
    assert finished == ["r2", "r0", "r1"]


def test_an_urgent_newcomer_is_not_held_up_by_a_preempted_request() -> None:
    """What was swapped out and cannot come back yet must not block a strictly higher priority."""
    engine = FakeEngine(num_blocks=8, num_swap_blocks=8, max_num_seqs=3)
    engine.add([1] * 8, priority=1, max_tokens=20)
    engine.add([2] * 12, priority=1, max_tokens=16)
    while engine.status("r1") != "swapped":
        engine.step()
    engine.add([3], priority=0, max_tokens=1)
    engine.step()
    assert "r2" in engine.planned_ids()
    engine.run()


def test_fair_serves_the_client_that_was_served_least() -> None:
    """One client's hundred requests do not delay another's by more than one of its own."""
    engine = FakeEngine(policy="fair", max_num_seqs=1)
    for _ in range(100):
        engine.add([1, 2], client="greedy", max_tokens=3)
    for _ in range(5):
        engine.step()
    engine.add([3, 4], client="modest", request_id="modest", max_tokens=3)
    assert run_order(engine).index("modest") <= 2


def test_fair_balances_tokens_and_not_requests() -> None:
    engine = FakeEngine(policy="fair", max_num_seqs=1, max_num_batched_tokens=64)
    for i in range(10):
        engine.add(range(40), client="long", request_id=f"long{i}", max_tokens=1, cache_salt=f"{i}")
        engine.add([i], client="short", request_id=f"short{i}", max_tokens=1)
    order = run_order(engine)
    assert order[0] == "long0"
    assert order[1:11] == [f"short{i}" for i in range(10)]


def test_fair_counts_output_more_than_input_and_hits_not_at_all() -> None:
    engine = FakeEngine(policy="fair")
    engine.generate([1] * 9, client="a", max_tokens=4)
    policy = engine.core._scheduler._policy
    assert isinstance(policy, FairPolicy)
    assert policy._served["a"] == 9 + 3 * FairPolicy.OUTPUT_WEIGHT  # the last token is not computed
    engine.generate([1] * 9, client="b", max_tokens=4)
    assert policy._served["b"] - policy._served["a"] == 1 + 3 * FairPolicy.OUTPUT_WEIGHT  # lifted


def test_fair_gives_no_credit_for_absence() -> None:
    engine = FakeEngine(policy="fair", max_num_seqs=1)
    engine.generate([7], client="absent", max_tokens=1)
    for _ in range(20):
        engine.generate([1, 2], client="busy", max_tokens=5)
    for i in range(6):
        engine.add([3], client="busy", request_id=f"busy{i}", max_tokens=1)
        engine.add([4], client="absent", request_id=f"absent{i}", max_tokens=1)
    order = run_order(engine)
    assert {"busy0", "busy1", "busy2"} & set(order[:6]), (
        "the absent one does not go six times first"
    )


def test_fair_within_a_client_goes_by_priority_then_arrival() -> None:
    engine = FakeEngine(policy="fair", max_num_seqs=1)
    for priority in (1, 1, 0):
        engine.add([1], client="a", priority=priority, max_tokens=1)
    assert run_order(engine) == ["r2", "r0", "r1"]


def test_fair_forgets_clients_that_left_long_ago() -> None:
    engine = FakeEngine(policy="fair", max_num_seqs=1)
    policy = engine.core._scheduler._policy
    assert isinstance(policy, FairPolicy)
    policy.MAX_CLIENTS = 3  # type: ignore[misc]
    for i in range(20):
        engine.generate([1], client=f"c{i}", max_tokens=1)
    assert len(policy._served) <= 4
    assert not policy._lines


def test_every_policy_gives_the_same_tokens() -> None:
    outputs = []
    for policy in ("continuous", "static", "priority", "fair"):
        engine = FakeEngine(policy=policy, num_blocks=16, num_swap_blocks=10, max_num_seqs=3)
        for i in range(12):
            engine.add(
                [i] * (3 * i + 1),
                priority=i % 3,
                client=str(i % 2),
                max_tokens=8,
                temperature=1.0,
                seed=i,
            )
        engine.run()
        outputs.append([engine.results[f"r{i}"][0].token_ids for i in range(12)])
        engine.assert_empty()
    assert outputs == [outputs[0]] * 4
