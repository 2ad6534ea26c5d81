"""This engine and its peers on the same weights and the same load, pair by pair in one run.

    python -m tinyserve.bench.peers --model default --llama DIR:FILE.gguf --served --out FILE.json

Offline: decoding 1 to 32 streams and a prompt of 512 tokens, every engine in turn, round by round.
Served (`--served`): open-loop load from `tinyserve.bench.loadgen` at each Poisson rate and all at
once, each server started in turn. Reports medians, and ratios as medians over the rounds' pairs.

    --llama [NAME=]FOLDER:FILE.gguf             llama.cpp's programs, or a relative's
    --python-peer [NAME=]ENGINE=PYTHON:MODEL    openvino, ctranslate2, vllm, transformers
    --server NAME=COMMAND                       any OpenAI server: {port}, {seats}, {context}

Each may be given several times. `float_folder` writes the folder that the Python engines convert.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import statistics
from collections.abc import Iterator
from typing import Any

from tinyserve.bench import plots
from tinyserve.bench.arguments import ints, plot_file, positive_int, rates
from tinyserve.bench.ceilings import Ceilings
from tinyserve.bench.common import (
    command,
    machine,
    model_parser,
    model_section,
    run_program,
    say,
    shown_model,
    write_json,
)
from tinyserve.bench.latency import median_of, summary
from tinyserve.bench.limits import Sizes
from tinyserve.bench.loadgen import run
from tinyserve.bench.offline_cases import Case, configuration, measure
from tinyserve.bench.peer_engines import LlamaCpp, Peer, PythonPeer, ServedPeer, Tinyserve
from tinyserve.bench.peer_tables import (
    OURS,
    limits_line,
    offline_table,
    served_ratios,
    served_table,
)
from tinyserve.bench.served import free_port, serving
from tinyserve.bench.target import Target
from tinyserve.bench.workload import Shape
from tinyserve.engine.build import build_engine
from tinyserve.kernels.threads import default_threads

MODULE = "peers"
Rounds = dict[str, dict[str, list[float]]]  # case -> engine -> speed of each round


def main(argv: list[str] | None = None) -> None:
    parser = options()
    args = parser.parse_args(argv)
    peers = peers_of(args)
    result: dict[str, Any] = {"command": command(MODULE, args, parser), "machine": machine()}
    if not args.skip_offline:
        result["offline"] = offline(args, peers)
        print(offline_table(result["offline"]), limits_line(result["offline"]), sep="\n\n")
    if args.served:
        result["served"] = served(args, peers)
        print(served_table(result["served"]), served_ratios(result["served"]), sep="\n\n")
    write_json(args.out, result)
    if args.plot:
        plots.peers(result, args.plot)


def options() -> argparse.ArgumentParser:
    parser = model_parser(MODULE, __doc__)
    add = parser.add_argument
    for flag in ("--llama", "--python-peer", "--server"):
        add(flag, action="append", default=[], help="see above", metavar="PEER")
    add("--streams", type=ints, default=[1, 8, 16, 32], help="streams decoded at once")
    add("--prompt", type=positive_int, default=64, help="prompt tokens of each stream")
    add("--new", type=positive_int, default=64, help="tokens decoded by each stream")
    add("--prefill", type=positive_int, default=512, help="prompt tokens of the prefill case")
    add("--repeat", type=positive_int, default=5, help="rounds; medians are reported")
    add("--skip-offline", action="store_true", help="only the served part")
    add("--served", action="store_true", help="also start servers and load them")
    add("--rates", type=rates, default=[4.0, 16.0], help="requests a second of the served load")
    add("--num-requests", type=positive_int, default=60, help="requests at each rate")
    add("--seats", type=positive_int, default=16, help="requests that a server computes at once")
    add("--served-repeat", type=positive_int, default=2, help="rounds of the served part")
    add("--plot", type=plot_file, help="draw ratios into this file (matplotlib)")
    return parser


def peers_of(args: argparse.Namespace) -> list[Peer]:
    """The peers that the options name. Raises ValueError for a spelling that says nothing."""
    threads = args.threads or default_threads()[0]
    return [
        *(LlamaCpp.parse(text, threads) for text in args.llama),
        *(PythonPeer.parse(text, threads) for text in args.python_peer),
        *(ServedPeer.parse(text) for text in args.server),
    ]


def offline(args: argparse.Namespace, peers: list[Peer]) -> dict[str, Any]:
    """Every case with every engine in turn, `--repeat` times."""
    length = max(args.prompt + args.new, args.prefill) + 1
    engine = build_engine(configuration(model_section(args), max(args.streams), length))
    backend = engine.core.runner.backend  # type: ignore[attr-defined]
    ceilings = Ceilings(backend.variant, backend.threads)
    cases = [*(Case(s, args.prompt, args.new) for s in args.streams), Case(0, args.prefill, 1)]
    rounds: Rounds = {case.name: {} for case in cases}
    for number in range(args.repeat):
        for case in cases:
            ceilings.measure()
            speeds = {OURS: measure(engine.core, case, args.seed + number)}
            speeds |= {peer.name: s for peer in peers if (s := peer.offline(case)) is not None}
            for name, speed in speeds.items():
                rounds[case.name].setdefault(name, []).append(speed)
            said = ", ".join(f"{name} {speed:.1f}" for name, speed in speeds.items())
            say(f"round {number + 1}, {case.name}: {said}")
    sizes = Sizes.of(engine.core.runner)
    return {
        "rounds": rounds,
        "medians": medians_of(rounds),
        "ratios": {case: ratios(by_engine) for case, by_engine in rounds.items()},
        "ceilings": ceilings.medians(),
        "shares": shares(sizes, medians_of(rounds), ceilings.medians()),
        "sizes": dataclasses.asdict(sizes),
        "model": shown_model(engine.model_name),
        "formats": engine.weight_formats,
    }


def medians_of(rounds: Rounds) -> dict[str, dict[str, float]]:
    """Each case's and engine's median over the rounds."""
    return {c: {n: statistics.median(v) for n, v in r.items()} for c, r in rounds.items()}


def ratios(by_engine: dict[str, list[float]]) -> dict[str, float]:
    """Ours to each peer's: the median over the rounds' pairs."""
    ours = by_engine[OURS]
    return {
        name: statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
        for name, theirs in by_engine.items()
        if name != OURS
    }


def shares(
    sizes: Sizes, medians: dict[str, dict[str, float]], ceilings: dict[str, float]
) -> dict[str, float]:
    """What part of the machine's limit each case reaches: the least time that its matrices could
    take over the time that it took. Of a prompt, only the last row meets the head.
    """
    found = {}
    for case, by_engine in medians.items():
        kind, rows = case.split()
        logits = int(rows) if kind == "decode" else 1
        least = sizes.least_seconds(ceilings, int(rows), logits)
        found[case] = least * by_engine[OURS] / int(rows)
    return found


def served(args: argparse.Namespace, peers: list[Peer]) -> dict[str, Any]:
    """Each server in turn under the same requests: load -> server -> median summary."""
    ours = Tinyserve.of(args)
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for number in range(args.served_repeat):
        for peer in [ours, *peers]:
            port = free_port()
            told = peer.serve(port, args.seats, 512)
            if told is None:
                continue
            with serving(told, port) as server:
                for load, summed in loaded(server.url, args, args.seed + number):
                    found.setdefault(load, {}).setdefault(peer.name, []).append(summed)
                    say(f"{load}, {peer.name}: {summed.get('output_tok_s', 0):.1f} tok/s")
    return {
        load: {name: median_of(summaries) for name, summaries in by_server.items()}
        for load, by_server in found.items()
    }


def loaded(url: str, args: argparse.Namespace, seed: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """A running server under each load: (load, summary). It is warmed up first."""
    asyncio.run(run(Target(url), Shape(4, 1e3).make(99)))
    loads = {f"{rate:g}/s": Shape(args.num_requests, rate) for rate in args.rates}
    loads["all at once"] = Shape(args.num_requests, 1.0, arrivals="together")
    for number, (load, shape) in enumerate(loads.items()):  # each with prompts of its own
        workload = shape.make(1000 * seed + number)
        yield load, summary(asyncio.run(run(Target(url), workload)))


if __name__ == "__main__":
    run_program(main)
