"""Tables of a comparison with peers, from the values that `peers` writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tinyserve.bench.common import cell, p50_p99, table
from tinyserve.bench.latency import LATENCIES

OURS = "tinyserve"


def offline_table(result: Mapping[str, Any]) -> str:
    """Cases by engines in tokens a second; behind each peer's, ours over it."""
    medians, ratios = result["medians"], result["ratios"]
    rivals = list(dict.fromkeys(n for case in medians.values() for n in case if n != OURS))
    rows = []
    for case, found in medians.items():
        over = {name: f" ({times(ratios[case].get(name))})" for name in found}
        theirs = [cell(found[n]) + over[n] if n in found else "" for n in rivals]
        rows.append([case, found[OURS], *theirs])
    return table(["tok/s", OURS, *(f"{name} (ours over it)" for name in rivals)], rows)


def times(ratio: float | None) -> str:
    """ "2.31x"; nothing of nothing."""
    return "" if ratio is None else f"{ratio:.2f}x"


def limits_line(result: Mapping[str, Any]) -> str:
    """What the machine reached in that run, and what share of it we took."""
    c = result["ceilings"]
    shown = [
        f"read bandwidth {c['read_gb_s']:.1f} GB/s",
        f"multiply rates {c['u4s8_gmac_s']:.0f} (u4 x int8), {c['int16_gmac_s']:.0f} (int16), "
        f"{c['f32_gmac_s']:.0f} (f32) GMAC/s",
        *(f"{case}: {share:.0%} of its limit" for case, share in result["shares"].items()),
    ]
    return "; ".join(shown)


def served_table(result: Mapping[str, Any]) -> str:
    """Loads by servers: throughput, and latencies in milliseconds, p50 / p99."""
    rows = []
    for load, by_server in result.items():
        for name, found in by_server.items():
            latencies = [p50_p99(found.get(key)) for key in LATENCIES]
            rows.append([load, name, found.get("output_tok_s"), *latencies, found["failed"]])
    header = ["load", "server", "tok/s", "TTFT ms", "inter-token ms", "e2e ms", "failed"]
    return table(header, rows)


def served_ratios(result: Mapping[str, Any]) -> str:
    """For each load and rival: our throughput over its, and our 99th percentiles in its."""
    rows = []
    for load, by_server in result.items():
        ours = by_server[OURS]
        for name, theirs in by_server.items():
            if name != OURS and "output_tok_s" in theirs:
                shares = [_share(ours.get(key), theirs.get(key)) for key in LATENCIES]
                speed = times(ours["output_tok_s"] / theirs["output_tok_s"])
                rows.append([load, name, speed, *shares])
    header = ["load", "against", "throughput", "p99 TTFT", "p99 inter-token", "p99 e2e"]
    return table(header, rows)


def _share(ours: Mapping[str, float] | None, theirs: Mapping[str, float] | None) -> str:
    return f"{ours['p99'] / theirs['p99']:.0%}" if ours and theirs and theirs["p99"] else ""
