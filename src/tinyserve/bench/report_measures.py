"""Figures that targets are set for, each read from one result; None where it lacks them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tinyserve.bench.latency import keeps_up
from tinyserve.bench.peer_tables import OURS
from tinyserve.bench.results import Result

Measure = Callable[[Result], float | None]


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
    one rate, and so is "limit": the throughput that is offered there, or that a machine with every
    seat taken in every step would reach, over static. None where no rate saturates it.
    """

    def measure(result: Result) -> float | None:
        by_rate: dict[float, dict[str, Any]] = {}
        for point in result["points"]:
            by_rate.setdefault(point["rate"], {})[point["policy"]] = point
        both = [p for p in by_rate.values() if {"static", "continuous"} <= p.keys()]
        gains: list[tuple[float, dict[str, float | None]]] = []
        for pair in both:
            if keeps_up(pair["static"]):
                continue
            static, continuous = _rounds(pair["static"]), _rounds(pair["continuous"])
            speed = _median_ratio(continuous, static, "output_tok_s")
            ttft = _median_ratio(static, continuous, "ttft_p99_s")
            limit = _most_over(pair["static"], result.get("most_tok_s"))
            gains.append((speed, {"output_tok_s": speed, "ttft_s": ttft, "limit": limit}))
        return max(gains, key=lambda gain: gain[0])[1][key] if gains else None

    return measure


def _most_over(point: Result, most_tok_s: float | None) -> float | None:
    if most_tok_s is None:
        return None
    offered = point["offered_requests_s"] * point["output_tokens"] / point["requests"]
    return float(min(most_tok_s, offered) / point["output_tok_s"])


def _rounds(point: Result) -> Sequence[Mapping[str, float]]:
    """A point's rounds; of results that do not have them, the medians as the only one."""
    medians = {"output_tok_s": point["output_tok_s"], "ttft_p99_s": point["ttft_s"]["p99"]}
    rounds: Sequence[Mapping[str, float]] = point.get("rounds") or [medians]
    return rounds


def _median_ratio(
    over: Sequence[Mapping[str, float]], under: Sequence[Mapping[str, float]], key: str
) -> float:
    return statistics.median(a[key] / b[key] for a, b in zip(over, under, strict=True))


def step_ratio(many: tuple[int, int], key: str = "ms") -> Measure:
    """The time of a step at (streams, context) over that of one stream at a context of 64; with
    "limit_ms", of the least times that the machine allows for them.
    """

    def measure(result: Result) -> float | None:
        lines = result.get("steps", ())
        return _ratio(
            {(line["streams"], line["context"]): line.get(key) for line in lines}, many, (1, 64)
        )

    return measure


def row_ratio(many: int, key: str = "ms") -> Measure:
    """The time of a step of so many rows of one stream over that of one row; `key` as above."""

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
    """The least share of the f32 multiply rate, f32 and bf16 layers, 16 rows and more."""
    least = _least_of_float_layers(result, "gmac_s")
    return None if least is None else least / result["ceilings"]["f32_gmac_s"]


def over_torch(result: Result) -> float | None:
    """The least speed of the same over that of torch's products."""
    return _least_of_float_layers(result, "over_torch")


def _least_of_float_layers(result: Result, key: str) -> float | None:
    return min(
        (
            line[key]
            for line in result["lines"]
            if line["part"] == "layers"
            and line["format"] in ("f32", "bf16")
            and line["rows"] >= 16
            and key in line
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
