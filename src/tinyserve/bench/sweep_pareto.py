"""Scheduling policies under load: static, continuous, and continuous with speculation.

    python -m tinyserve.bench.sweep_pareto --size small --rates 1,2,4,8 --num-requests 30

Open-loop Poisson arrivals at each rate, the same requests for every policy, in turns within each
round. Each policy has an engine of its own, each rate and round prompts of its own, so that no
prefix cache knows a prompt from before. Writes JSON (--out), prints a table, and draws throughput
against latency (--plot; needs matplotlib). With `--simulate` the real scheduler runs over measured
step times in virtual time.

A rate saturates a policy that does not keep up with it; see `latency.keeps_up`. "?" means that the
run was too short to tell: more requests do.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tinyserve.bench import plots
from tinyserve.bench.arguments import add_workload, names_of, plot_file, positive_int, rates
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
    shown_model,
    table,
    until_interrupted,
    write_json,
)
from tinyserve.bench.latency import LATENCIES, Record, is_too_short, keeps_up, median_of, summary
from tinyserve.bench.replay import VirtualClock, replay
from tinyserve.bench.simulate import (
    Fleet,
    Router,
    StepModel,
    by_prefix,
    least_loaded,
    round_robin,
    simulated_core,
)
from tinyserve.bench.workload import Arrival, Shape, Span
from tinyserve.config import SchedulerConfig, TinyServeConfig
from tinyserve.engine.build import Engine, build_engine
from tinyserve.engine.core import EngineCore

MODULE = "sweep_pareto"
POLICIES: dict[str, Sections] = {
    "static": {"scheduler": {"policy": "static"}},
    "continuous": {},
    "continuous+spec": {"spec": {"enabled": True}},
}
ROUTERS: dict[str, Callable[[], Router]] = {
    "least-loaded": lambda: least_loaded,
    "round-robin": round_robin,
    "prefix": lambda: by_prefix,
}
Run = Callable[[str, list[Arrival]], list[Record]]


def main(argv: list[str] | None = None) -> None:
    parser = options()
    args = parser.parse_args(argv)
    if not args.simulate and (args.replicas > 1 or args.step_times):
        name = "--replicas" if args.replicas > 1 else "--step-times"
        parser.error(f"{name} is for a simulation: it needs --simulate")
    # What drafts are worth depends on the text, which a simulation does not have.
    names = [n for n in args.policies.split(",") if not (args.simulate and n == "continuous+spec")]
    if not names:
        parser.error(
            "--simulate does not know what drafts are worth: it leaves out continuous+spec"
        )
    run, about = _simulated(args) if args.simulate else _measured(args, names)
    points, is_cut = until_interrupted(sweep(args, names, run))
    result = {
        "command": command(MODULE, args, parser),
        **({"interrupted": True} if is_cut else {}),
        **about,
        "most_tok_s": most_tok_s(StepModel(**about["step_times"]), args),
        "points": points,
    }
    write_json(args.out, result)
    print(report(points))
    if args.plot:
        plots.pareto(points, args.plot, is_simulated=args.simulate)
    end_if(is_cut)


def options() -> argparse.ArgumentParser:
    parser = model_parser(MODULE, __doc__)
    add = parser.add_argument
    add(
        "--rates",
        type=rates,
        default=[1.0, 2.0, 4.0, 8.0],
        help="requests a second, separated by commas (default: 1,2,4,8)",
    )
    add("--num-requests", type=positive_int, default=30, help="requests at each rate (default: 30)")
    add(
        "--policies",
        type=names_of(POLICIES, "policy"),
        default=",".join(POLICIES),
        help="which, separated by commas (default: all three)",
    )
    add_workload(parser)
    add("--max-num-seqs", type=int, default=16, help="as of `tinyserve serve` (default: 16)")
    add("--max-num-batched-tokens", type=int, default=512, help="likewise (default: 512)")
    add(
        "--chunked-prefill-size",
        type=int,
        default=SchedulerConfig().chunked_prefill_size,
        help="likewise (default: the server's)",
    )
    add("--repeat", type=positive_int, default=1, help="rounds; medians are reported (default: 1)")
    add("--simulate", action="store_true", help="virtual time, from measured step times")
    add("--replicas", type=positive_int, default=1, help="simulated servers behind one router")
    add("--router", choices=ROUTERS, default="least-loaded", help="how it shares out requests")
    add(
        "--step-times",
        help="file of step times to simulate with, or a result that has them; if it is not there, "
        "they are measured and written to it",
    )
    add(
        "--plot", type=plot_file, help="draw throughput against latency into this file (matplotlib)"
    )
    return parser


def sweep(args: argparse.Namespace, names: list[str], run: Run) -> Iterator[dict[str, Any]]:
    """Every rate with every policy; policies take turns on the same requests, which no other rate
    or round has.
    """
    for index, rate in enumerate(args.rates):
        shape = Shape(
            args.num_requests, rate, args.prompt, args.output, args.arrivals, args.lengths
        )
        rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
        for number in range(args.repeat):
            workload = shape.make(1000 * (args.seed + number) + index)
            for name in names:
                found = summary(run(name, workload), args.slo)
                rounds[name].append(found)
                say(f"rate {rate:g}, {name}: {found['output_tok_s']:.1f} tok/s")
        for name, summaries in rounds.items():
            brief = _brief(summaries)
            yield {"policy": name, "rate": rate, **median_of(summaries), "rounds": brief}


def _brief(summaries: list[dict[str, Any]]) -> list[dict[str, float]]:
    """The figures of each round by which policies are compared."""
    return [
        {"output_tok_s": found["output_tok_s"], "ttft_p99_s": found["ttft_s"]["p99"]}
        for found in summaries
    ]


def report(points: list[dict[str, Any]]) -> str:
    """The points as a table; latencies in milliseconds, p50 / p99."""
    rows = []
    for point in points:
        latencies = [p50_p99(point.get(name)) for name in LATENCIES]
        speed, within = point["output_tok_s"], point["slo_attainment"]
        steady = "no" if not keeps_up(point) else "?" if is_too_short(point) else "yes"
        rows.append([point["rate"], point["policy"], speed, *latencies, within, steady])
    header = ["req/s", "policy", "tok/s", "TTFT ms", "inter-token ms", "e2e ms", "within SLO"]
    return table([*header, "keeps up"], rows)


def _configuration(args: argparse.Namespace, name: str) -> TinyServeConfig:
    longest = args.prompt.high + args.output.high + 1
    sections: Sections = {
        "model": model_section(args),
        "cache": {"num_blocks": (-(-longest // 16) + 1) * args.max_num_seqs + 64},
        "scheduler": {
            "max_num_seqs": args.max_num_seqs,
            "max_num_batched_tokens": args.max_num_batched_tokens,
            "chunked_prefill_size": args.chunked_prefill_size,
        },
    }
    return TinyServeConfig.from_dict(merged(sections, POLICIES[name]))


def most_tok_s(times: StepModel, args: argparse.Namespace) -> float:
    """What no scheduler exceeds under these options; see `StepModel.most_tok_s`."""
    prompt = (args.prompt.low + args.prompt.high) / 2
    output = (args.output.low + args.output.high) / 2
    chunk = min(args.chunked_prefill_size, round(prompt))
    return times.most_tok_s(args.max_num_seqs, prompt, output, chunk)


def _measured(args: argparse.Namespace, names: list[str]) -> tuple[Run, dict[str, Any]]:
    """Each policy on its own engine over the same weights, in real time."""
    engines: dict[str, Engine] = {}
    for name in names:
        say(f"loading for {name}")
        engines[name] = build_engine(_configuration(args, name))
        replay(engines[name].core, Shape(2, 1e6, args.prompt, Span(4, 4)).make(-1))  # warm up
    engine = engines[names[0]]
    runner: Any = engine.core.runner
    times = _step_model(engine)

    def run(name: str, workload: list[Arrival]) -> list[Record]:
        return replay(engines[name].core, workload)

    about = {"machine": machine(runner.backend.variant), "model": shown_model(engine.model_name)}
    return run, {**about, "step_times": dataclasses.asdict(times)}


def _simulated(args: argparse.Namespace) -> tuple[Run, dict[str, Any]]:
    times = step_times(args)

    def run(name: str, workload: list[Arrival]) -> list[Record]:
        config = _configuration(args, name)

        def make(clock: VirtualClock) -> EngineCore:
            return simulated_core(times, clock, config.scheduler, config.cache)

        return Fleet(make, args.replicas).run(workload, ROUTERS[args.router]())

    return run, {"machine": machine(), "simulated": True, "step_times": dataclasses.asdict(times)}


def step_times(args: argparse.Namespace) -> StepModel:
    """Step times from the file if it is there, else measured now with the model of the options."""
    if args.step_times and Path(args.step_times).exists():
        return StepModel.load(args.step_times)
    engine = build_engine(_configuration(args, "continuous"))
    times = _step_model(engine)
    if args.step_times:
        times.save(args.step_times, model=shown_model(engine.model_name), machine=machine())
    return times


def _step_model(engine: Engine) -> StepModel:
    say("measuring step times")
    cache = engine.config.cache
    assert cache.num_blocks is not None
    return StepModel.measure(engine.core.runner, cache.block_size, cache.num_blocks)


if __name__ == "__main__":
    run_program(main)
