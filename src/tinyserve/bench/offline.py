"""Decode and prefill speed of the engine alone, beside llama.cpp's in the same run.

    python -m tinyserve.bench.offline --llama-bin DIR --llama-model FILE.gguf --out FILE.json

Takes turns with `llama-batched-bench` and `llama-bench` for `--repeat` rounds: one configuration of
ours, the same of theirs. Reports medians and ratios of pairs, and our share of the read bandwidth
(one stream) and of the multiply rate (prefill) that the machine reaches in the same run.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import platform
import statistics
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tinyserve.bench.ceilings import FMA, INT16, U4S8, multiply_rate, read_bandwidth
from tinyserve.bench.offline_cases import Case, measure
from tinyserve.bench.peer_engines import LlamaCpp
from tinyserve.config import TinyServeConfig
from tinyserve.engine.build import Engine, build_engine
from tinyserve.kernels.threads import default_threads

Measure = Callable[[], float]


def main(argv: list[str] | None = None) -> None:
    args = argument_parser().parse_args(argv)
    engine = build_engine(_config(args))
    runner: Any = engine.core.runner
    backend = runner.backend
    cases = _cases(engine, args)
    rounds: dict[str, list[float]] = {name: [] for name in cases}
    ceilings: dict[str, list[float]] = {"read_gb_s": []}
    for number in range(args.repeat):
        ceilings["read_gb_s"].append(read_bandwidth(backend.variant, backend.threads) / 1e9)
        for name, run in sorted(cases.items(), key=lambda case: case[0].split(":")[::-1]):
            rounds[name].append(run())
            print(f"round {number + 1}: {name} {rounds[name][-1]:.1f} tok/s", file=sys.stderr)
    for name, kind in (("f32_gmac_s", FMA), ("int16_gmac_s", INT16), ("u4s8_gmac_s", U4S8)):
        ceilings[name] = [multiply_rate(backend.variant, backend.threads, kind) / 1e9]
    result = _result(args, engine, rounds, ceilings)
    print(_table(result))
    if args.out:
        Path(args.out).write_text(json.dumps(result, indent=1) + "\n")


def argument_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tinyserve.bench.offline", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--model", default="default", help="model to run (default: the default one)"
    )
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--quantization", default=None)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--streams", default="1,8,16", help="numbers of streams to decode")
    parser.add_argument("--prompt", type=int, default=64, help="prompt tokens of each stream")
    parser.add_argument("--new", type=int, default=64, help="tokens decoded by each stream")
    parser.add_argument(
        "--prefill", type=int, default=512, help="prompt tokens of the prefill case"
    )
    parser.add_argument("--repeat", type=int, default=5, help="rounds; medians are reported")
    parser.add_argument("--llama-bin", help="folder of llama-batched-bench and llama-bench")
    parser.add_argument("--llama-model", help="GGUF that llama.cpp runs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", help="write the result as JSON")
    return parser


def _config(args: argparse.Namespace) -> TinyServeConfig:
    streams = max(int(s) for s in args.streams.split(","))
    length = max(args.prompt + args.new, args.prefill) + 1
    return TinyServeConfig.from_dict(
        {
            "model": {
                "name": args.model,
                "dtype": args.dtype,
                "quantization": args.quantization,
                "threads": args.threads,
            },
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


def _cases(engine: Engine, args: argparse.Namespace) -> dict[str, Measure]:
    """Every case of ours and, where it is there, of llama.cpp: "engine:case" -> tokens a second."""
    cases = [Case(int(s), args.prompt, args.new) for s in args.streams.split(",")]
    cases.append(Case(0, args.prefill, 1))
    measures: dict[str, Measure] = {}
    for case in cases:
        measures[f"tinyserve:{case.name}"] = partial(measure, engine.core, case, args.seed)
    if args.llama_bin:
        threads = args.threads or default_threads()[0]
        peer = LlamaCpp("llama.cpp", Path(args.llama_bin), Path(args.llama_model), threads)
        for case in cases:
            measures[f"llama.cpp:{case.name}"] = partial(peer.offline, case)
    return measures


def _result(
    args: argparse.Namespace,
    engine: Engine,
    rounds: dict[str, list[float]],
    ceilings: dict[str, list[float]],
) -> dict[str, Any]:
    runner: Any = engine.core.runner
    decoder = runner.decoder
    medians = {name: statistics.median(values) for name, values in rounds.items()}
    ratios = {}
    for name in medians:
        engine_name, case = name.split(":")
        rival = medians.get(f"llama.cpp:{case}")
        if engine_name == "tinyserve" and rival:
            pairs = zip(rounds[name], rounds[f"llama.cpp:{case}"], strict=True)
            ratios[case] = statistics.median(ours / theirs for ours, theirs in pairs)
    shares = {}
    limits = {name: statistics.median(values) for name, values in ceilings.items()}
    if "tinyserve:decode 1" in medians:
        read = medians["tinyserve:decode 1"] * decoder.nbytes / 1e9
        shares["decode 1: share of read bandwidth"] = read / limits["read_gb_s"]
    body = sum(
        m.n * m.k
        for layer in decoder.layers
        for m in (layer.qkv, layer.o, layer.gate_up, layer.down)
    )
    prefill = f"tinyserve:prefill {args.prefill}"
    shares["prefill: body multiply-adds, G/s"] = medians[prefill] * body / 1e9
    shares["prefill: share of the four-bit multiply rate"] = (
        medians[prefill] * body / 1e9 / limits["u4s8_gmac_s"]
    )
    return {
        "command": "python -m tinyserve.bench.offline " + " ".join(_shown(args)),
        "machine": {
            "processor": platform.processor() or platform.machine(),
            "threads": runner.backend.threads,
            "variant": runner.backend.variant,
        },
        "model": dataclasses.asdict(engine.config.model)["name"],
        "tokens_per_second": medians,
        "rounds": rounds,
        "ratios_to_llama_cpp": ratios,
        "ceilings": limits,
        "shares": shares,
    }


def _shown(args: argparse.Namespace) -> list[str]:
    """The arguments that matter, without this machine's folders."""
    shown = []
    for name, value in vars(args).items():
        if value is None:
            continue
        if name in ("llama_bin", "llama_model", "out"):
            value = Path(value).name
        shown.append(f"--{name.replace('_', '-')} {value}")
    return shown


def _table(result: dict[str, Any]) -> str:
    lines = ["| case | tinyserve tok/s | llama.cpp tok/s | ratio |", "|---|---|---|---|"]
    speeds = result["tokens_per_second"]
    for name, value in speeds.items():
        engine_name, case = name.split(":")
        if engine_name != "tinyserve":
            continue
        rival = speeds.get(f"llama.cpp:{case}")
        ratio = result["ratios_to_llama_cpp"].get(case)
        lines.append(
            f"| {case} | {value:.0f} | {f'{rival:.0f}' if rival else ''} "
            f"| {f'{ratio:.2f}' if ratio else ''} |"
        )
    lines += [f"{name}: {value:.3g}" for name, value in result["ceilings"].items()]
    lines += [f"{name}: {value:.3g}" for name, value in result["shares"].items()]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
