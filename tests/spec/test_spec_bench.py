"""The benchmark of speculation runs from end to end and says what it measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tinyserve.bench.spec_bench import cases_of, main, spec_parser
from tinyserve.bench.spec_runs import switched_off
from tinyserve.bench.spec_texts import WORKLOADS, conversation, random_ids, text


def test_one_value_at_a_time_or_all_of_them() -> None:
    few = ["--workloads", "code", "--proposers", "ngram", "--k", "4,8", "--streams", "1,2,3"]
    cases = list(cases_of(spec_parser().parse_args(few)))
    assert len(cases) == len(set(cases)) == 1 + 1 + 1 + 2 + 1
    full = list(cases_of(spec_parser().parse_args([*few, "--full"])))
    assert len(full) == len(set(full)) == 2 * 2 * 3 * 2
    assert set(cases) <= set(full)


def test_unknown_proposers_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        spec_parser().parse_args(["--proposers", "psychic"])
    assert "psychic" in capsys.readouterr().err


def test_prompts_differ_by_number() -> None:
    assert WORKLOADS == ("repetitive", "code", "chat", "random")
    for workload in WORKLOADS[:2]:
        assert len({text(workload, number) for number in range(12)}) == 12
    assert len({repr(conversation(number)) for number in range(12)}) == 12
    assert random_ids(0, 1, 20, 300) != random_ids(1, 1, 20, 300)


def test_a_whole_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Drafts of every kind over the tiny model: the same bits, and numbers that make sense."""
    out = tmp_path / "spec.json"
    options = ["--new", "12", "--repeat", "2", "--k", "3", "--streams", "2", "--control", "off"]
    options += ["--proposers", "oracle,random,suffix", "--workloads", "code,random"]
    main([*options, "--draft-model", "synthetic", "--temperatures", "0.8", "--out", str(out)])
    result = json.loads(out.read_text())
    cases = {(case["workload"], case["proposer"]): case for case in result["cases"]}
    assert len(cases) == 8
    for case in cases.values():
        assert case["is_identical"]
        assert case["speedup"] > 0
        assert len(case["speedups"]) == 2
    assert cases["code", "oracle"]["acceptance"] == 1
    assert cases["code", "draft_model"]["acceptance"] > 0.8, "the same model, the same noise"
    assert cases["random", "random"]["acceptance"] < 0.2
    assert cases["code", "oracle"]["tokens_per_step"] > 2
    assert "| code | oracle | 3 | 0.8 | 2 | off |" in capsys.readouterr().out


def test_the_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot = tmp_path / "spec.png"
    options = ["--new", "6", "--repeat", "1", "--k", "1,2", "--streams", "1,2", "--control", "on"]
    options += ["--proposers", "ngram", "--workloads", "code", "--temperatures", "0"]
    main([*options, "--plot", str(plot)])
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_a_stranger_is_switched_off(tmp_path: Path) -> None:
    """A draft model that is never right is given up; without the controller it drafts on."""
    out = tmp_path / "stranger.json"
    options = ["--new", "60", "--repeat", "1", "--k", "3", "--streams", "1", "--prompts", "1"]
    options += ["--proposers", "draft_model", "--workloads", "random", "--temperatures", "0"]
    main([*options, "--draft-model", "random", "--out", str(out)])
    controlled, free = json.loads(out.read_text())["cases"]
    assert controlled["control"]
    assert controlled["acceptance"] < 0.2
    assert controlled["off_after_s"] is not None
    assert free["off_after_s"] is None
    assert free["is_identical"]
    assert controlled["is_identical"]


def test_when_drafts_were_given_up() -> None:
    assert switched_off([]) is None
    assert switched_off([(0.1, True)] * 5) is None
    assert switched_off([(0.1, False)] * 5) is None, "too short to say"
    assert switched_off([(0.1, False)] * 20) == 0.0
    on, off = [(0.1 * i, True) for i in range(1, 6)], [(1.0, False)] * 40
    assert switched_off([*on, *off]) == pytest.approx(0.1)  # 4 of 44: the first alone is too many
    assert switched_off([*on, *off, (2.0, True)]) == pytest.approx(0.2)
