"""This engine and its peers on the same weights and the same load, pair by pair in one run.

    python -m tinyserve.bench.peers --model default --llama DIR=FILE.gguf --served --out FILE.json

Offline: decoding 1 to 32 streams and a prompt of 512 tokens, every engine in turn, round by round.
Served (`--served`): open-loop Poisson load from `tinyserve.bench.loadgen` at each rate, each server
started in turn. Reports medians, and ratios as medians over the rounds' pairs. `--llama` may be
given several times (llama.cpp, ik_llama.cpp, other weights); `--python-peer` names an engine with
a Python API: ENGINE=PYTHON:MODEL, such as transformers=/venv/bin/python:folder.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
from pathlib import Path
from typing import Any

from tinyserve.bench.ceilings import Ceilings
from tinyserve.bench.common import (
    argument_parser,
    floats,
    ints,
    machine,
    model_section,
    say,
    table,
    write_json,
)
from tinyserve.bench.latency import summary
from tinyserve.bench.loadgen import Target, run
from tinyserve.bench.offline_cases import Case, measure
from tinyserve.bench.peer_engines import LlamaCpp, Peer, PythonPeer, Tinyserve
from tinyserve.bench.served import free_port, serving
from tinyserve.bench.sweep_pareto import median_of
from tinyserve.bench.workload import Shape
from tinyserve.config import TinyServeConfig
from tinyserve.engine.build import Engine, build_engine
from tinyserve.kernels.threads import default_threads

MODULE = "peers"
OURS = "tinyserve"
Rounds = dict[str, dict[str, list[float]]]  # case -> engine -> speed of each round


def main(argv: list[str] | None = None) -> None:
    args = options().parse_args(argv)
    peers = peers_of(args)
    result: dict[str, Any] = {"command": shown(args), "machine": machine()}
    if not args.skip_offline:
        result["offline"] = offline(args, peers)
        print(offline_table(result["offline"]))
    if args.served:
        result["served"] = served(args, peers)
        print(served_table(result["served"]))
    write_json(args.out, result)
    if args.plot:
        from tinyserve.bench.plots import peers as draw

        draw(result, args.plot)


def options() -> argparse.ArgumentParser:
    parser = argument_parser(MODULE, __doc__)
    parser.set_defaults(model="default")
    add = parser.add_argument
    add("--llama", action="append", default=[], help="[NAME=]FOLDER:FILE.gguf", metavar="PEER")
    add("--python-peer", action="append", default=[], help="ENGINE=PYTHON:MODEL", metavar="PEER")
    add("--streams", type=ints, default=[1, 8, 16, 32], help="streams decoded at once")
    add("--prompt", type=int, default=64, help="prompt tokens of each stream")
    add("--new", type=int, default=64, help="tokens decoded by each stream")
    add("--prefill", type=int, default=512, help="prompt tokens of the prefill case")
    add("--repeat", type=int, default=5, help="rounds; medians are reported")
    add("--skip-offline", action="store_true")
    add("--served", action="store_true", help="also start servers and load them")
    add("--rates", type=floats, default=[4.0, 16.0], help="requests a second of the served load")
    add("--num-requests", type=int, default=60)
    add("--seats", type=int, default=16, help="requests that a server computes at once")
    add("--served-repeat", type=int, default=2)
    add("--plot", help="draw ratios into this file")
    return parser


def peers_of(args: argparse.Namespace) -> list[Peer]:
    """The peers that the options name. Raises ValueError for a spelling that says nothing."""
    threads = args.threads or default_threads()[0]
    peers: list[Peer] = []
    for text in args.llama:
        name, _, place = text.rpartition("=")
        folder, _, model = place.rpartition(":")
        label = name or f"llama.cpp {Path(model).stem}"
        peers.append(LlamaCpp(label, Path(folder), Path(model), threads))
    for text in args.python_peer:
        engine, _, place = text.partition("=")
        python, _, model = place.rpartition(":")
        peers.append(PythonPeer(engine, Path(python), engine, Path(model), threads))
    return peers


def shown(args: argparse.Namespace) -> str:
    """The command without this machine's folders."""
    parser = options()
    parts = [f"python -m tinyserve.bench.{MODULE}"]
    for name, value in vars(args).items():
        if name in ("out", "plot") or value == parser.get_default(name):
            continue
        flag = "--" + name.replace("_", "-")
        if name == "llama" or name == "python_peer":
            parts += [f"{flag} {_without_folders(text)}" for text in value]
        elif value is True:
            parts.append(flag)
        elif isinstance(value, list):
            parts.append(f"{flag} {','.join(f'{v:g}' for v in value)}")
        else:
            parts.append(f"{flag} {Path(value).name if name == 'model' else value}")
    return " ".join(parts)


def _without_folders(text: str) -> str:
    name, equals, place = text.rpartition("=")
    _, _, model = place.rpartition(":")
    return f"{name}{equals}DIR:{Path(model).name}"


def offline(args: argparse.Namespace, peers: list[Peer]) -> dict[str, Any]:
    """Every case with every engine in turn, `--repeat` times."""
    engine = build_engine(_configuration(args))
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
    return {
        "rounds": rounds,
        "medians": {c: {n: statistics.median(v) for n, v in r.items()} for c, r in rounds.items()},
        "ratios": {case: ratios(by_engine) for case, by_engine in rounds.items()},
        "ceilings": ceilings.medians(),
        "bound": _bounds(engine, ceilings.medians()),
    }


def ratios(by_engine: dict[str, list[float]]) -> dict[str, float]:
    """Ours to each peer's: the median over the rounds' pairs."""
    ours = by_engine[OURS]
    return {
        name: statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
        for name, theirs in by_engine.items()
        if name != OURS
    }


def _bounds(engine: Engine, ceilings: dict[str, float]) -> dict[str, float]:
    """Tokens a second that the bus allows one stream: all weights are read for each token."""
    num_bytes = engine.core.runner.decoder.nbytes  # type: ignore[attr-defined]
    return {"weight_bytes": num_bytes, "decode 1": ceilings["read_gb_s"] * 1e9 / num_bytes}


def _configuration(args: argparse.Namespace) -> TinyServeConfig:
    streams = max(args.streams)
    length = max(args.prompt + args.new, args.prefill) + 1
    return TinyServeConfig.from_dict(
        {
            "model": model_section(args),
            "cache": {
                "num_blocks": -(-length // 16) * streams + 64,
                "num_swap_blocks": 0,
                "enable_prefix_caching": False,
            },
            "scheduler": {
                "max_num_seqs": streams,
                "max_num_batched_tokens": max(512, args.prefill),
            },
        }
    )


def served(args: argparse.Namespace, peers: list[Peer]) -> dict[str, Any]:
    """Each server in turn under the same requests: rate -> server -> median summary."""
    section = model_section(args)
    ours = Tinyserve(section["name"], section["quantization"], args.threads or default_threads()[0])
    shape_rates = [*args.rates, 0.0]
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for number in range(args.served_repeat):
        for peer in [ours, *peers]:
            port = free_port()
            command = peer.serve(port, args.seats, 512)
            if command is None:
                continue
            with serving(command, port) as url:
                asyncio.run(run(Target(url), Shape(4, 1e3).make(99)))  # warm up
                for rate in shape_rates:
                    shape = Shape(
                        args.num_requests, rate or 1.0, arrivals="poisson" if rate else "together"
                    )
                    records = asyncio.run(run(Target(url), shape.make(args.seed + number)))
                    label = f"{rate:g}/s" if rate else "all at once"
                    summed = summary(records)
                    found.setdefault(label, {}).setdefault(peer.name, []).append(summed)
                    say(f"{label}, {peer.name}: {summed.get('output_tok_s', 0):.1f} tok/s")
    return {
        label: {name: median_of(summaries) for name, summaries in by_server.items()}
        for label, by_server in found.items()
    }


def offline_table(result: dict[str, Any]) -> str:
    """Cases by engines; ratios of ours to theirs."""
    names = list(next(iter(result["medians"].values())))
    rows = []
    for case, medians in result["medians"].items():
        rivals = [n for n in names if n != OURS]
        rows.append(
            [
                *(case, medians[OURS]),
                *(medians.get(n) for n in rivals),
                *(result["ratios"][case].get(n) for n in rivals),
            ]
        )
    rivals = [n for n in names if n != OURS]
    lines = [table(["tok/s", OURS, *rivals, *(f"ratio to {n}" for n in rivals)], rows)]
    lines += [", ".join(f"{name} {value:.3g}" for name, value in result["ceilings"].items())]
    share = result["medians"].get("decode 1", {}).get(OURS, 0) / result["bound"]["decode 1"]
    return "\n".join([*lines, f"decode 1: {share:.0%} of the read bandwidth"])


def served_table(result: dict[str, Any]) -> str:
    """Loads by servers: throughput, and latencies in milliseconds, p50 / p99."""
    rows = []
    for label, by_server in result.items():
        for name, found in by_server.items():
            latencies = [
                f"{1e3 * found[key]['p50']:.0f} / {1e3 * found[key]['p99']:.0f}"
                if found.get(key)
                else ""
                for key in ("ttft_s", "inter_token_s", "e2e_s")
            ]
            rows.append([label, name, found.get("output_tok_s"), *latencies, found["failed"]])
    return table(["load", "server", "tok/s", "TTFT", "inter-token", "e2e", "failed"], rows)


if __name__ == "__main__":
    main()
