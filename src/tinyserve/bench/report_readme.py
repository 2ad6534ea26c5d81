"""The blocks of the README: the few figures that a newcomer looks for, from the same results."""

from __future__ import annotations

from collections.abc import Callable

from tinyserve.bench.common import table
from tinyserve.bench.peer_tables import offline_table, times
from tinyserve.bench.results import Result, Results

NOTHING = "*Not measured yet.*"


def made_by(name: str, result: Result) -> str:
    """The file and the command."""
    link = f"[`{name}.json`](benchmarks/results/{name}.json)"
    return f"Result: {link}, made by\n\n```sh\n{result['command']}\n```"


def drawn_from(name: str) -> Callable[[Callable[[Result], str]], Callable[[Results], str]]:
    """A block that shows one result: what is drawn from it, where it is and how it was made."""

    def block(draw: Callable[[Result], str]) -> Callable[[Results], str]:
        def text(results: Results) -> str:
            result = results.read(name)
            return NOTHING if result is None else draw(result) + made_by(name, result)

        return text

    return block


@drawn_from("peers-4bit")
def summary(result: Result) -> str:
    """Four bits, this engine and its rivals."""
    found = result["offline"]
    share = found["shares"].get("decode 1")
    return "\n\n".join(
        [
            offline_table(found),
            f"In that run the machine read {found['ceilings']['read_gb_s']:.1f} GB/s, of which one "
            f"stream used {share:.0%}. ",
        ]
    )


@drawn_from("peers-4bit-amx")
def amx_summary(result: Result) -> str:
    """The same on the machine with a matrix unit."""
    return offline_table(result["offline"]) + "\n\n"


@drawn_from("spec-smollm2-135m-1-stream")
def speculation_summary(result: Result) -> str:
    """One stream, greedy, by text and proposer."""
    cases = result["cases"]
    proposers = list(dict.fromkeys(case["proposer"] for case in cases))
    speedups = {(case["workload"], case["proposer"]): case["speedup"] for case in cases}
    rows = [
        [workload, *(times(speedups[workload, proposer]) for proposer in proposers)]
        for workload in dict.fromkeys(case["workload"] for case in cases)
    ]
    return f"{table(['text', *proposers], rows)}\n\n"


@drawn_from("load-torture-smollm2-135m")
def load_summary(result: Result) -> str:
    """What became of everybody under a crowd and an overload."""
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
    return f"{table(['under load', ''], rows)}\n\n"


@drawn_from("http-overhead")
def http_summary(result: Result) -> str:
    """The server's own processor time, the event loop's and the engine thread's together."""
    shown = [row for row in result["rows"] if row["what"].startswith(("streamed token", "request"))]
    rows = [
        [r["what"], r["streams"], f"{(r['loop_us'] + r['engine_us']) / 1e3:.2f}"] for r in shown
    ]
    header = ["the server's own processor time", "streams", "ms"]
    return f"{table(header, rows)}\n\n"
