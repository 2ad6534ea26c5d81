"""What single mechanisms are worth: each on and off, on the workload it is for.

    python -m tinyserve.bench.studies --study chunked-prefill,prefix-cache --size small

    chunked-prefill   streams that decode while long prompts come: small chunks, large ones, whole
    prefix-cache      one long system prompt shared by all: the prefix cache on and off
    agent             conversations that repeat their history each turn: the prefix cache on and off
    preemption        a KV-cache too small for the load: swap against recompute
    priority          urgent requests among a flood: first come first served against priorities
    fairness          one client floods, others ask now and then: first come against fair shares

Variants take turns on the same requests for `--repeat` rounds; medians are reported. Each variant
has an engine of its own and each round requests of its own, so that the prefix cache helps only
where a study's requests share something. Writes JSON, prints a table, and draws bars (--plot).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tinyserve.bench import plots
from tinyserve.bench.arguments import names_of, plot_file, positive_int
from tinyserve.bench.common import (
    Sections,
    command,
    end_if,
    machine,
    merged,
    model_parser,
    model_section,
    p50_p99,
    run_program,
    say,
    table,
    until_interrupted,
    write_json,
)
from tinyserve.bench.latency import Record, median_of, spread, summary
from tinyserve.bench.replay import (
    Clock,
    VirtualClock,
    WallClock,
    replay,
    replay_conversations,
)
from tinyserve.bench.simulate import StepModel, simulated_core
from tinyserve.bench.workload import (
    Arrival,
    Shape,
    Span,
    agent_turns,
    with_flood,
    with_shared_prefix,
)
from tinyserve.config import TinyServeConfig
from tinyserve.engine.build import build_engine
from tinyserve.engine.core import EngineCore

MODULE = "studies"
LONG = 1_000_000  # added to the seed, so that no round's long prompts are another's streams
Requests = Sequence[Arrival] | Sequence[Sequence[Arrival]]


@dataclass(frozen=True)
class Study:
    """One mechanism: its variants, and the requests that show what it is worth.

    `watched`: the client whose latency is the point; "" is everybody.
    """

    variants: dict[str, Sections]
    requests: Callable[[int], Requests]
    base: Sections
    watched: str = ""


def _long_prompts_among_streams(seed: int) -> list[Arrival]:
    streams = Shape(10, 1e3, Span(16, 32), Span(150, 200)).make(seed)
    long = Shape(5, 0.7, Span(900, 1000), Span(8, 16)).make(seed + LONG)
    named = [replace(a, client="streams") for a in streams]
    return sorted([*named, *long], key=lambda a: a.at)


def _shared_system_prompt(seed: int) -> list[Arrival]:
    return with_shared_prefix(Shape(30, 4.0, Span(8, 32), Span(16, 32)).make(seed), 800, seed)


def _agents(seed: int) -> list[list[Arrival]]:
    return agent_turns(4, 6, Shape(0, 2.0, Span(60, 160), Span(16, 32)), seed)


def _more_than_fits(seed: int) -> list[Arrival]:
    return Shape(24, 1e3, Span(100, 200), Span(150, 250)).make(seed)


def _urgent_among_flood(seed: int) -> list[Arrival]:
    urgent = Shape(10, 1.0, Span(16, 48), Span(16, 32)).make(seed)
    return with_flood([replace(a, client="urgent") for a in urgent], 60, seed, priority=10)


def _others_among_flood(seed: int) -> list[Arrival]:
    others = Shape(10, 1.0, Span(16, 48), Span(16, 32)).make(seed)
    return with_flood([replace(a, client="others") for a in others], 60, seed)


STUDIES: dict[str, Study] = {
    "chunked-prefill": Study(
        {
            "chunked": {},
            "large chunks": {"scheduler": {"chunked_prefill_size": 512}},
            "whole prompts": {"scheduler": {"enable_chunked_prefill": False}},
        },
        _long_prompts_among_streams,
        {"cache": {"num_blocks": 1024}},
        watched="streams",
    ),
    "prefix-cache": Study(
        {
            "prefix cache": {},
            "no prefix cache": {"cache": {"enable_prefix_caching": False}},
        },
        _shared_system_prompt,
        {"cache": {"num_blocks": 1536}},
    ),
    "agent": Study(
        {
            "prefix cache": {},
            "no prefix cache": {"cache": {"enable_prefix_caching": False}},
        },
        _agents,
        {"cache": {"num_blocks": 1024}},
    ),
    "preemption": Study(
        {
            "swap": {"cache": {"num_swap_blocks": 512}},
            "recompute": {"cache": {"num_swap_blocks": 0}},
            "large pool": {"cache": {"num_blocks": 1024}},
        },
        _more_than_fits,
        {"cache": {"num_blocks": 120, "enable_prefix_caching": False}},
    ),
    "priority": Study(
        {
            "first come": {"scheduler": {"policy": "continuous"}},
            "priority": {"scheduler": {"policy": "priority"}},
        },
        _urgent_among_flood,
        {"cache": {"num_blocks": 512}},
        watched="urgent",
    ),
    "fairness": Study(
        {
            "first come": {"scheduler": {"policy": "continuous"}},
            "fair": {"scheduler": {"policy": "fair"}},
        },
        _others_among_flood,
        {"cache": {"num_blocks": 512}},
        watched="others",
    ),
}
# First come first served heeds no priority; the flood's would make it one.
_NO_PRIORITY = ("first come",)


def main(argv: list[str] | None = None) -> None:
    parser = options()
    args = parser.parse_args(argv)
    if args.simulate and not args.step_times:
        parser.error("--simulate needs --step-times")
    if args.step_times and not args.simulate:
        parser.error("--step-times is for a simulation: it needs --simulate")
    wanted = args.study.split(",")
    found, is_cut = until_interrupted((name, run_study(STUDIES[name], args)) for name in wanted)
    results = dict(found)
    write_json(
        args.out,
        {
            "command": command(MODULE, args, parser),
            **({"interrupted": True} if is_cut else {}),
            "machine": machine(),
            "studies": results,
        },
    )
    for name, variants in results.items():
        print(f"\n{name}\n\n{report(variants, STUDIES[name].watched)}")
    if args.plot:
        plots.bars(results, args.plot)
    end_if(is_cut)


def options() -> argparse.ArgumentParser:
    parser = model_parser(MODULE, __doc__)
    parser.add_argument(
        "--study",
        type=names_of(STUDIES, "study"),
        default=",".join(STUDIES),
        help=f"which, separated by commas (default: all): {', '.join(STUDIES)}",
    )
    parser.add_argument(
        "--repeat", type=positive_int, default=3, help="rounds; medians are reported"
    )
    parser.add_argument("--simulate", action="store_true", help="virtual time; see --step-times")
    parser.add_argument("--step-times", help="step times (JSON) that sweep_pareto measured")
    parser.add_argument(
        "--plot", type=plot_file, help="draw the latencies into this file (matplotlib)"
    )
    return parser


def run_study(study: Study, args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Every variant in turn, round by round: variant -> median summary."""
    make = _simulated if args.simulate else _real
    engines = {name: make(_configuration(study, name, args), args) for name in study.variants}
    rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in engines}
    for number in range(args.repeat):
        requests = study.requests(args.seed + number)
        for name, (core, clock) in engines.items():
            before = core.stats()
            found = measured(study, _run(core, clock, name, requests))
            after = core.stats()
            found["preemptions"] = (
                after.num_preemptions_swap
                + after.num_preemptions_recompute
                - before.num_preemptions_swap
                - before.num_preemptions_recompute
            )
            found["computed_tokens"] = after.num_scheduled_tokens - before.num_scheduled_tokens
            rounds[name].append(found)
            say(f"round {number + 1}, {name}: {found['output_tok_s']:.1f} tok/s")
    return {name: median_of(found) for name, found in rounds.items()}


def measured(study: Study, records: list[Record]) -> dict[str, Any]:
    """The summary, with the latencies of the clients that the study is about."""
    found = summary(records)
    watched = [r for r in records if not study.watched or r.client == study.watched]
    found["watched_ttft_s"] = spread(r.ttft for r in watched)
    found["watched_inter_token_s"] = spread(gap for r in watched for gap in r.gaps)
    return found


def report(variants: dict[str, dict[str, Any]], watched: str) -> str:
    """The variants as a table; latencies in milliseconds, p50 / p99."""
    rows = []
    for name, found in variants.items():
        latencies = [p50_p99(found[key]) for key in ("watched_ttft_s", "watched_inter_token_s")]
        counts = [found[key] for key in ("preemptions", "cached_tokens", "computed_tokens")]
        rows.append([name, found["output_tok_s"], *latencies, *counts])
    whose = f" of {watched}" if watched else ""
    header = ["variant", "tok/s", f"TTFT{whose}, ms", f"inter-token{whose}, ms"]
    return table([*header, "preemptions", "cached tokens", "computed tokens"], rows)


def _configuration(study: Study, name: str, args: argparse.Namespace) -> TinyServeConfig:
    model = {"model": model_section(args)}
    return TinyServeConfig.from_dict(merged(model, study.base, study.variants[name]))


def _real(config: TinyServeConfig, args: argparse.Namespace) -> tuple[EngineCore, Clock]:
    core = build_engine(config).core
    replay(core, Shape(2, 1e6, Span(16, 64), Span(4, 4)).make(-1))  # warm up
    return core, WallClock()


def _simulated(config: TinyServeConfig, args: argparse.Namespace) -> tuple[EngineCore, Clock]:
    clock = VirtualClock()
    times = StepModel.load(args.step_times)
    return simulated_core(times, clock, config.scheduler, config.cache), clock


def _run(core: EngineCore, clock: Clock, name: str, requests: Requests) -> list[Record]:
    if isinstance(requests[0], Arrival):
        arrivals: list[Arrival] = list(requests)  # type: ignore[arg-type]
        if name in _NO_PRIORITY:
            arrivals = [replace(a, priority=0) for a in arrivals]
        return replay(core, arrivals, clock)
    return replay_conversations(core, requests, clock)  # type: ignore[arg-type]


if __name__ == "__main__":
    run_program(main)
