"""What could not work is refused on the command line, before anything is measured."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tinyserve.bench import (
    attention,
    common,
    growth,
    http_overhead,
    kernels,
    load_torture,
    loadgen,
    peers,
    spec_bench,
    step_overhead,
    studies,
    sweep_pareto,
)
from tinyserve.bench.arguments import output_file, plot_file
from tinyserve.bench.common import until_interrupted
from tinyserve.bench.simulate import StepModel
from tinyserve.errors import ConfigError

TINY = ["--size", "tiny"]
URL = ["--url", "http://127.0.0.1:9", "--model", "m"]


@pytest.mark.parametrize(
    ("program", "arguments", "said"),
    [
        (loadgen, ["--url", "127.0.0.1:8000"], "must begin with http://"),
        (loadgen, ["--url", ""], "must begin with http://"),
        (loadgen, [*URL, "--rate", "0"], "must be above 0"),
        (loadgen, [*URL, "--rate", "nan"], "must be above 0"),
        (loadgen, [*URL, "--rate", "fast"], "'fast' is not a number"),
        (loadgen, [*URL, "--num-requests", "0"], "must be at least 1"),
        (loadgen, [*URL, "--num-requests", "1.5"], "'1.5' is not a whole number"),
        (loadgen, [*URL, "--slo", "2"], "'2' is not an objective such as 2,0.2"),
        (loadgen, [*URL, "--slo", "2,-1"], "not an objective"),
        (loadgen, [*URL, "--prompt", "9-3"], "'9-3' is not a span"),
        (loadgen, [*URL, "--timeout", "-1"], "must be above 0"),
        (sweep_pareto, ["--rates", "1,,2"], "'' is not a number"),
        (sweep_pareto, ["--rates", "0"], "must be above 0"),
        (sweep_pareto, ["--policies", "static,fifo"], "no policy 'fifo': static, continuous"),
        (sweep_pareto, ["--policies", ""], "no policy ''"),
        (sweep_pareto, ["--repeat", "0"], "must be at least 1"),
        (sweep_pareto, ["--replicas", "2"], "needs --simulate"),
        (sweep_pareto, ["--step-times", "x.json"], "needs --simulate"),
        (studies, ["--step-times", "x.json"], "needs --simulate"),
        (sweep_pareto, ["--simulate", "--policies", "continuous+spec"], "leaves out"),
        (spec_bench, ["--proposers", "eagle"], "no proposer 'eagle'"),
        (spec_bench, ["--workloads", "poetry"], "no workload 'poetry'"),
        (spec_bench, ["--k", "0"], "must be at least 1"),
        (studies, ["--study", "sleep"], "no study 'sleep'"),
        (studies, ["--repeat", "0"], "must be at least 1"),
        (kernels, ["--formats", "q4"], "no format 'q4'"),
        (kernels, ["--models", "70b"], "no shape '70b'"),
        (growth, ["--streams", "1,x"], "'x' is not a whole number"),
        (step_overhead, ["--steps", "0"], "must be at least 1"),
        (attention, ["--dtypes", "int4"], "no KV type 'int4'"),
        (peers, ["--rates", "-1"], "must be above 0"),
        (load_torture, ["--seconds", "0"], "must be above 0"),
    ],
)
def test_arguments_that_make_no_sense(
    program: Any, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        program.main(arguments)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_a_place_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    programs: list[tuple[Any, list[str]]] = [
        (sweep_pareto, TINY),
        (loadgen, URL),
        (load_torture, []),
    ]
    for program, arguments in programs:
        for place in (tmp_path, tmp_path / "file" / "x.json"):
            with pytest.raises(SystemExit, match="2"):
                program.main([*arguments, "--out", str(place)])
            assert f"cannot write {place}" in capsys.readouterr().err
    assert http_overhead.options().parse_args([]).out is None


def test_asking_for_a_file_changes_nothing(tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    kept.write_text("{}")
    assert output_file(str(kept)) == str(kept)
    assert output_file(str(tmp_path / "new" / "x.json"))
    assert kept.read_text() == "{}"
    assert list((tmp_path / "new").iterdir()) == []


def test_plots_that_cannot_be_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(place: Path) -> str:
        with pytest.raises(SystemExit, match="2"):
            sweep_pareto.main([*TINY, "--plot", str(place)])
        return capsys.readouterr().err

    if importlib.util.find_spec("matplotlib") is not None:
        assert "'xyz' is no kind of plot" in refused(tmp_path / "a.xyz")
        assert plot_file(str(tmp_path / "a.PNG"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "need matplotlib" in refused(tmp_path / "a.png")


@pytest.mark.parametrize("text", ["", "hello", "[]", "5", "{}", '{"sizes": [1]}', None])
def test_files_without_step_times(text: str | None, tmp_path: Path) -> None:
    path = tmp_path / "times.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match="step times"):
        StepModel.load(path)


def measuring(stop_after: int) -> Iterator[int]:
    for number in range(3):
        if number == stop_after:
            raise KeyboardInterrupt
        yield number


def test_ctrl_c_keeps_what_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert until_interrupted(measuring(9)) == ([0, 1, 2], False)
    assert capsys.readouterr().err == ""
    assert until_interrupted(measuring(2)) == ([0, 1], True)
    assert "interrupted" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("program", "stop", "arguments", "key"),
    [
        (sweep_pareto, "summary", [*TINY, "--rates", "500,900", "--policies", "static"], "points"),
        (studies, "run_study", ["--study", "priority,fairness"], "studies"),
    ],
)
def test_ctrl_c_writes_what_was_measured(
    program: ModuleType,
    stop: str,
    arguments: list[str],
    key: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole, calls = getattr(program, stop), [0]
    if program is studies:
        found = {"a": dict.fromkeys(("watched_ttft_s", "watched_inter_token_s", "e2e_s"))}
        whole = lambda *_: found  # noqa: E731
        monkeypatch.setattr(studies, "report", lambda *_: "")

    def second_time(*given: Any) -> Any:
        calls[0] += 1
        if calls[0] == 2:
            raise KeyboardInterrupt
        return whole(*given)

    monkeypatch.setattr(program, stop, second_time)
    out = tmp_path / "result.json"
    ended = exit_of(lambda: program.main([*arguments, "--out", str(out)]))
    assert ended == 130
    result = json.loads(out.read_text())
    assert result["interrupted"] is True
    assert len(result[key]) == 1


def test_ctrl_c_before_there_is_a_result(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_of(lambda: until_interrupted(measuring(0))) == 130
    assert capsys.readouterr().err == "interrupted: nothing was written\n"


def test_a_reader_that_has_left_is_no_mistake(tmp_path: Path) -> None:
    """And the result was written before the table is shown."""
    out = tmp_path / "result.json"
    command = [sys.executable, "-m", "tinyserve.bench.sweep_pareto", *TINY, "--rates", "1000"]
    command += ["--policies", "static", "--num-requests", "2", "--out", str(out)]
    environment = {name: v for name, v in os.environ.items() if name != "PYTHONUNBUFFERED"}
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ended = subprocess.run(
            command, stdout=writing, stderr=subprocess.PIPE, text=True, env=environment
        )
    finally:
        os.close(writing)
    assert ended.returncode == 141
    assert "Error" not in ended.stderr
    assert json.loads(out.read_text())["points"]


def exit_of(program: Callable[[], object]) -> object:
    """The exit code of a program run as from the shell."""
    with pytest.raises(SystemExit) as ended:
        common.run_program(lambda: program() and None)
    return ended.value.code
