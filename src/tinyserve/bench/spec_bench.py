"""What speculative decoding brings and what it costs, against plain decoding in the same run.

    python -m tinyserve.bench.spec_bench --model default --out FILE.json --plot FILE.png

For each workload and proposer: one case at the first value of `--k`, `--temperatures` and
`--streams`, and one more for every other value of each (`--full`: every combination); and, with
`--control both`, the first also without the controller. Each case is measured `--repeat` times,
plain and with drafts in turn; a batch counts from when every stream has its first token. A speed-up
is the median over the rounds of (tokens a second with drafts / without). Outputs are compared:
under coupled verification they must be the same. Proposers start afresh in each round.

Where a few per cent matter, rounds scatter too much on a shared machine: `--pairs N` runs both
engines side by side instead, a few steps each in turns, over as many batches as N pairs take. It
gives the median ratio with a 95 % interval, and the ratio over all pairs, by the wall clock and by
processor time (`spec_pairs`). What drafts that are never right cost with 16 streams:

    python -m tinyserve.bench.spec_bench --model default --proposers random --workloads chat,random
        --k 8 --temperatures 0.8 --streams 16 --control on --new 225 --pairs 100
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any

from tinyserve.bench.arguments import floats, ints, names_of, plot_file, positive_int
from tinyserve.bench.common import (
    command,
    end_if,
    machine,
    model_parser,
    run_program,
    say,
    shown_model,
    table,
    until_interrupted,
    write_json,
)
from tinyserve.bench.plots import figure, save, style
from tinyserve.bench.spec_measure import PROPOSERS, STRANGER, Bench
from tinyserve.bench.spec_runs import Case
from tinyserve.bench.spec_texts import WORKLOADS

Point = Mapping[str, Any]


def main(argv: list[str] | None = None) -> None:
    parser = spec_parser()
    args = parser.parse_args(argv)
    bench = Bench(args)
    points, is_cut = until_interrupted(measured(bench, list(cases_of(args))))
    runner: Any = bench.engine.core.runner
    result = {
        "command": command("spec_bench", args, parser),
        **({"interrupted": True} if is_cut else {}),
        "machine": machine(runner.backend.variant),
        "model": shown_model(bench.engine.model_name),
        "verification": args.verification,
        "cases": points,
    }
    write_json(args.out, result)
    print(table_of(points))
    if args.plot:
        plot(points, args.plot, str(result["model"]))
    end_if(is_cut)


def measured(bench: Bench, cases: Sequence[Case]) -> Iterator[dict[str, Any]]:
    """The result of each case."""
    for number, case in enumerate(cases, 1):
        point = bench.measure(case)
        say(f"{number}/{len(cases)} {_label(case)}: {point['speedup']:.2f}x")
        yield point


def spec_parser() -> argparse.ArgumentParser:
    parser = model_parser("spec_bench", __doc__)
    parser.set_defaults(size="tiny")
    parser.add_argument(
        "--draft-model",
        help=f"model for the proposer draft_model; {STRANGER}: one that is never right",
    )
    parser.add_argument(
        "--proposers",
        type=names_of(PROPOSERS, "proposer"),
        default="ngram,suffix,random",
        help=f"which, separated by commas (default: ngram,suffix,random): {', '.join(PROPOSERS)}",
    )
    parser.add_argument(
        "--workloads",
        type=names_of(WORKLOADS, "workload"),
        default=",".join(WORKLOADS),
        help=f"kinds of text, separated by commas (default: all): {', '.join(WORKLOADS)}",
    )
    parser.add_argument("--k", type=ints, default=[4, 1, 2, 8], help="most drafts in a step")
    parser.add_argument("--temperatures", type=floats, default=[0.0, 0.8], help="of sampling")
    parser.add_argument("--streams", type=ints, default=[1, 4, 16], help="sequences at once")
    parser.add_argument(
        "--control", choices=("on", "off", "both"), default="both", help="the adaptive controller"
    )
    parser.add_argument(
        "--verification",
        choices=("coupled", "rejection"),
        default="coupled",
        help="how drafts are accepted (default: coupled)",
    )
    parser.add_argument(
        "--full", action="store_true", help="every combination; else one option at a time"
    )
    parser.add_argument(
        "--prompts",
        type=positive_int,
        default=4,
        help="prompts of a measurement, in batches of --streams",
    )
    parser.add_argument(
        "--new", type=positive_int, default=96, help="tokens decoded by each stream"
    )
    parser.add_argument(
        "--repeat", type=positive_int, default=3, help="rounds; medians are reported"
    )
    parser.add_argument(
        "--pairs", type=positive_int, help="pairs of slices, side by side, in place of rounds"
    )
    parser.add_argument(
        "--plot", type=plot_file, help="draw the speed-ups into this file (matplotlib)"
    )
    return parser


def cases_of(args: argparse.Namespace) -> Iterator[Case]:
    """The cases that the options ask for, each once."""
    proposers = args.proposers.split(",")
    if args.draft_model and "draft_model" not in proposers:
        proposers.append("draft_model")
    controls = {"on": [True], "off": [False], "both": [True, False]}[args.control]
    for workload, proposer in itertools.product(args.workloads.split(","), proposers):
        first = Case(
            workload, proposer, args.k[0], args.temperatures[0], args.streams[0], controls[0]
        )
        if args.full:
            for k, temperature, streams, control in itertools.product(
                args.k, args.temperatures, args.streams, controls
            ):
                yield Case(workload, proposer, k, temperature, streams, control)
            continue
        yield first
        yield from (replace(first, k=k) for k in args.k[1:])
        yield from (replace(first, temperature=t) for t in args.temperatures[1:])
        yield from (replace(first, streams=n) for n in args.streams[1:])
        yield from (replace(first, control=c) for c in controls[1:])


def _label(case: Case) -> str:
    control = "" if case.control else ", no control"
    return (
        f"{case.workload}, {case.proposer}, k {case.k}, temperature {case.temperature:g}, "
        f"{case.streams} streams{control}"
    )


def table_of(points: Sequence[Point], *, left_out: Collection[str] = ()) -> str:
    """One row a case; where none was measured in pairs, what only those have is left out, too."""
    if not any("cpu" in point for point in points):
        left_out = (*left_out, *IN_PAIRS)
    columns = {name: show for name, show in _COLUMNS.items() if name not in left_out}
    return table(list(columns), [[show(point) for show in columns.values()] for point in points])


def ratio_of(found: Point) -> str:
    """A median ratio, with its interval where there is one."""
    if not found.get("interval"):
        return f"{found['speedup']:.2f}x"
    low, high = found["interval"]
    return f"{found['speedup']:.3f}x ({low:.3f} to {high:.3f})"


IN_PAIRS = ("over all pairs", "in processor time")
_COLUMNS: dict[str, Callable[[Point], object]] = {
    "workload": itemgetter("workload"),
    "proposer": itemgetter("proposer"),
    "k": itemgetter("k"),
    "temperature": lambda p: f"{p['temperature']:g}",
    "streams": itemgetter("streams"),
    "control": lambda p: "on" if p["control"] else "off",
    "accepted": lambda p: "" if p["acceptance"] is None else f"{p['acceptance']:.0%}",
    "tokens a step": itemgetter("tokens_per_step"),
    "plain tok/s": itemgetter("plain_tok_s"),
    "tok/s": itemgetter("tok_s"),
    "speed-up": ratio_of,
    "over all pairs": lambda p: f"{p['total']:.3f}x" if "cpu" in p else "",
    "in processor time": lambda p: ratio_of(p["cpu"]) if "cpu" in p else "",
    "off after s": lambda p: p.get("off_after_s"),
    "same bits": lambda p: "yes" if p["is_identical"] else "no",
}


def plot(points: Sequence[Point], path: str, model: str) -> None:
    """Speed-up by number of drafts and by number of streams, one column a workload."""
    workloads = list(dict.fromkeys(point["workload"] for point in points))
    proposers = list(dict.fromkeys(point["proposer"] for point in points))
    drawn, axes = figure(len(workloads), f"Speculative decoding, {model}", rows=2)
    shown = [p for p in points if p["control"] == points[0]["control"]]
    for index, field in enumerate(("k", "streams")):
        fixed = [name for name in ("k", "temperature", "streams") if name != field]
        for column, workload in enumerate(workloads):
            axis = axes[index * len(workloads) + column]
            for number, proposer in enumerate(proposers):
                line = [
                    point
                    for point in shown
                    if (point["workload"], point["proposer"]) == (workload, proposer)
                    and all(point[name] == points[0][name] for name in fixed)
                ]
                line.sort(key=lambda point: float(point[field]))
                x, y = [p[field] for p in line], [p["speedup"] for p in line]
                axis.plot(x, y, label=proposer, **style(number))
            axis.axhline(1, color="#555555", linewidth=0.8)
            axis.set(
                xticks=sorted({point[field] for point in shown}),
                title=workload,
                xlabel={"k": "drafts at most", "streams": "streams"}[field],
                ylabel="speed-up",
            )
    axes[0].legend(frameon=False)
    save(drawn, path)


if __name__ == "__main__":
    run_program(main)
