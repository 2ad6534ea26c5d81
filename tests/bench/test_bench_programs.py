"""The benchmark programs run, write what they promise, and name no folder of this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.native import require_native

from tinyserve.bench import (
    attention,
    ceilings,
    common,
    kernels,
    loadgen,
    step_overhead,
    studies,
)
from tinyserve.bench.simulate import StepModel
from tinyserve.kernels import abi
from tinyserve.kernels.native import NativeBackend
from tinyserve.kernels.select import BACKEND_VARIABLE
from tinyserve.models.synthetic import synthetic_config


def result_of(main: Any, arguments: list[str], tmp_path: Path) -> dict[str, Any]:
    out = tmp_path / "result.json"
    main([*arguments, "--out", str(out)])
    text = out.read_text()
    assert str(tmp_path) not in text
    result: dict[str, Any] = json.loads(text)
    assert result["command"].startswith("python -m tinyserve.bench.")
    return result


def test_a_result_names_the_kernels_that_were_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    require_native()
    best, *others = abi.variants()[0]
    assert common.machine()["kernels"] == best
    for name, shown in (("numpy", "numpy"), *((f"native:{v}", v) for v in others)):
        monkeypatch.setenv(BACKEND_VARIABLE, name)
        assert common.machine()["kernels"] == shown


def test_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_native()
    monkeypatch.setattr(kernels, "CACHES", 1 << 20)
    monkeypatch.setattr(attention, "CACHES", 1 << 20)
    monkeypatch.setattr(ceilings, "READ_BYTES", 1 << 20)
    arguments = ["--models", "135m", "--formats", "u4", "--rows", "1,8", "--repeat", "1"]
    result = result_of(kernels.main, [*arguments, "--contexts", "20", "--streams", "2"], tmp_path)
    lines = result["lines"]
    assert [(x["part"], x["format"], x["rows"]) for x in lines] == [
        (part, kind, rows) for kind in ("u4",) for part in ("layers", "head") for rows in (1, 8)
    ] + [("attention", "f16 KV", 2)]
    for line in lines[:-1]:
        assert line["of_roofline"] == max(line["of_bandwidth"], line["of_multiply_rate"])


@pytest.mark.parametrize("kind", ["u4", "f32"])
def test_no_cache_holds_the_matrices_that_are_timed(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_native()
    monkeypatch.setattr(kernels, "CACHES", 1 << 20)
    config = synthetic_config("tiny")
    for name, _, matrices in kernels.parts(NativeBackend(1), config, kind, 0):
        sizes = [matrix.nbytes for matrix in matrices]
        assert sum(sizes) >= 1 << 20 > sum(sizes) - 4 * max(sizes), name
        places = {part.data.ctypes.data for matrix in matrices for part in matrix.parts}
        assert len(places) == sum(len(matrix.parts) for matrix in matrices), "one place each"


def test_attention(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams with a shared prefix are timed grouped and apart."""
    require_native()
    monkeypatch.setattr(attention, "CACHES", 1 << 20)
    monkeypatch.setattr(ceilings, "READ_BYTES", 1 << 20)
    arguments = ["--dtypes", "int8", "--contexts", "20", "--streams", "1,9", "--repeat", "1"]
    lines = result_of(attention.main, [*arguments, "--prefix", "260"], tmp_path)["lines"]
    assert [(x["rows"], x["context"]) for x in lines] == [(1, 20), (9, 20), (1, 300), (9, 300)]
    assert [x.get("gain", 0) > 0 for x in lines] == [False, False, True, True]


def test_kernels_of_the_model_that_is_named() -> None:
    args = kernels.options().parse_args(["--model", "synthetic"])
    assert list(kernels.shapes(args)) == ["synthetic"]
    known = kernels.shapes(kernels.options().parse_args(["--models", "0.5b,135m"]))
    assert [config.hidden_size for config in known.values()] == [896, 576]


def test_every_study_shows_what_it_is_about(tmp_path: Path) -> None:
    times = tmp_path / "times.json"
    StepModel((1, 16, 512), (0.01, 0.02, 0.5), per_draw=0.001, per_context=1e-6).save(times)
    arguments = ["--size", "tiny", "--simulate", "--step-times", str(times), "--repeat", "1"]
    found = result_of(studies.main, arguments, tmp_path)["studies"]
    for name in ("prefix-cache", "agent"):
        assert found[name]["prefix cache"]["cached_tokens"] > 0
        assert found[name]["no prefix cache"]["cached_tokens"] == 0
        assert p99(found[name], "prefix cache") < p99(found[name], "no prefix cache")
    assert found["preemption"]["swap"]["preemptions"] > 0
    assert found["preemption"]["large pool"]["preemptions"] == 0
    computed = {name: v["computed_tokens"] for name, v in found["preemption"].items()}
    assert computed["swap"] == computed["large pool"] < computed["recompute"]
    gaps = {n: v["watched_inter_token_s"]["p99"] for n, v in found["chunked-prefill"].items()}
    assert gaps["chunked"] < gaps["large chunks"] < gaps["whole prompts"]
    assert p99(found["priority"], "priority") < p99(found["priority"], "first come")
    assert p99(found["fairness"], "fair") < p99(found["fairness"], "first come")


def p99(variants: dict[str, Any], name: str) -> float:
    result: float = variants[name]["watched_ttft_s"]["p99"]
    return result


def test_a_real_study_runs(tmp_path: Path) -> None:
    arguments = ["--size", "tiny", "--study", "preemption", "--repeat", "1"]
    found = result_of(studies.main, arguments, tmp_path)["studies"]
    assert found["preemption"]["swap"]["failed"] == 0


def test_step_overhead(tmp_path: Path) -> None:
    require_native()
    library = abi.load_library()
    arguments = ["--streams", "1,3", "--waiting", "2,40", "--steps", "6"]
    result = result_of(step_overhead.main, arguments, tmp_path)
    assert abi.load_library() is library, "later engines are timed, too"
    cases = [(line["streams"], line["sampling"]) for line in result["lines"]]
    assert cases == [(1, "greedy"), (1, "sampled"), (3, "greedy"), (3, "sampled")]
    for line in result["lines"]:
        assert list(line["us"]) == list(step_overhead.PARTS)
        assert all(line["us"][part] > 0 for part in ("scheduler", "batch", "sampling", "text"))
        assert sum(line["us"].values()) == pytest.approx(line["total_us"])
    waits = [(line["policy"], line["waiting"]) for line in result["waiting"]]
    assert waits == [(p, n) for p in ("continuous", "priority", "fair") for n in (2, 40)]
    assert all(line["us"] > 0 for line in result["waiting"])


def test_the_clock_of_step_overhead_stands_still_in_native_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0

    class Library:
        ts_sample = None

        @staticmethod
        def ts_program_run(seconds: float) -> str:
            nonlocal now
            now += seconds
            return "done"

    monkeypatch.setattr(step_overhead.time, "thread_time", lambda: now)
    monkeypatch.setattr(step_overhead.time, "perf_counter", lambda: 2 * now)
    library = step_overhead.TimedLibrary(Library)
    assert library.ts_program_run(3.0) == "done"
    now += 1.0
    assert (library.cpu_outside(), library.wall_outside()) == (1.0, 2.0)


@pytest.mark.parametrize("name", sorted(set(studies.STUDIES) - {"agent", "prefix-cache"}))
def test_requests_of_a_study_share_nothing_by_accident(name: str) -> None:
    """Nobody's first block is another's, in one round or in several: no cache helps by chance."""
    made = [studies.STUDIES[name].requests(seed) for seed in range(3)]
    prompts = [arrival.prompt_ids for requests in made for arrival in requests]
    assert len({ids[:16] for ids in prompts}) == len(prompts)


@pytest.mark.parametrize("name", ["agent", "prefix-cache"])
def test_rounds_of_a_study_share_nothing(name: str) -> None:
    rounds = []
    for seed in range(3):
        requests = studies.STUDIES[name].requests(seed)
        flat = requests if name == "prefix-cache" else [a for chat in requests for a in chat]
        rounds.append({arrival.prompt_ids[:16] for arrival in flat})
    assert sum(map(len, rounds)) == len(set.union(*rounds))


@pytest.mark.parametrize(
    ("program", "arguments", "said"),
    [
        (step_overhead, ["--model", "/no/such/model"], "/no/such/model"),
        (loadgen, ["--url", "http://127.0.0.1:9", "--num-requests", "1"], "refused"),
    ],
)
def test_a_users_mistake_is_one_line(
    program: Any, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        common.run_program(lambda: program.main(arguments))
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("tinyserve: ")
    assert said in error
    assert error.count("\n") == 1


def test_the_help_has_the_whole_docstring() -> None:
    help_text = common.model_parser(
        "x", "One line,\nand another.\n\n    an example\n"
    ).format_help()
    assert "One line,\nand another.\n\n    an example\n" in help_text
