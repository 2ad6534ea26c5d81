"""The benchmark programs run, write what they promise, and name no folder of this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.native import require_native

from tinyserve.bench import kernels, studies


def result_of(main: Any, arguments: list[str], tmp_path: Path) -> dict[str, Any]:
    out = tmp_path / "result.json"
    main([*arguments, "--out", str(out)])
    text = out.read_text()
    assert str(tmp_path) not in text
    result: dict[str, Any] = json.loads(text)
    assert result["command"].startswith("python -m tinyserve.bench.")
    return result


def test_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_native()
    monkeypatch.setattr(kernels, "CACHES", 1 << 20)
    arguments = ["--models", "135m", "--formats", "u4,bf16", "--rows", "1,8", "--repeat", "1"]
    result = result_of(kernels.main, [*arguments, "--contexts", "20", "--streams", "2"], tmp_path)
    lines = result["lines"]
    assert [(x["part"], x["format"], x["rows"]) for x in lines] == [
        (part, kind, rows)
        for kind in ("u4", "bf16")
        for part in ("layers", "head")
        for rows in (1, 8)
    ] + [("attention", "f16 KV", 2)]
    for line in lines[:-1]:
        assert line["of_roofline"] == max(line["of_bandwidth"], line["of_multiply_rate"])


def test_every_study_runs_and_shows_what_it_is_about(tmp_path: Path) -> None:
    arguments = ["--size", "tiny", "--repeat", "1"]
    quick = "prefix-cache,preemption"
    found = result_of(studies.main, [*arguments, "--study", quick], tmp_path)["studies"]
    assert found["prefix-cache"]["prefix cache"]["cached_tokens"] > 0
    assert found["prefix-cache"]["no prefix cache"]["cached_tokens"] == 0
    assert found["preemption"]["swap"]["preemptions"] > 0
    assert found["preemption"]["large pool"]["preemptions"] == 0
    computed = {name: v["computed_tokens"] for name, v in found["preemption"].items()}
    assert computed["swap"] == computed["large pool"] < computed["recompute"]
