"""What speed was aimed at, and what the committed results say of it.

Each target reads the figure from a result; where the result is absent the target is not measured.
Where a result also tells what the machine allows, the figure is given that it would be at this
limit, and how near to it the measured one is. A target beyond the limit counts as out of reach.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tinyserve.bench.common import table
from tinyserve.bench.latency import keeps_up
from tinyserve.bench.peer_tables import OURS
from tinyserve.bench.results import Result, Results

Measure = Callable[[Result], float | None]
NEAR = 0.9  # of the limit: as good as at it


@dataclass(frozen=True)
class Target:
    """A figure with a bound. `measure` gives None where the result lacks what it needs."""

    what: str
    bound: float
    is_at_most: bool
    source: str
    measure: Measure
    shown: str = "{:.2f}x"
    at_limit: Measure = lambda result: None  # the figure, if the machine's limit were reached

    def row(self, results: Results) -> list[str]:
        wanted = ("at most " if self.is_at_most else "at least ") + self.shown.format(self.bound)
        result = results.read(self.source)
        found = None if result is None else self.measure(result)
        if result is None or found is None:
            return [self.what, wanted, "not measured", "", "", f"`{self.source}`"]
        limit = self.at_limit(result)
        shown = [self.shown.format(found), self._limit(found, limit), self._verdict(found, limit)]
        return [self.what, wanted, *shown, f"`{self.source}`"]

    def _limit(self, found: float, limit: float | None) -> str:
        if limit is None:
            return ""
        return f"{self.shown.format(limit)} ({self._near(found, limit):.0%} reached)"

    def _verdict(self, found: float, limit: float | None) -> str:
        if self._meets(found):
            return "yes"
        if limit is None or self._meets(limit):
            return "**no**"
        return "at the limit" if self._near(found, limit) >= NEAR else "**no**, out of reach"

    def _meets(self, figure: float) -> bool:
        return figure <= self.bound if self.is_at_most else figure >= self.bound

    def _near(self, found: float, limit: float) -> float:
        return limit / found if self.is_at_most else found / limit


def targets_table(results: Results) -> str:
    """All targets, met or not."""
    return table(
        ["what", "target", "measured", "at the machine's limit", "met", "result"],
        [target.row(results) for target in TARGETS],
    )


def share(case: str) -> Measure:
    """The part of the machine's limit that a case reaches."""
    return lambda result: result.get("offline", {}).get("shares", {}).get(case)


def over_best(case: str) -> Measure:
    """Our speed over the best peer's in the same run."""
    return lambda result: min(_ratios(result, case).values(), default=None)


def over(case: str, rival: str) -> Measure:
    """Our speed over the peer's whose name begins so."""
    return lambda result: min(
        (ratio for name, ratio in _ratios(result, case).items() if name.startswith(rival)),
        default=None,
    )


def at_limit(case: str, measure: Measure) -> Measure:
    """What a ratio to peers would be, if we were as fast as the machine's limit on that case. None
    of results from before shares were taken format by format (they have no sizes).
    """

    def limit(result: Result) -> float | None:
        if "sizes" not in result.get("offline", {}):
            return None
        found, reached = measure(result), share(case)(result)
        return found / reached if found and reached else None

    return limit


def _ratios(result: Result, case: str) -> Mapping[str, float]:
    found: Mapping[str, float] = result.get("offline", {}).get("ratios", {}).get(case, {})
    return found


def served(key: str, percentile: str | None = None) -> Measure:
    """Ours over llama-server's, all at once: a throughput, or a percentile of a latency."""

    def measure(result: Result) -> float | None:
        by_server = result.get("served", {}).get("all at once", {})
        theirs = [found for name, found in by_server.items() if name.startswith("llama.cpp")]
        if OURS not in by_server or not theirs:
            return None
        ours, rival = by_server[OURS][key], theirs[0][key]
        return float(ours[percentile] / rival[percentile] if percentile else ours / rival)

    return measure


def continuous_over_static(key: str) -> Measure:
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


def step_ratio(many: tuple[int, int], one: tuple[int, int] = (1, 64), key: str = "ms") -> Measure:
    """The time of a step at (streams, context) over that of another; with "limit_ms", of the least
    times that the machine allows for them.
    """

    def measure(result: Result) -> float | None:
        lines = result.get("steps", ())
        return _ratio(
            {(line["streams"], line["context"]): line.get(key) for line in lines}, many, one
        )

    return measure


def row_ratio(many: int, key: str = "ms") -> Measure:
    """The same of a step of so many rows of one stream over that of one row."""

    def measure(result: Result) -> float | None:
        return _ratio({line["rows"]: line.get(key) for line in result.get("rows", ())}, many, 1)

    return measure


def _ratio(times: Mapping[Any, float | None], many: Any, one: Any) -> float | None:
    over, under = times.get(many), times.get(one)
    return over / under if over and under else None


def drafted(*workloads: str, clock: str = "wall") -> Measure:
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


def outside_forward(streams: int) -> Measure:
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


def _least(
    what: str, bound: float, source: str, measure: Measure, shown: str = "{:.2f}x"
) -> Target:
    return Target(what, bound, False, source, measure, shown)


def _most(what: str, bound: float, source: str, measure: Measure, shown: str = "{:.2f}x") -> Target:
    return Target(what, bound, True, source, measure, shown)


def _over(what: str, bound: float, source: str, case: str, rival: str | None = None) -> Target:
    """Over the best peer, or over the one that is named."""
    measure = over_best(case) if rival is None else over(case, rival)
    return replace(_least(what, bound, source, measure), at_limit=at_limit(case, measure))


SPEC, NEVER = "spec-smollm2-135m-1-stream", "spec-smollm2-135m-16-streams"
Q4, Q8, F32 = "peers-4bit", "peers-int8", "peers-f32"
PERCENT = "{:.0%}"
MICRO = "{:.0f} µs"
TARGETS = (
    _least("4 bits, 1 stream: share of the bus", 0.85, Q4, share("decode 1"), PERCENT),
    _over("4 bits, 1 stream: over llama.cpp", 1.4, Q4, "decode 1", "llama.cpp"),
    _over("4 bits, 1 stream: over ik_llama.cpp", 1.15, Q4, "decode 1", "ik_llama.cpp"),
    _least("int8, 1 stream: share of the bus", 0.85, Q8, share("decode 1"), PERCENT),
    _over("int8, 1 stream: over llama.cpp", 1.4, Q8, "decode 1", "llama.cpp"),
    _over("int8, 1 stream: over ik_llama.cpp", 1.15, Q8, "decode 1", "ik_llama.cpp"),
    _over("4 bits, 8 streams: over the best peer", 2.5, Q4, "decode 8"),
    _over("4 bits, 16 streams: over the best peer", 3.0, Q4, "decode 16"),
    _over("4 bits, 32 streams: over the best peer", 3.0, Q4, "decode 32"),
    _over("int8, 8 streams: over the best peer", 2.0, Q8, "decode 8"),
    _over("int8, 16 streams: over the best peer", 2.0, Q8, "decode 16"),
    _over("int8, 32 streams: over the best peer", 2.0, Q8, "decode 32"),
    _least("f32, 8 streams: share of the limit", 0.85, F32, share("decode 8"), PERCENT),
    _over("f32, 16 streams: over the best peer", 2.0, F32, "decode 16"),
    _over("f32, 32 streams: over the best peer", 2.0, F32, "decode 32"),
    replace(_most("4 bits: a step of 4 streams over one of 1", 1.25, "growth", step_ratio((4, 64))),
            at_limit=step_ratio((4, 64), key="limit_ms")),
    replace(_most("4 bits, 1 stream: a step that checks 4 drafts over one without", 1.4, "growth",
                  row_ratio(5)), at_limit=row_ratio(5, key="limit_ms")),
    _least("4 bits, prompt of 512: share of the peak", 0.6, Q4, share("prefill 512"), PERCENT),
    _least("int8, prompt of 512: share of the peak", 0.6, Q8, share("prefill 512"), PERCENT),
    _least("f32, prompt of 512: share of the peak", 0.6, F32, share("prefill 512"), PERCENT),
    _over("4 bits, prompt of 512: over the best peer", 2.5, Q4, "prefill 512"),
    _over("int8, prompt of 512: over the best peer", 2.5, Q8, "prefill 512"),
    _over("f32, prompt of 512: over the best peer", 2.5, F32, "prefill 512"),
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
    replace(_most("one stream: context of 4,096 over 64", 1.5, "growth", step_ratio((1, 4096))),
            at_limit=step_ratio((1, 4096), key="limit_ms")),
    _most("command to `/health`", 1.0, "growth", start, "{:.2f} s"),
    _most("resident memory over weights and touched KV", 1.3, "growth",
          lambda result: result.get("resident", {}).get("ratio")),
)  # fmt: skip
