"""The report and the README say what the committed results say."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tinyserve.bench import report
from tinyserve.bench.report_blocks import BLOCKS, PLOTS, SHOWN
from tinyserve.bench.report_measures import continuous_over_static
from tinyserve.bench.report_targets import TARGETS, targets_table
from tinyserve.bench.results import Results

REPOSITORY = Path(__file__).parents[2]
RESULTS = Results(REPOSITORY / "benchmarks")


@pytest.mark.parametrize("document", report.DOCUMENTS)
def test_no_table_differs_from_its_result(document: str) -> None:
    path = REPOSITORY / document
    assert report.MARKED.search(path.read_text(encoding="utf-8"))
    assert report.is_current(path, RESULTS), "run python -m tinyserve.bench.report"


def test_every_result_and_every_plot_is_in_the_report() -> None:
    text = (REPOSITORY / "benchmarks" / "REPORT.md").read_text(encoding="utf-8")
    for path in (REPOSITORY / "benchmarks" / "results").glob("*.json"):
        assert f"results/{path.name})" in text, path.name
    for path in (REPOSITORY / "benchmarks").glob("*.png"):
        assert f"]({path.name})" in text, path.name
    assert {name for name in BLOCKS if not name.endswith("summary")} == {
        name for _, name, _, _ in report.MARKED.findall(text)
    }


def test_links_in_the_report_lead_somewhere() -> None:
    text = (REPOSITORY / "benchmarks" / "REPORT.md").read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert (REPOSITORY / "benchmarks" / target).exists(), target


def test_what_was_not_measured_is_said_to_be_so(tmp_path: Path) -> None:
    nothing = Results(tmp_path)
    for name in SHOWN:
        assert BLOCKS[name](nothing).startswith("*Not measured yet*")
    for name in set(BLOCKS) - set(SHOWN) - {"others", "targets"}:
        assert BLOCKS[name](nothing) == "*Not measured yet.*"
    assert targets_table(nothing).count("not measured") == len(TARGETS)


def test_results_without_a_section_are_listed(tmp_path: Path) -> None:
    assert BLOCKS["others"](Results(tmp_path)) == "None."
    shown = BLOCKS["others"](written(tmp_path, "new", {"command": "python -m y"}))
    assert "| [`new.json`](results/new.json) | `python -m y` |" in shown


def written(tmp_path: Path, name: str, result: dict[str, Any]) -> Results:
    (tmp_path / "results").mkdir(exist_ok=True)
    (tmp_path / "results" / f"{name}.json").write_text(json.dumps(result))
    return Results(tmp_path)


MACHINE = {"processor": "P", "threads": 2, "kernels": "avx2", "date": "2026-11-30"}


def offline(speed: float) -> dict[str, Any]:
    names = ("decode 1", "decode 8", "decode 16", "decode 32", "prefill 512")
    medians = {name: {"tinyserve": speed, "llama.cpp Q4_0": 100.0, "b": 50.0} for name in names}
    return {
        "medians": medians,
        "ratios": {name: {"llama.cpp Q4_0": speed / 100, "b": speed / 50} for name in names},
        "ceilings": dict.fromkeys(("read_gb_s", "u4s8_gmac_s", "int16_gmac_s", "f32_gmac_s"), 9.0),
        "shares": {"decode 1": 0.9, "prefill 512": 0.5},
    }


def test_a_comparison_with_peers_is_shown_and_judged(tmp_path: Path) -> None:
    result = {"command": "python -m x", "machine": MACHINE, "offline": offline(280.0)}
    results = written(tmp_path, "peers-4bit", result)
    shown = BLOCKS["peers-4bit"](results)
    assert "| decode 1 | 280 | 100 (2.80x) | 50 (5.60x) |" in shown
    assert "P, 2 threads; avx2 kernels; 2026-11-30" in shown
    assert "```sh\npython -m x\n```" in shown
    assert "one stream used 90%" in BLOCKS["summary"](results)
    judged = targets_table(results)
    assert "| 4 bits, 1 stream: share of the bus | at least 85% | 90% |  | yes |" in judged
    assert "| 4 bits, 8 streams: over the best peer | at least 2.50x | 2.80x |  | yes |" in judged
    assert (
        "| 4 bits, 16 streams: over the best peer | at least 3.00x | 2.80x |  | **no** |" in judged
    )
    assert "| 4 bits, 1 stream: over ik_llama.cpp | at least 1.15x | not measured |" in judged


def test_growth_and_policies_are_judged(tmp_path: Path) -> None:
    steps = [(1, 64, 8.0), (4, 64, 9.0), (1, 4096, 16.0)]
    written(
        tmp_path,
        "growth",
        {
            "steps": [{"streams": s, "context": c, "ms": ms} for s, c, ms in steps],
            "start": {"seconds": [0.5, 3.0, 0.7]},
        },
    )
    more = {"resident": {"ratio": 1.25}, "start": {"seconds": [1.5]}}
    written(tmp_path, "growth-amx", {**more, "machine": {"kernels": "amx"}})
    pair = [point("static", 8.0, 8.0, 100.0), point("continuous", 8.0, 1.0, 150.0)]
    judged = targets_table(written(tmp_path, "pareto", {"points": pair}))
    assert "| at most 1.25x | 1.12x |  | yes |  |  | `growth` |" in judged
    assert "| at most 1.50x | 2.00x |  | **no** |  |  | `growth` |" in judged
    assert "| at most 1.00 s | 0.70 s |  | yes | 1.50 s | **no** | `growth` |" in judged
    assert "| at most 1.30x | not measured |  |  | 1.25x | yes | `growth` |" in judged
    assert "| at least 6.70x | 8.00x |  | yes |  |  | `pareto` |" in judged
    assert "| at least 1.58x | 1.50x |  | **no** |  |  | `pareto` |" in judged


def point(policy: str, rate: float, wait: float, speed: float, **more: Any) -> dict[str, Any]:
    """100 tokens in 10 requests of a sweep's rate."""
    figures = {"output_tok_s": speed, "duration_s": 1000 / speed, "requests": 10}
    waits = {"e2e_s": {"p50": 0.0}, "ttft_s": {"p50": 0.0, "p99": wait}}
    return {"policy": policy, "rate": rate, **figures, **waits, **more}


def test_policies_are_judged_at_one_rate_that_saturates_static() -> None:
    calm = [point("static", 0.5, 9.0, 100.0), point("continuous", 0.5, 1.0, 900.0)]
    loaded = [point("static", 8.0, 8.0, 100.0), point("continuous", 8.0, 1.0, 150.0)]
    worse = [point("static", 16.0, 20.0, 100.0), point("continuous", 16.0, 1.0, 120.0)]
    ttft, speed = continuous_over_static("ttft_s"), continuous_over_static("output_tok_s")
    assert ttft({"points": calm}) is None, "static keeps up there"
    result = {"points": [*calm, *loaded, *worse]}
    assert (ttft(result), speed(result)) == (8.0, 1.5), "not the 20 of another rate"


@pytest.mark.parametrize(("most", "limit"), [(1000.0, 1.6), (120.0, 1.2), (None, None)])
def test_no_policy_gains_more_than_is_offered_or_than_full_seats(
    most: float | None, limit: float | None
) -> None:
    counts = {"offered_requests_s": 16.0, "output_tokens": 100}
    points = [point(name, 16.0, 1.0, 100.0, **counts) for name in ("static", "continuous")]
    assert continuous_over_static("limit")({"points": points, "most_tok_s": most}) == limit


def test_prompts_that_were_known_are_not_kept_quiet(tmp_path: Path) -> None:
    spread = {"p50": 0.1, "p99": 0.2}
    latencies = dict.fromkeys(("ttft_s", "inter_token_s", "e2e_s"), spread)
    made = point("static", 8.0, 0.2, 100.0, prompt_tokens=200, cached_tokens=0, **latencies)
    made["slo_attainment"] = 1.0
    fresh = BLOCKS["pareto"](written(tmp_path, "pareto", {"points": [made]}))
    assert "prefix cache" not in fresh
    points = [made, {**made, "cached_tokens": 50}]
    assert "Up to 25% of" in BLOCKS["pareto"](written(tmp_path, "pareto", {"points": points}))


def test_policies_are_compared_round_by_round() -> None:
    def rounds(*pairs: tuple[float, float]) -> list[dict[str, float]]:
        return [{"output_tok_s": speed, "ttft_p99_s": wait} for speed, wait in pairs]

    static = point("static", 8.0, 0.0, 1.0, rounds=rounds((100.0, 4.0), (50.0, 9.0), (10.0, 6.0)))
    other = point(
        "continuous", 8.0, 0.0, 1.0, rounds=rounds((200.0, 2.0), (60.0, 1.0), (30.0, 2.0))
    )
    result = {"points": [static, other]}
    assert continuous_over_static("output_tok_s")(result) == 2.0
    assert continuous_over_static("ttft_s")(result) == 3.0


def test_a_comparison_in_pairs_is_shown_with_its_intervals(tmp_path: Path) -> None:
    case = {"proposer": "random", "k": 8, "temperature": 0.8, "streams": 16, "acceptance": 0.0}
    case |= {"tokens_per_step": 1.0, "plain_tok_s": 500.0, "tok_s": 490.0, "is_identical": True}
    case |= {"speedup": 0.985, "interval": [0.971, 0.99], "total": 0.984}
    case["cpu"] = {"speedup": 0.97, "interval": None, "total": 0.98}
    cases = [{**case, "workload": "chat"}, {**case, "workload": "random", "speedup": 0.99}]
    results = written(tmp_path, "spec-smollm2-135m-16-streams", {"cases": cases})
    shown = BLOCKS["spec-smollm2-135m-16-streams"](results)
    assert "| 490 | 0.985x (0.971 to 0.990) | 0.984x | 0.97x |  | yes |" in shown
    judged = targets_table(results)
    assert "| drafts that are never right, 16 streams | at least 0.98x | 0.98x |  | yes |" in judged
    assert "| the same in processor time | at least 0.98x | 0.97x |  | **no** |" in judged


def test_the_readme_says_what_load_and_http_cost(tmp_path: Path) -> None:
    phases = {
        "crowd": {"ended": 401, "left": 163, "seconds": 14.0, "wrong_first": []},
        "overload": {"ended": 1743, "refused": 4362, "wrong": 7, "seconds": 76.0},
    }
    phases["overload"]["wrong_first"] = ["a", "b"]
    torture = {"command": "python -m t", "phases": phases}
    torture["health_ms"] = {"p50": 3.6, "p99": 25.8, "max": 75.9}
    torture["memory_mib"] = {"warm": 259.8, "after": 260.6}
    results = written(tmp_path, "load-torture-smollm2-135m", torture)
    shown = BLOCKS["load-summary"](results)
    assert "| answered · hung up · told 429 · wrong | 2144 · 163 · 4362 · 7 |" in shown
    assert "| 4 · 26 · 76 ms |" in shown
    assert "| 259.8 · 260.6 MiB |" in shown
    assert shown.endswith("```sh\npython -m t\n```")
    assert "| overload | 76 | 1743 | 0 | 4362 | 7 |" in BLOCKS["load-torture-smollm2-135m"](results)
    rows = [
        {"what": "streamed token", "streams": 16, "loop_us": 131.2, "engine_us": 60.7},
        {"what": "GET /health", "streams": 1, "loop_us": 543.0, "engine_us": 0.0},
    ]
    http = {"command": "python -m h", "rows": rows}
    shown = BLOCKS["http-summary"](written(tmp_path, "http-overhead", http))
    assert "| streamed token | 16 | 0.19 |" in shown
    assert "/health" not in shown


def test_every_summary_is_in_the_readme() -> None:
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    names = {name for _, name, _, _ in report.MARKED.findall(text)}
    assert names == {name for name in BLOCKS if name.endswith("summary")}


def test_only_what_is_marked_is_rewritten(tmp_path: Path) -> None:
    text = "a\n<!-- result: growth -->\nold\n<!-- end -->\nb | 12 |\n"
    once = report.filled(text, Results(tmp_path))
    assert once.startswith("a\n<!-- result: growth -->\n\n*Not measured yet*")
    assert once.endswith("\n\n<!-- end -->\nb | 12 |\n")
    assert report.filled(once, Results(tmp_path)) == once


def test_a_check_finds_a_stale_table_and_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "benchmarks").mkdir()
    for name in report.DOCUMENTS:
        (tmp_path / name).write_text("<!-- result: growth -->\n| 3 |\n<!-- end -->\n")
    with pytest.raises(SystemExit, match="REPORT"):
        report.main(["--root", str(tmp_path), "--check"])
    assert "| 3 |" in (tmp_path / "README.md").read_text()
    report.main(["--root", str(tmp_path)])
    assert "| 3 |" not in (tmp_path / "README.md").read_text()
    report.main(["--root", str(tmp_path), "--check"])


def test_a_plot_is_shown_where_it_was_drawn(tmp_path: Path) -> None:
    results = written(tmp_path, "growth", {"steps": [{"streams": 1, "context": 64, "ms": 8.0}]})
    assert "![growth.png]" not in BLOCKS["growth"](results)
    (tmp_path / "growth.png").write_bytes(b"")
    assert "![growth.png](growth.png)" in BLOCKS["growth"](results)
    assert PLOTS.keys() <= SHOWN.keys()
