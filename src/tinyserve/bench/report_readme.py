"""The blocks of the README: the few figures that a newcomer looks for, from the same results."""

from __future__ import annotations

from tinyserve.bench.common import table
from tinyserve.bench.peer_tables import offline_table, times
from tinyserve.bench.results import Result, Results

NOTHING = "*Not measured yet.*"


def summary(results: Results) -> str:
    """Four bits, this engine and its rivals."""
    result = results.read("peers-4bit")
    if result is None:
        return NOTHING
    found = result["offline"]
    share = found["shares"].get("decode 1")
    return "\n\n".join(
        [
            offline_table(found),
            f"In that run the machine read {found['ceilings']['read_gb_s']:.1f} GB/s, of which one "
            f"stream used {share:.0%}. {made_by('peers-4bit', result)}",
        ]
    )


def speculation_summary(results: Results) -> str:
    """One stream, greedy, by text and proposer."""
    name = "spec-smollm2-135m-1-stream"
    result = results.read(name)
    if result is None:
        return NOTHING
    cases = result["cases"]
    proposers = list(dict.fromkeys(case["proposer"] for case in cases))
    speedups = {(case["workload"], case["proposer"]): case["speedup"] for case in cases}
    rows = [
        [workload, *(times(speedups[workload, proposer]) for proposer in proposers)]
        for workload in dict.fromkeys(case["workload"] for case in cases)
    ]
    return f"{table(['text', *proposers], rows)}\n\n{made_by(name, result)}"


def load_summary(results: Results) -> str:
    """What became of everybody under a crowd and an overload."""
    name = "load-torture-smollm2-135m"
    result = results.read(name)
    if result is None:
        return NOTHING
    endings = [
        sum(phase.get(kind, 0) for phase in result["phases"].values())
        for kind in ("ended", "left", "refused", "wrong")
    ]
    health, memory = result["health_ms"], result["memory_mib"]
    rows: list[list[object]] = [
        ["answered · hung up · told 429 · wrong", " · ".join(map(str, endings))],
        [
            "`/health`: median · 99th percentile · longest",
            f"{health['p50']:.0f} · {health['p99']:.0f} · {health['max']:.0f} ms",
        ],
        [
            "memory: when warm · at the end",
            f"{memory['warm']:.1f} · {memory['after']:.1f} MiB",
        ],
    ]
    return f"{table(['under load', ''], rows)}\n\n{made_by(name, result)}"


def http_summary(results: Results) -> str:
    """The server's own processor time, the event loop's and the engine thread's together."""
    name = "http-overhead"
    result = results.read(name)
    if result is None:
        return NOTHING
    shown = [row for row in result["rows"] if row["what"].startswith(("streamed token", "request"))]
    rows = [
        [r["what"], r["streams"], f"{(r['loop_us'] + r['engine_us']) / 1e3:.2f}"] for r in shown
    ]
    header = ["the server's own processor time", "streams", "ms"]
    return f"{table(header, rows)}\n\n{made_by(name, result)}"


def made_by(name: str, result: Result) -> str:
    """The file and the command."""
    link = f"[`{name}.json`](benchmarks/results/{name}.json)"
    return f"Result: {link}, made by\n\n```sh\n{result['command']}\n```"
