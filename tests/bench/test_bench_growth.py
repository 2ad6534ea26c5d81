"""The growth benchmark: steps that are counted right, and memory and start-up seen from outside."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.fake_service import make_engine

from tinyserve.bench import growth, plots
from tinyserve.bench.growth import decode_steps, pairs_of
from tinyserve.bench.growth_tables import memory_table, start_table


def test_each_step_decodes_every_stream() -> None:
    core = make_engine().core
    before = core.stats()
    assert len(list(decode_steps(core, 3, 12, 4, 0))) == 4
    after = core.stats()
    assert after.num_generation_tokens - before.num_generation_tokens == 3 * 5
    assert not core.has_work()


def test_each_pair_is_measured_once() -> None:
    args = growth.options().parse_args(
        ["--streams", "1,8", "--contexts", "64,256", "--long-streams", "1,4"]
    )
    assert pairs_of(args) == [(1, 64), (8, 64), (1, 256), (4, 64), (4, 256)]


def test_steps_and_memory_of_a_small_model(tmp_path: Path) -> None:
    out = tmp_path / "growth.json"
    growth.main(
        [
            *("--size", "tiny", "--parts", "steps,rows,memory", "--streams", "1,3", "--steps", "3"),
            *("--contexts", "16,32", "--long-streams", "1", "--repeat", "1", "--rows", "1,3"),
            *("--num-requests", "40", "--out", str(out)),
        ]
    )
    result = json.loads(out.read_text())
    assert str(tmp_path) not in out.read_text()
    assert [(x["streams"], x["context"]) for x in result["steps"]] == [(1, 16), (3, 16), (1, 32)]
    assert [(x["rows"], x["context"]) for x in result["rows"]] == [(1, 16), (3, 16)]
    assert all(line["ms"] > 0 for line in result["steps"] + result["rows"])
    samples = result["memory"]["samples"]
    assert [done for done, _ in samples] == list(range(41))
    assert samples[-1][1] > 10


def test_tables_by_hand() -> None:
    samples = [[i, 100.0 + i] for i in range(11)]
    assert "| 10 | 110 |" in memory_table({"samples": samples, "growth_kib_per_1000": 1.0})
    found = {"weights": 80 << 20, "kv_cache": 20 << 20, "baseline": 40 << 20}
    found |= {"resident": 160 << 20, "ratio": 1.2}
    shown = start_table({"start": {"seconds": [0.5, 0.7, 0.6]}, "resident": found})
    assert "median of 3 | 0.60 s |" in shown
    assert "| weights, packed | 80 MiB |" in shown
    assert "1.20x" in shown


def test_the_plot_shows_the_limit_where_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    drawn: list[Any] = []
    monkeypatch.setattr(plots, "save", lambda figure, path: drawn.append(figure))
    lines: list[dict[str, Any]] = [
        {"streams": s, "context": c, "ms": 8.0 * s} for s, c in ((1, 64), (4, 64), (1, 256))
    ]
    plots.growth({"model": "m", "steps": lines}, "")
    plots.growth({"model": "m", "steps": [{**x, "limit_ms": 5.0} for x in lines]}, "")
    labels = [[line.get_label() for axis in f.axes for line in axis.lines] for f in drawn]
    assert set(labels[1]) - set(labels[0]) == {"the machine's limit", "limit, 1 stream"}


def test_an_unknown_part_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        growth.main(["--parts", "steps,speed"])
    assert "there is no part 'speed'" in capsys.readouterr().err


@pytest.mark.slow
def test_start_and_resident_memory(tmp_path: Path) -> None:
    out = tmp_path / "growth.json"
    growth.main(["--size", "tiny", "--parts", "start", "--starts", "1", "--out", str(out)])
    result = json.loads(out.read_text())
    assert len(result["start"]["seconds"]) == 1
    weighed = result["resident"]
    assert weighed["resident"] > weighed["baseline"] > 0
    assert weighed["weights"] > 0
