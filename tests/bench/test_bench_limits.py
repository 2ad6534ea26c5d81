"""What the machine allows, by hand; and what of it is reached."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.native import require_native

from tinyserve.bench import ceilings, growth
from tinyserve.bench.limits import Limit, Size, Sizes, rate_of
from tinyserve.bench.offline_cases import configuration
from tinyserve.bench.peers import shares
from tinyserve.bench.report_measures import at_limit, over_best, step_ratio
from tinyserve.bench.report_targets import Target
from tinyserve.bench.results import Results
from tinyserve.engine.build import build_engine

GIGA = 10**9
CEILINGS = {"read_gb_s": 10.0, "u4s8_gmac_s": 200.0, "int16_gmac_s": 100.0, "f32_gmac_s": 50.0}
SIZES = Sizes({"u4": Size(GIGA, 2 * GIGA)}, {"int8": Size(GIGA // 2, GIGA)}, kv_token_bytes=1000)


def test_each_format_is_bounded_by_the_bus_or_by_its_multiplications() -> None:
    """Reading takes 0.1 and 0.05 s; a row's multiplications 0.01 s in each of the two."""
    for rows, seconds in ((1, 0.15), (5, 0.15), (8, 0.1 + 0.08), (10, 0.2), (20, 0.4)):
        assert SIZES.least_seconds(CEILINGS, rows, rows) == pytest.approx(seconds)
    assert SIZES.least_seconds(CEILINGS, 20, 1) == pytest.approx(0.2 + 0.05), "of a prompt"
    with_context = SIZES.least_seconds(CEILINGS, 1, 1, context=10**6)
    assert with_context == pytest.approx(0.15 + 0.1)


def test_each_format_has_its_own_multiplication() -> None:
    assert [rate_of(kind) for kind in ("u4", "int8", "bf16", "f16", "f32")] == [
        *("u4s8_gmac_s", "int16_gmac_s"),
        *("f32_gmac_s",) * 3,
    ]


def test_shares_by_hand() -> None:
    """20 streams: 0.4 s at best. A step took 0.8 s: 25 tokens a second."""
    medians = {"decode 20": {"tinyserve": 25.0, "x": 99.0}, "prefill 20": {"tinyserve": 40.0}}
    found = shares(SIZES, medians, CEILINGS)
    assert found == pytest.approx({"decode 20": 0.5, "prefill 20": 0.5})


def test_sizes_of_a_loaded_model() -> None:
    require_native()
    engine = build_engine(configuration({"name": "synthetic", "quantization": "int4"}, 2, 32))
    runner: Any = engine.core.runner
    sizes = Sizes.of(runner)
    config = runner.decoder.config
    assert sum(size.multiplies for size in sizes.head.values()) == (
        config.vocab_size * config.hidden_size
    )
    num_bytes = sum(s.num_bytes for part in (sizes.body, sizes.head) for s in part.values())
    untied = (
        0 if runner.decoder.head is runner.decoder.embedding else runner.decoder.embedding.nbytes
    )
    assert num_bytes == runner.decoder.nbytes - untied
    item = {"f32": 4, "f16": 2}[runner.pool.layout.dtype]
    assert sizes.kv_token_bytes == (
        2 * config.num_layers * config.num_kv_heads * config.head_dim * item
    )


def test_without_native_kernels_there_is_no_limit() -> None:
    limit = Limit(type("Runner", (), {"backend": None}))
    limit.measure()
    assert limit.medians() is None
    assert limit.ms(1, 64) is None


def test_growth_says_what_the_machine_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    require_native()
    monkeypatch.setattr(ceilings, "READ_BYTES", 1 << 20)
    out = tmp_path / "growth.json"
    growth.main(
        [
            *("--size", "tiny", "--parts", "steps,rows", "--streams", "1,4", "--steps", "3"),
            *("--contexts", "16,512", "--long-streams", "1", "--repeat", "1", "--rows", "1,5"),
            *("--out", str(out)),
        ]
    )
    result = json.loads(out.read_text())
    limits = {(x["streams"], x["context"]): x["limit_ms"] for x in result["steps"]}
    assert limits[1, 16] < limits[1, 512]
    assert limits[1, 16] < limits[4, 16]
    assert [line["limit_ms"] > 0 for line in result["rows"]] == [True, True]
    assert result["ceilings"]["read_gb_s"] > 0
    assert capsys.readouterr().out.count("| of the limit |") == 2


def target(bound: float, is_at_most: bool, limit: float | None) -> Target:
    return Target("w", bound, is_at_most, "r", lambda r: r["x"], at_limit=lambda r: limit)


@pytest.mark.parametrize(
    ("bound", "found", "is_at_most", "limit", "shown"),
    [
        (3.0, 3.5, False, 4.0, "| 3.50x | 4.00x (88% reached) | yes |"),
        (3.0, 2.9, False, 4.0, "| 2.90x | 4.00x (72% reached) | **no** |"),
        (3.0, 1.9, False, 2.0, "| 1.90x | 2.00x (95% reached) | at the limit |"),
        (3.0, 1.0, False, 2.0, "| 1.00x | 2.00x (50% reached) | **no**, out of reach |"),
        (1.5, 2.5, True, 2.0, "| 2.50x | 2.00x (80% reached) | **no**, out of reach |"),
        (1.5, 2.1, True, 2.0, "| 2.10x | 2.00x (95% reached) | at the limit |"),
        (1.5, 2.1, True, 1.0, "| 2.10x | 1.00x (48% reached) | **no** |"),
        (1.5, 2.1, True, None, "| 2.10x |  | **no** |"),
    ],
)
def test_verdicts(
    tmp_path: Path, bound: float, found: float, is_at_most: bool, limit: float | None, shown: str
) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "r.json").write_text(json.dumps({"x": found}))
    row = target(bound, is_at_most, limit).row(Results(tmp_path))
    assert shown in "| " + " | ".join(row) + " |"


def test_limits_of_ratios() -> None:
    offline: dict[str, Any] = {"ratios": {"decode 8": {"a": 2.0, "b": 3.0}}}
    offline["shares"] = {"decode 8": 0.5}
    limit = at_limit("decode 8", over_best("decode 8"))
    assert limit({"offline": offline}) is None, "an older result"
    assert limit({"offline": {**offline, "sizes": {}}}) == 4.0
    steps = [
        {"streams": 1, "context": 64, "ms": 4.0, "limit_ms": 3.0},
        {"streams": 1, "context": 4096, "ms": 10.0, "limit_ms": 6.0},
    ]
    assert step_ratio((1, 4096))({"steps": steps}) == 2.5
    assert step_ratio((1, 4096), key="limit_ms")({"steps": steps}) == 2.0
    assert step_ratio((4, 64), key="limit_ms")({"steps": steps}) is None


@pytest.mark.parametrize("name", ["peers-4bit", "peers-int8", "peers-f32", "growth"])
def test_no_committed_result_is_faster_than_its_machine(name: str) -> None:
    """A share beyond the limit would say that a ceiling was measured wrongly."""
    result = Results(Path(__file__).parents[2] / "benchmarks").read(name) or {}
    offline = result.get("offline", {})
    shares = offline.get("shares", {}) if "sizes" in offline else {}
    lines = [*result.get("steps", ()), *result.get("rows", ())]
    found = [*shares.values(), *(x["limit_ms"] / x["ms"] for x in lines if x.get("limit_ms"))]
    assert max(found, default=0.0) < 1.05
