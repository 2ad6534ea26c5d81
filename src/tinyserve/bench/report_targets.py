"""What speed was aimed at, and what the committed results say of it.

Each target reads the figure from a result; where the result is absent the target is not measured.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tinyserve.bench.common import table
from tinyserve.bench.latency import keeps_up
from tinyserve.bench.peer_tables import OURS
from tinyserve.bench.results import Result, Results


@dataclass(frozen=True)
class Target:
    """A figure with a bound. `measure` gives None where the result lacks what it needs."""

    what: str
    bound: float
    is_at_most: bool
    source: str
    measure: Callable[[Result], float | None]
    shown: str = "{:.2f}x"

    def row(self, results: Results) -> list[str]:
        wanted = ("at most " if self.is_at_most else "at least ") + self.shown.format(self.bound)
        result = results.read(self.source)
        found = None if result is None else self.measure(result)
        if found is None:
            return [self.what, wanted, "not measured", "", f"`{self.source}`"]
        is_met = found <= self.bound if self.is_at_most else found >= self.bound
        shown = self.shown.format(found)
        return [self.what, wanted, shown, "yes" if is_met else "**no**", f"`{self.source}`"]


def targets_table(results: Results) -> str:
    """All targets, met or not."""
    return table(
        ["what", "target", "measured", "met", "result"],
        [target.row(results) for target in TARGETS],
    )


def share(case: str) -> Callable[[Result], float | None]:
    """The part of the machine's limit that a case reaches."""
    return lambda result: result.get("offline", {}).get("shares", {}).get(case)


def over_best(case: str) -> Callable[[Result], float | None]:
    """Our speed over the best peer's in the same run."""
    return lambda result: min(_ratios(result, case).values(), default=None)


def over(case: str, rival: str) -> Callable[[Result], float | None]:
    """Our speed over the peer's whose name begins so."""
    return lambda result: min(
        (ratio for name, ratio in _ratios(result, case).items() if name.startswith(rival)),
        default=None,
    )


def _ratios(result: Result, case: str) -> Mapping[str, float]:
    found: Mapping[str, float] = result.get("offline", {}).get("ratios", {}).get(case, {})
    return found


def served(key: str, percentile: str | None = None) -> Callable[[Result], float | None]:
    """Ours over llama-server's, all at once: a throughput, or a percentile of a latency."""

    def measure(result: Result) -> float | None:
        by_server = result.get("served", {}).get("all at once", {})
        theirs = [found for name, found in by_server.items() if name.startswith("llama.cpp")]
        if OURS not in by_server or not theirs:
            return None
        ours, rival = by_server[OURS][key], theirs[0][key]
        return float(ours[percentile] / rival[percentile] if percentile else ours / rival)

    return measure


def continuous_over_static(key: str) -> Callable[[Result], float | None]:
    """Where static batching is saturated, at the rate that it can stand the least by throughput:
    p99 TTFT of static over continuous, or throughput the other way round. Both figures are of that
    one rate. None where no rate saturates it.
    """

    def measure(result: Result) -> float | None:
        by_rate: dict[float, dict[str, Any]] = {}
        for point in result["points"]:
            by_rate.setdefault(point["rate"], {})[point["policy"]] = point
        both = [p for p in by_rate.values() if {"static", "continuous"} <= p.keys()]
        rounds = [
            (_rounds(pair["static"]), _rounds(pair["continuous"]))
            for pair in both
            if not keeps_up(pair["static"])
        ]
        gains = [
            {
                "output_tok_s": _median_ratio(continuous, static, "output_tok_s"),
                "ttft_s": _median_ratio(static, continuous, "ttft_p99_s"),
            }
            for static, continuous in rounds
        ]
        return max(gains, key=lambda gain: gain["output_tok_s"])[key] if gains else None

    return measure


def _rounds(point: Result) -> Sequence[Mapping[str, float]]:
    """A point's rounds; of results that do not have them, the medians as the only one."""
    medians = {"output_tok_s": point["output_tok_s"], "ttft_p99_s": point["ttft_s"]["p99"]}
    rounds: Sequence[Mapping[str, float]] = point.get("rounds") or [medians]
    return rounds


def _median_ratio(
    over: Sequence[Mapping[str, float]], under: Sequence[Mapping[str, float]], key: str
) -> float:
    return statistics.median(a[key] / b[key] for a, b in zip(over, under, strict=True))


def step_ratio(
    many: tuple[int, int], one: tuple[int, int] = (1, 64)
) -> Callable[[Result], float | None]:
    """The time of a step at (streams, context) over that of another."""

    def measure(result: Result) -> float | None:
        at = {(line["streams"], line["context"]): line["ms"] for line in result.get("steps", ())}
        return at[many] / at[one] if many in at and one in at else None

    return measure


def row_ratio(many: int) -> Callable[[Result], float | None]:
    """The time of a step of so many rows of one stream over that of one row."""

    def measure(result: Result) -> float | None:
        at = {line["rows"]: line["ms"] for line in result.get("rows", ())}
        return at[many] / at[1] if many in at and 1 in at else None

    return measure


def drafted(*workloads: str, clock: str = "wall") -> Callable[[Result], float | None]:
    """The best proposer's speed-up on each of these texts, and the least of those; by processor
    time ("cpu") where the result has that.
    """

    def measure(result: Result) -> float | None:
        best: dict[str, float] = {}
        for case in result["cases"]:
            text, found = case["workload"], case if clock == "wall" else case.get(clock)
            if found is not None:
                best[text] = max(best.get(text, 0.0), found["speedup"])
        return min(best[text] for text in workloads) if best.keys() >= set(workloads) else None

    return measure


def given_up(result: Result) -> float | None:
    """Seconds after which drafts had become rare, in the slowest case."""
    seconds = [case.get("off_after_s") for case in result["cases"]]
    return None if None in seconds else max(seconds)


def float_kernels(result: Result) -> float | None:
    """The least share of the multiply rate, f32 and bf16 layers, 16 rows and more."""
    return min(
        (
            line["of_multiply_rate"]
            for line in result["lines"]
            if line["part"] == "layers" and line["format"] in ("f32", "bf16") and line["rows"] >= 16
        ),
        default=None,
    )


def outside_forward(streams: int) -> Callable[[Result], float | None]:
    """Microseconds of a greedy step that are not the forward pass."""
    return lambda result: next(
        (
            line["total_us"]
            for line in result["lines"]
            if line["streams"] == streams and line["sampling"] == "greedy"
        ),
        None,
    )


def start(result: Result) -> float | None:
    seconds = result.get("start", {}).get("seconds")
    return statistics.median(seconds) if seconds else None


def _least(what: str, bound: float, source: str, measure: Any, shown: str = "{:.2f}x") -> Target:
    return Target(what, bound, False, source, measure, shown)


def _most(what: str, bound: float, source: str, measure: Any, shown: str = "{:.2f}x") -> Target:
    return Target(what, bound, True, source, measure, shown)


SPEC, NEVER = "spec-smollm2-135m-1-stream", "spec-smollm2-135m-16-streams"
Q4, Q8, F32 = "peers-4bit", "peers-int8", "peers-f32"
PERCENT = "{:.0%}"
MICRO = "{:.0f} µs"
TARGETS = (
    _least("4 bits, 1 stream: share of the bus", 0.85, Q4, share("decode 1"), PERCENT),
    _least("4 bits, 1 stream: over llama.cpp", 1.4, Q4, over("decode 1", "llama.cpp")),
    _least("4 bits, 1 stream: over ik_llama.cpp", 1.15, Q4, over("decode 1", "ik_llama.cpp")),
    _least("int8, 1 stream: share of the bus", 0.85, Q8, share("decode 1"), PERCENT),
    _least("int8, 1 stream: over llama.cpp", 1.4, Q8, over("decode 1", "llama.cpp")),
    _least("int8, 1 stream: over ik_llama.cpp", 1.15, Q8, over("decode 1", "ik_llama.cpp")),
    _least("4 bits, 8 streams: over the best peer", 2.5, Q4, over_best("decode 8")),
    _least("4 bits, 16 streams: over the best peer", 3.0, Q4, over_best("decode 16")),
    _least("4 bits, 32 streams: over the best peer", 3.0, Q4, over_best("decode 32")),
    _least("int8, 8 streams: over the best peer", 2.0, Q8, over_best("decode 8")),
    _least("int8, 16 streams: over the best peer", 2.0, Q8, over_best("decode 16")),
    _least("int8, 32 streams: over the best peer", 2.0, Q8, over_best("decode 32")),
    _least("f32, 8 streams: share of the limit", 0.85, F32, share("decode 8"), PERCENT),
    _least("f32, 16 streams: over the best peer", 2.0, F32, over_best("decode 16")),
    _least("f32, 32 streams: over the best peer", 2.0, F32, over_best("decode 32")),
    _most("4 bits: a step of 4 streams over one of 1", 1.25, "growth", step_ratio((4, 64))),
    _most("4 bits, 1 stream: a step that checks 4 drafts over one without", 1.4, "growth",
          row_ratio(5)),
    _least("4 bits, prompt of 512: share of the peak", 0.6, Q4, share("prefill 512"), PERCENT),
    _least("int8, prompt of 512: share of the peak", 0.6, Q8, share("prefill 512"), PERCENT),
    _least("f32, prompt of 512: share of the peak", 0.6, F32, share("prefill 512"), PERCENT),
    _least("4 bits, prompt of 512: over the best peer", 2.5, Q4, over_best("prefill 512")),
    _least("int8, prompt of 512: over the best peer", 2.5, Q8, over_best("prefill 512")),
    _least("f32, prompt of 512: over the best peer", 2.5, F32, over_best("prefill 512")),
    _least("f32 and bf16 kernels, 16 rows and more", 0.8, "kernels", float_kernels, PERCENT),
    _least("served, all at once: throughput over llama-server", 4.0, Q4, served("output_tok_s")),
    _most("served, all at once: p99 TTFT", 0.25, Q4, served("ttft_s", "p99")),
    _most("served, all at once: p99 inter-token", 0.25, Q4, served("inter_token_s", "p99")),
    _least("static saturated: p99 TTFT, static over continuous", 6.7, "pareto",
           continuous_over_static("ttft_s")),
    _least("static saturated: throughput, continuous over static", 1.58, "pareto",
           continuous_over_static("output_tok_s")),
    _least("drafts: repetitive text and code, 1 stream", 2.0, SPEC, drafted("repetitive", "code")),
    _least("drafts: chat, 1 stream", 1.15, SPEC, drafted("chat")),
    _least("drafts that are never right, 16 streams", 0.98, NEVER, drafted("chat", "random")),
    _least("the same in processor time", 0.98, NEVER, drafted("chat", "random", clock="cpu")),
    _most("a draft model that is never right: off after", 1.0, "spec-stranger", given_up,
          "{:.2f} s"),
    _most("outside the forward pass, 1 stream", 100, "step-overhead", outside_forward(1), MICRO),
    _most("outside the forward pass, 32 streams", 300, "step-overhead", outside_forward(32), MICRO),
    _most("one stream: context of 4,096 over 64", 1.5, "growth", step_ratio((1, 4096))),
    _most("command to `/health`", 1.0, "growth", start, "{:.2f} s"),
    _most("resident memory over weights and touched KV", 1.3, "growth",
          lambda result: result.get("resident", {}).get("ratio")),
)  # fmt: skip
