"""What speed was aimed at, and what the committed results say of it.

Each target reads the figure from a result; where the result is absent the target is not measured.
Where a result also tells what the machine allows, the figure is given that it would be at this
limit, and how near to it the measured one is. A target beyond the limit counts as out of reach.

There are two machines: the reference, and one with AVX-512 and a matrix unit. Where a result is of
both, that of the latter ends in `-amx`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tinyserve.bench.common import table
from tinyserve.bench.report_measures import (
    Measure,
    at_limit,
    continuous_over_static,
    drafted,
    float_kernels,
    given_up,
    outside_forward,
    over,
    over_best,
    over_torch,
    row_ratio,
    served,
    share,
    start,
    step_ratio,
)
from tinyserve.bench.results import Results

NEAR = 0.9  # from this share of a limit on, it counts as reached
AMX = "-amx"  # ends the names of the second machine's results


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
        reference, amx = ["not measured", "", ""], ["", ""]
        for name in (self.source, self.source + AMX):
            result = results.read(name)
            found = None if result is None else self.measure(result)
            if result is None or found is None:
                continue
            limit = self.at_limit(result)
            shown, verdict = self.shown.format(found), self._verdict(found, limit)
            if result.get("machine", {}).get("kernels") == "amx":
                amx = [shown, verdict]
            else:
                reference = [shown, self._limit(found, limit), verdict]
        return [self.what, wanted, *reference, *amx, f"`{self.source}`"]

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
        ["what", "target", "measured", "at the machine's limit", "met", "AMX", "met", "result"],
        [target.row(results) for target in TARGETS],
    )


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
    _least("the same over torch (oneDNN, MKL)", 1.0, "kernels", over_torch),
    _least("served, all at once: throughput over llama-server", 4.0, Q4, served("output_tok_s")),
    _most("served, all at once: p99 TTFT", 0.25, Q4, served("ttft_s", "p99")),
    _most("served, all at once: p99 inter-token", 0.25, Q4, served("inter_token_s", "p99")),
    _least("static saturated: p99 TTFT, static over continuous", 6.7, "pareto",
           continuous_over_static("ttft_s")),
    replace(_least("static saturated: throughput, continuous over static", 1.58, "pareto",
                   continuous_over_static("output_tok_s")),
            at_limit=continuous_over_static("limit")),
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
