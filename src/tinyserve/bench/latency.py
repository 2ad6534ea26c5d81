"""What a run was like for those who waited: records of requests, and percentiles over them.

Times are seconds on one clock. TTFT is from arrival to first token, inter-token latency the gaps
after it, e2e from arrival to the last token. Over HTTP a token time is that of a piece of a stream,
which may hold several tokens.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

LATE = 1.05  # see `keeps_up`
LATENCIES = ("ttft_s", "inter_token_s", "e2e_s")  # keys of a summary


@dataclass
class Record:
    """One request: when it came, and when each of its tokens did."""

    arrived: float
    prompt_tokens: int = 0
    token_times: list[float] = field(default_factory=list)
    num_tokens: int = 0  # as counted by the server; else one per token time
    client: str = ""
    error: str | None = None
    cached_tokens: int = 0

    @property
    def ttft(self) -> float:
        return self.token_times[0] - self.arrived

    @property
    def e2e(self) -> float:
        return self.token_times[-1] - self.arrived

    @property
    def gaps(self) -> list[float]:
        return [b - a for a, b in zip(self.token_times, self.token_times[1:], strict=False)]

    @property
    def output_tokens(self) -> int:
        return self.num_tokens or len(self.token_times)

    def meets(self, slo: SLO) -> bool:
        """Whether first token and mean gap, token by token, are within the objective."""
        num_gaps = max(self.output_tokens, len(self.token_times)) - 1
        mean_gap = (self.token_times[-1] - self.token_times[0]) / max(num_gaps, 1)
        return self.ttft <= slo.ttft_s and mean_gap <= slo.inter_token_s


@dataclass(frozen=True)
class SLO:
    """A service level objective: what a user still finds quick."""

    ttft_s: float = 2.0
    inter_token_s: float = 0.2

    @classmethod
    def parse(cls, text: str) -> SLO:
        """ "2,0.2": seconds to the first token, seconds between tokens on average."""
        first, gap = (float(part) for part in text.split(","))
        if not (first > 0 and gap > 0):
            raise ValueError(text)
        return cls(first, gap)


def percentile(values: Sequence[float], share: float) -> float:
    """Linear interpolation between order statistics; `share` in 0..1."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def spread(values: Iterable[float]) -> dict[str, float] | None:
    """p50, p90, p99 and mean; None of nothing."""
    found = list(values)
    if not found:
        return None
    shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
    result = {name: percentile(found, share) for name, share in shares.items()}
    return {**result, "mean": sum(found) / len(found)}


def keeps_up(found: Mapping[str, Any]) -> bool:
    """Whether a run did its work as fast as it came.

    From the first arrival to the end it took at most LATE times as long as requests arrived (where
    that was not noted: as they arrive at the point's rate), but for the time that two answers take:
    the last one, and one that it had to wait for.
    """
    answer = found["e2e_s"]["p50"] - found["ttft_s"]["p50"]
    return bool(found["duration_s"] - 2 * answer <= LATE * _arriving_s(found))


def is_too_short(found: Mapping[str, Any]) -> bool:
    """Whether two answers take as long as requests arrived: then `keeps_up` says nothing."""
    return bool(2 * (found["e2e_s"]["p50"] - found["ttft_s"]["p50"]) >= _arriving_s(found))


def _arriving_s(found: Mapping[str, Any]) -> float:
    """How long requests arrived, in seconds."""
    return float(found["requests"] / (found.get("offered_requests_s") or found["rate"]))


def summary(records: Sequence[Record], slo: SLO | None = None) -> dict[str, Any]:
    """Throughput, latencies and goodput of one run.

    Throughput counts output tokens from the first arrival to the last token. What was offered is
    counted from the first arrival to the last; None where all came at once.
    """
    done = [r for r in records if r.token_times and r.error is None]
    slo = slo or SLO()
    result: dict[str, Any] = {
        "requests": len(records),
        "failed": len(records) - len(done),
        "output_tokens": sum(r.output_tokens for r in done),
        "prompt_tokens": sum(r.prompt_tokens for r in done),
        "cached_tokens": sum(r.cached_tokens for r in done),
    }
    if not done:
        return result
    begin, last = min(r.arrived for r in records), max(r.arrived for r in records)
    duration = max(r.token_times[-1] for r in done) - begin
    good = sum(r.meets(slo) for r in done)
    return {
        **result,
        "duration_s": duration,
        "output_tok_s": result["output_tokens"] / duration,
        "requests_s": len(done) / duration,
        "offered_requests_s": (len(records) - 1) / (last - begin) if last > begin else None,
        "goodput_requests_s": good / duration,
        "slo_attainment": good / len(records),
        "slo": {"ttft_s": slo.ttft_s, "inter_token_s": slo.inter_token_s},
        "ttft_s": spread(r.ttft for r in done),
        "inter_token_s": spread(gap for r in done for gap in r.gaps),
        "e2e_s": spread(r.e2e for r in done),
    }


def median_of(summaries: list[dict[str, Any]]) -> dict[str, Any]:
    """The median of several rounds' summaries, field by field."""
    first = summaries[0]
    result: dict[str, Any] = {}
    for name, value in first.items():
        values = [s[name] for s in summaries]
        if isinstance(value, dict):
            result[name] = median_of([v for v in values if v is not None])
        elif value is None:
            result[name] = None
        else:
            result[name] = statistics.median(values)
    return result
