"""torch's products beside the kernels: in the same rounds, in a process of their own."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.native import require_native

from tinyserve.bench import attention, ceilings, kernels
from tinyserve.bench.matmul_peer import SCRIPT, check, compared, matmul_peer
from tinyserve.bench.report_blocks import BLOCKS
from tinyserve.bench.report_measures import over_torch
from tinyserve.bench.results import Results
from tinyserve.kernels.formats import FloatWeight, to_bf16

STAND_IN = """
print("ready", flush=True)
for line in sys.stdin:
    print(0.25 * int(line), flush=True)
"""


@pytest.fixture(autouse=True)
def _in_a_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])


def python(path: Path, text: str) -> str:
    """An interpreter that runs `text` instead of what it is given."""
    path.write_text(f"#!{sys.executable}\nimport sys\n{text}")
    path.chmod(0o755)
    return f"torch={path}"


def test_the_lines_of_float_formats_have_torch_beside_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    require_native()
    monkeypatch.setattr(kernels, "CACHES", 1 << 20)
    monkeypatch.setattr(attention, "CACHES", 1 << 20)
    monkeypatch.setattr(ceilings, "READ_BYTES", 1 << 20)
    out = tmp_path / "kernels.json"
    against = python(tmp_path / "python", STAND_IN)
    kernels.main(
        [
            *("--model", "synthetic", "--formats", "u4,bf16", "--rows", "1,4", "--repeat", "2"),
            *("--contexts", "20", "--streams", "1", "--against", against, "--out", str(out)),
        ]
    )
    result = json.loads(out.read_text())
    assert result["command"].endswith(" --against torch=python")
    compared_lines = [line for line in result["lines"] if "over_torch" in line]
    assert [(x["format"], x["part"], x["rows"]) for x in compared_lines] == [
        ("bf16", part, rows) for part in ("layers", "head") for rows in (1, 4)
    ]
    for line in compared_lines:
        assert line["torch_ms"] == 250.0 * line["rows"]
        assert line["over_torch"] > 0
    assert "| torch ms | over torch |" in capsys.readouterr().out


def test_ratios_to_torch_are_medians_of_pairs() -> None:
    found = compared([(1.0, 2.0), (2.0, 2.0), (4.0, 12.0)])
    assert found == {"torch_ms": 2000.0, "over_torch": 2.0}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sys.exit('torch is not installed there')", "torch is not installed there"),
        ("sys.exit(0)", "ended"),
        ("print('ready', flush=True); sys.exit('out of memory')", "out of memory"),
    ],
)
def test_what_cannot_be_compared_with_is_said_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    with pytest.raises(SystemExit):
        kernels.main(["--against", python(tmp_path / "python", text)])
    assert said in capsys.readouterr().err


def test_an_environment_without_torch_says_so(tmp_path: Path) -> None:
    bare = tmp_path / "python"  # -S: without installed packages
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    with pytest.raises(ValueError, match="torch is not installed"):
        check(f"torch={bare}")


def test_names_that_are_no_peer() -> None:
    check(None)
    with pytest.raises(ValueError, match="'mkl' is not torch"):
        check("mkl")
    with pytest.raises(ValueError, match="No such file"):
        check("torch=no/such/python")


def test_nothing_is_started_for_formats_that_torch_does_not_have() -> None:
    with matmul_peer("torch=no/such/python", "u4", [(16, 16)], 1) as peer:
        assert peer is None


@pytest.mark.parametrize("kind", ["f32", "bf16"])
def test_torch_itself(kind: str) -> None:
    pytest.importorskip("torch")
    assert SCRIPT.exists()
    with matmul_peer("torch", kind, [(32, 16), (16, 8)], 1) as peer:
        assert peer is not None
        assert all(peer.seconds(rows) > 0 for rows in (1, 3, 1))


def test_long_rounds_are_fewer_but_one_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def run(name: str) -> float:
        calls.append(name)
        return float(len(calls))

    runs = [lambda: run("ours"), lambda: run("theirs")]
    assert ceilings.rounds_of(runs, 2) == [(3.0, 4.0), (5.0, 6.0)]
    assert calls == ["ours", "theirs"] * 3
    monkeypatch.setattr(ceilings, "LONG_S", 0.0)
    assert len(ceilings.rounds_of(runs, 5)) == 1


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16"])
def test_float_weights_are_of_their_format(kind: str) -> None:
    weight = kernels._weight(kind, 8, 64, np.random.default_rng(0))
    assert isinstance(weight, FloatWeight)
    values = np.random.default_rng(0).standard_normal((8, 64), np.float32) * np.float32(1 / 8)
    wanted = {"f32": values, "f16": values.astype(np.float16), "bf16": to_bf16(values)}[kind]
    assert weight.data.dtype == wanted.dtype
    assert np.array_equal(weight.data, wanted)


def test_the_report_shows_and_judges_the_ratios(tmp_path: Path) -> None:
    line = {"model": "m", "format": "f32", "part": "layers", "rows": 16, "of_roofline": 0.5}
    line |= {"of_multiply_rate": 0.5}
    plain = {"ceilings": {"read_gb_s": 9.0}, "lines": [line]}
    assert "over torch" not in shown(tmp_path, plain)
    assert over_torch(plain) is None
    lines = [{**line, "over_torch": 1.5}, {**line, "rows": 64, "over_torch": 1.25}]
    lines += [{**line, "part": "head", "over_torch": 0.5}, {**line, "rows": 1, "over_torch": 0.7}]
    result = {**plain, "lines": lines}
    assert "| m | f32 | layers | 0.70x | 1.50x | 1.25x |" in shown(tmp_path, result)
    assert "| m | f32 | head |  | 0.50x |  |" in shown(tmp_path, result)
    assert over_torch(result) == 1.25, "layers, 16 rows and more"


def shown(folder: Path, result: dict[str, object]) -> str:
    (folder / "results").mkdir(exist_ok=True)
    (folder / "results" / "kernels.json").write_text(json.dumps(result))
    return BLOCKS["kernels"](Results(folder))
