"""Replays and simulations run the real scheduler."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.fake_service import make_engine

from tinyserve.bench.latency import Record, keeps_up, summary
from tinyserve.bench.replay import VirtualClock, replay, replay_conversations
from tinyserve.bench.simulate import (
    Fleet,
    StepModel,
    by_prefix,
    least_loaded,
    round_robin,
    simulated_core,
)
from tinyserve.bench.sweep_pareto import main as sweep
from tinyserve.bench.sweep_pareto import options
from tinyserve.bench.sweep_pareto import sweep as sweep_points
from tinyserve.bench.workload import Arrival, Shape, Span, agent_turns
from tinyserve.config import CacheConfig, SchedulerConfig
from tinyserve.engine.core import EngineCore
from tinyserve.engine.plan import Chunk, StepPlan

TIMES = StepModel(sizes=(1, 16, 512), seconds=(0.01, 0.02, 0.5), per_draw=0.001, per_context=1e-6)


def core(clock: VirtualClock, policy: str = "continuous") -> EngineCore:
    scheduler = SchedulerConfig(max_num_seqs=4, policy=policy)
    return simulated_core(TIMES, clock, scheduler, CacheConfig(num_blocks=256))


def test_every_token_of_a_replay_is_stamped() -> None:
    engine = make_engine()
    workload = Shape(12, 1000.0, Span(4, 20), Span(1, 9)).make(0)
    records = replay(engine.core, workload)
    assert [len(r.token_times) for r in records] == [a.max_tokens for a in workload]
    assert all(r.token_times == sorted(r.token_times) for r in records)
    assert all(r.ttft >= 0 for r in records)


def test_the_most_that_a_scheduler_could_reach_by_hand() -> None:
    """16 seats: a step takes 20 + 15 + 16 * 0.001 * 60 ms; ten more tokens of a prompt about 10."""
    step = 0.02 + 15 * 0.001 + 16 * 1e-6 * (50 + 10)
    chunk = (0.5 - 0.02) / 496 * 10 + 1e-6 * 10 * 25
    want = 20 / (20 * step / 16 + 5 * chunk)
    assert TIMES.most_tok_s(16, 50, 20, 10) == pytest.approx(want)


def test_step_times_by_hand() -> None:
    def seconds(tokens: int, start: int = 0, logits: int = 1) -> float:
        return TIMES.of(StepPlan((Chunk(0, start, (1,) * tokens, (), logits),)))

    assert seconds(1) == pytest.approx(0.01, abs=1e-5)
    assert seconds(16, logits=3) == pytest.approx(0.022 + 16 * 8e-6)
    assert seconds(264) == pytest.approx(0.26 + 264 * 132e-6)
    assert seconds(1, start=1000) - seconds(1) == pytest.approx(0.001)
    assert TIMES.of(StepPlan(())) == 0.0


def test_step_times_are_measured_and_saved(tmp_path: Path) -> None:
    engine = make_engine()
    measured = StepModel.measure(engine.core.runner, 4, 64, repeat=1)
    assert measured.sizes == (1, 2, 4, 8, 16, 32, 64, 128, 256)
    assert min(measured.seconds) > 0
    measured.save(tmp_path / "t.json", model="fake")
    assert StepModel.load(tmp_path / "t.json") == measured


def test_a_simulation_can_have_the_step_times_of_another(tmp_path: Path) -> None:
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    arguments = ["--size", "tiny", "--rates", "50", "--num-requests", "4", "--simulate"]
    sweep([*arguments, "--out", str(first)])
    sweep([*arguments, "--step-times", str(first), "--out", str(second)])
    a, b = (json.loads(path.read_text()) for path in (first, second))
    assert a["step_times"] == b["step_times"]
    assert a["points"] == b["points"]
    assert b["command"].endswith("--step-times first.json")


def test_smaller_chunks_of_prompts_bring_the_tokens_of_others_sooner(tmp_path: Path) -> None:
    times, out = tmp_path / "times.json", tmp_path / "out.json"
    StepModel((1, 512), (0.01, 0.6), per_draw=0.0, per_context=0.0).save(times)
    arguments = ["--rates", "8", "--policies", "continuous", "--simulate"]
    arguments += ["--step-times", str(times), "--out", str(out)]
    gaps = []
    for size in ("16", "128"):
        sweep([*arguments, "--chunked-prefill-size", size])
        gaps.append(json.loads(out.read_text())["points"][0]["inter_token_s"]["p99"])
    assert gaps[0] < gaps[1]


def test_virtual_time_is_the_same_every_time() -> None:
    workload = Shape(30, 20.0).make(3)
    runs = [replay(core(clock), workload, clock) for clock in (VirtualClock(), VirtualClock())]
    assert [r.token_times for r in runs[0]] == [r.token_times for r in runs[1]]


def test_continuous_batching_beats_static_in_simulation() -> None:
    workload = Shape(60, 8.0, output=Span(4, 64)).make(0)
    found = {}
    for policy in ("static", "continuous"):
        clock = VirtualClock()
        found[policy] = summary(replay(core(clock, policy), workload, clock))
    assert found["continuous"]["output_tok_s"] > found["static"]["output_tok_s"]
    assert found["continuous"]["ttft_s"]["p99"] < found["static"]["ttft_s"]["p99"]


def test_conversations_find_their_history_in_the_cache() -> None:
    clock = VirtualClock()
    chats = agent_turns(2, 4, Shape(0, 1.0), 0)
    records = replay_conversations(core(clock), chats, clock)
    assert len(records) == 8
    assert sum(r.cached_tokens > 0 for r in records) == 6  # every turn but the two first


def test_a_fleet_does_all_requests_and_shares_them_out() -> None:
    workload = Shape(200, 400.0).make(1)
    for route in (least_loaded, round_robin()):
        fleet = Fleet(core, 10)
        records = fleet.run(workload, route)
        assert sum(len(r.token_times) for r in records) == sum(a.max_tokens for a in workload)
        counts = [len(replica.records) for replica in fleet.replicas]
        assert min(counts) >= 10


def test_more_replicas_wait_less() -> None:
    workload = Shape(100, 50.0).make(1)
    few, many = (
        summary(Fleet(core, count).run(workload, least_loaded))["ttft_s"]["p99"]
        for count in (2, 20)
    )
    assert many < few


def test_a_router_by_prefix_keeps_conversations_together() -> None:
    prefix = tuple(range(64))
    workload = [Arrival(0.1 * i, (*prefix, i), 2) for i in range(20)]
    fleet = Fleet(core, 8)
    fleet.run(workload, by_prefix)
    assert sorted(len(replica.records) for replica in fleet.replicas) == [0] * 7 + [20]


def test_no_rate_and_no_round_has_prompts_of_another() -> None:
    """Every policy sees the same requests in a round; the prefix cache has not seen them before."""
    args = options().parse_args(["--rates", "20,40", "--num-requests", "8", "--repeat", "2"])
    engines = {name: make_engine().core for name in ("static", "continuous")}
    seen: list[tuple[str, list[Arrival]]] = []

    def run(name: str, workload: list[Arrival]) -> list[Record]:
        seen.append((name, workload))
        short = [replace(a, prompt_ids=a.prompt_ids[:20], max_tokens=2, at=0.0) for a in workload]
        return replay(engines[name], short)

    points = list(sweep_points(args, list(engines), run))
    assert [name for name, _ in seen] == ["static", "continuous"] * 4
    assert all(a[1] == b[1] for a, b in zip(seen[::2], seen[1::2], strict=True))
    prompts = [arrival.prompt_ids[:16] for _, workload in seen[::2] for arrival in workload]
    assert len(set(prompts)) == len(prompts) == 2 * 2 * 8
    assert [point["cached_tokens"] for point in points] == [0] * 4
    assert [len(point["rounds"]) for point in points] == [2] * 4


@pytest.mark.parametrize("count", [60, 600])
def test_a_policy_keeps_up_until_it_is_saturated(count: int) -> None:
    """Four seats of 40 tokens in steps of 0.01 s and more: about seven requests a second."""
    for rate, is_kept in ((2.0, True), (4.0, True), (12.0, False), (20.0, False)):
        clock = VirtualClock()
        workload = Shape(count, rate, Span(16, 32), Span(40, 40)).make(1)
        assert keeps_up(summary(replay(core(clock), workload, clock))) is is_kept, rate


@pytest.mark.parametrize("simulate", [False, True])
def test_the_sweep_runs_and_writes_its_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], simulate: bool
) -> None:
    out = tmp_path / "new folder" / "result.json"
    arguments = ["--size", "tiny", "--rates", "50,100", "--num-requests", "6", "--out", str(out)]
    extra = ["--simulate"] if simulate else ["--policies", "static,continuous"]
    sweep([*arguments, *extra])
    result = json.loads(out.read_text())
    assert [(p["rate"], p["policy"]) for p in result["points"]] == [
        (rate, policy) for rate in (50.0, 100.0) for policy in ("static", "continuous")
    ]
    assert all(p["failed"] == 0 for p in result["points"])
    assert str(tmp_path) not in out.read_text()
    assert "| 50 | static |" in capsys.readouterr().out


def test_answers_of_one_token_have_no_gaps(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot, times = tmp_path / "p.png", tmp_path / "times.json"
    arguments = ["--size", "tiny", "--simulate", "--rates", "100", "--num-requests", "4"]
    arguments += ["--output", "1", "--step-times", str(times), "--plot", str(plot)]
    TIMES.save(times)
    sweep(arguments)
    assert plot.stat().st_size
