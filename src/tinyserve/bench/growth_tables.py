"""Tables of how costs grow, from the values that `growth` writes."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from tinyserve.bench.common import table


def report(result: Mapping[str, Any]) -> str:
    """All parts as tables."""
    tables = []
    if "steps" in result:
        tables.append(steps_table(result["steps"]))
    if "rows" in result:
        tables.append(rows_table(result["rows"]))
    if "memory" in result:
        tables.append(memory_table(result["memory"]))
    if "start" in result:
        tables.append(start_table(result))
    return "\n\n".join(tables)


def steps_table(lines: list[dict[str, Any]]) -> str:
    """Milliseconds of a step, and in comparison with one stream and the shortest context; with the
    share of the limit where that is known.
    """
    base = lines[0]["ms"]
    rows = []
    for line in lines:
        streams, ms = line["streams"], line["ms"]
        rows.append([streams, line["context"], ms, ms / base, 1e3 * streams / ms, *of_limit(line)])
    header = ["streams", "context", "step ms", "to the first", "tok/s"]
    return table(header + (["of the limit"] if of_limit(lines[0]) else []), rows)


def of_limit(line: dict[str, Any]) -> list[str]:
    """The share of the limit that a step reached; nothing where no limit was measured."""
    limit = line.get("limit_ms")
    return [] if limit is None else [f"{limit / line['ms']:.0%}"]


def rows_table(lines: list[dict[str, Any]]) -> str:
    """Milliseconds of a step of one stream, and in comparison with the first."""
    base = lines[0]["ms"]
    found = [
        [line["rows"], line["context"], line["ms"], line["ms"] / base, *of_limit(line)]
        for line in lines
    ]
    header = ["rows of one stream", "context", "step ms", "to the first"]
    return table(header + (["of the limit"] if of_limit(lines[0]) else []), found)


def memory_table(memory: dict[str, Any]) -> str:
    """Resident memory at some points of the run."""
    samples = memory["samples"]
    shown = [samples[round(i * (len(samples) - 1) / 5)] for i in range(6)]
    growth = f"{memory['growth_kib_per_1000']:.3g} KiB per 1,000 requests"
    samples_table = table(["requests done", "resident MiB"], shown)
    return f"{samples_table}\n\ngrowth after the first tenth: {growth}"


def start_table(result: Mapping[str, Any]) -> str:
    """Start-up times, and the account of resident memory."""
    times, found = result["start"]["seconds"], result["resident"]
    rows = [
        ["command to /health, median of " + str(len(times)), f"{statistics.median(times):.2f} s"],
        ["slowest", f"{max(times):.2f} s"],
        ["weights, packed", mib(found["weights"])],
        ["KV-cache, touched", mib(found["kv_cache"])],
        ["interpreter and libraries alone", mib(found["baseline"])],
        ["resident after 16 streams", mib(found["resident"])],
        ["resident without the baseline, over weights and KV", f"{found['ratio']:.2f}x"],
    ]
    return table(["what", "value"], rows)


def mib(num_bytes: float) -> str:
    return f"{num_bytes / 2**20:.0f} MiB"
