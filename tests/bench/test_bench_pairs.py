"""Plain and drafting engines side by side: the comparison is fair, and its intervals are true."""

from __future__ import annotations

import json
import math
import random
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tinyserve.bench import spec_pairs
from tinyserve.bench.spec_bench import main
from tinyserve.bench.spec_pairs import Cost, Pair, halves, median_interval, summary
from tinyserve.config import CacheConfig
from tinyserve.engine.request import EngineRequest, RequestOutput
from tinyserve.kv.block_table import BlockTable

LENGTH = 200


@dataclass
class Machine:
    """One clock for all, and how slow everything is at a time."""

    now: float = 0.0
    slowness: Any = lambda now: 1.0


@dataclass
class FakeCore:
    """Says the numbers of its steps to every stream; a step takes `cost` of the machine's time."""

    machine: Machine
    cost: float
    turns: list[str] = field(default_factory=list)
    name: str = ""
    lap: Any = None
    said: dict[str, int] = field(default_factory=dict)

    def add_request(self, request: EngineRequest) -> None:
        self.said[request.request_id] = 0

    def abort(self, request_id: str) -> bool:
        return self.said.pop(request_id, None) is not None

    def step(self) -> list[RequestOutput]:
        self.turns.append(self.name)
        self.machine.now += self.cost * self.machine.slowness(self.machine.now)
        outputs = []
        for request_id in list(self.said):
            number = self.said[request_id] = self.said[request_id] + 1
            output = RequestOutput(request_id, 0, [number], "", 1, 0)
            if number == LENGTH:
                output.finish_reason = "length"
                del self.said[request_id]
            outputs.append(output)
        return outputs


def batches(streams: int = 2) -> Iterator[list[EngineRequest]]:
    while True:
        yield [EngineRequest(request_id=str(i), prompt_token_ids=(1,)) for i in range(streams)]


def fakes(
    monkeypatch: pytest.MonkeyPatch, plain: float, drafted: float, slowness: Any
) -> tuple[FakeCore, FakeCore]:
    machine = Machine(slowness=slowness)
    clock = SimpleNamespace(perf_counter=lambda: machine.now, process_time=lambda: 2 * machine.now)
    monkeypatch.setattr(spec_pairs, "time", clock)
    turns: list[str] = []
    return FakeCore(machine, plain, turns, "A"), FakeCore(machine, drafted, turns, "B")


def test_a_machine_that_becomes_slower_slows_both(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three times as fast at one end of a pair as at the other, and three times slower at times."""

    def slowness(now: float) -> float:
        return (2 + math.sin(now)) * (3 if now % 100 > 50 else 1)

    plain, drafted = fakes(monkeypatch, 0.03, 0.03 * 1.02, slowness)
    found: Any = spec_pairs.measure(plain, drafted, batches(), 60)  # type: ignore[arg-type]
    assert len(found.pairs) == 60
    told = summary(found.pairs)
    assert told["speedup"] == pytest.approx(1 / 1.02, abs=0.003)
    assert told["cpu"]["speedup"] == pytest.approx(1 / 1.02, abs=0.003)
    low, high = told["interval"]
    assert 0.97 < low <= told["speedup"] <= high < 0.99
    assert statistics.pstdev(pair.plain.wall_s for pair in found.pairs) > 1.0, "not still machine"


def test_turns_are_short_and_come_in_an_order_that_favours_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain, drafted = fakes(monkeypatch, 1.0, 1.0, lambda now: 1.0)
    spec_pairs.measure(plain, drafted, batches(), 1)  # type: ignore[arg-type]
    turns = "".join(plain.turns[2:])  # after the first tokens
    size = spec_pairs.SLICE
    assert turns == ("A" * size + "B" * size + "B" * size + "A" * size) * (
        spec_pairs.PAIR // size // 2
    )


def test_only_whole_pairs_count(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, drafted = fakes(monkeypatch, 1.0, 2.0, lambda now: 1.0)
    found: Any = spec_pairs.measure(plain, drafted, batches(3), 8)  # type: ignore[arg-type]
    assert (LENGTH - 1) // spec_pairs.PAIR == 6, "so that the eight need two batches"
    assert {pair.plain.tokens for pair in found.pairs} == {3 * spec_pairs.PAIR}
    assert {pair.wall for pair in found.pairs} == {0.5}
    assert found.is_identical


def test_a_difference_between_the_outputs_is_seen() -> None:
    def side(*tokens: int) -> Any:
        return SimpleNamespace(said={"0": list(tokens)})

    assert spec_pairs.agree(side(1, 2, 3), side(1, 2))
    assert not spec_pairs.agree(side(1, 2, 3), side(1, 9))


def test_the_two_share_no_block() -> None:
    first, second = halves(CacheConfig(num_blocks=20, block_size=4))
    tables = BlockTable(), BlockTable()
    for kv, table in zip((first, second), tables, strict=True):
        assert kv.num_available == 10
        assert kv.open(table, list(range(40))) == 0
    assert set(tables[0].blocks) | set(tables[1].blocks) == set(range(20))


def test_totals_by_hand() -> None:
    pairs = [
        Pair(Cost(10, 1.0, 2.0), Cost(10, 2.0, 2.0)),
        Pair(Cost(10, 3.0, 4.0), Cost(20, 2.0, 4.0)),
    ]
    assert [pair.wall for pair in pairs] == [0.5, 3.0]
    told = summary(pairs)
    assert told["speedup"] == 1.75
    assert told["total"] == (30 / 4) / (20 / 4)
    assert told["cpu"]["speedup"] == 1.5
    assert told["interval"] is None
    assert (told["plain_tok_s"], told["tok_s"]) == (5.0, 7.5)


def test_intervals_by_hand() -> None:
    assert median_interval([1, 2, 3, 4, 5]) is None  # all on one side: 2 / 32
    assert median_interval([6, 5, 4, 3, 2, 1]) == [1, 6]  # 2 / 64
    assert median_interval(range(1, 11)) == [2, 9]  # 2 (1 + 10) / 1024
    assert median_interval([]) is None


@pytest.mark.parametrize("count", [6, 11, 40])
def test_intervals_hold_the_true_median_as_often_as_they_say(count: int) -> None:
    """A skewed distribution with median 1. By 2,000 trials, 95 % less five standard errors."""
    dice = random.Random(count)
    hits = 0
    for _ in range(2000):
        found = median_interval([dice.lognormvariate(0.0, 1.0) for _ in range(count)])
        assert found is not None
        hits += found[0] <= 1.0 <= found[1]
    assert hits >= 2000 * 0.95 - 5 * (2000 * 0.05 * 0.95) ** 0.5


def test_a_whole_run_in_pairs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Drafts that are never right and drafts that are, on the tiny model: the same bits."""
    out = tmp_path / "pairs.json"
    options = ["--proposers", "random,ngram", "--workloads", "code", "--k", "3", "--streams", "2"]
    options += ["--temperatures", "0", "--control", "off", "--new", "140", "--pairs", "2"]
    main([*options, "--out", str(out)])
    result = json.loads(out.read_text())
    assert result["command"].endswith("--pairs 2")
    wrong, right = result["cases"]
    for case in (wrong, right):
        assert case["is_identical"]
        assert case["speedup"] == statistics.median(case["speedups"]) > 0
        assert len(case["speedups"]) == 2
        assert case["cpu"]["total"] > 0
    assert wrong["acceptance"] < 0.1
    assert wrong["tokens_per_step"] < 1.2
    assert right["acceptance"] > 0.3
    assert "| code | random | 3 | 0 | 2 | off |" in capsys.readouterr().out


def test_texts_that_are_too_short_for_a_pair() -> None:
    options = ["--proposers", "random", "--workloads", "code", "--k", "1", "--streams", "1"]
    with pytest.raises(SystemExit, match="--new 20: the texts are too short for 32 steps"):
        main([*options, "--temperatures", "0", "--new", "20", "--pairs", "1"])


def test_the_oracle_needs_rounds() -> None:
    with pytest.raises(SystemExit, match="no --pairs"):
        main(["--proposers", "oracle", "--pairs", "1"])
