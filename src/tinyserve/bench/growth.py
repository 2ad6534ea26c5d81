"""How costs grow: a step's time with streams and context, memory with requests; start-up time.

    python -m tinyserve.bench.growth --model default --out FILE.json --plot FILE.png

    steps     the time of a decode step over numbers of streams and lengths of context, the whole
              engine without HTTP; medians of several steps, in rounds that take turns
    rows      the time of a step that checks drafts: rows of one stream, each with its logits;
              both beside the least time that the machine allows (`limits`)
    memory    a server's resident memory over many requests, prompts and answers short
    start     from the command to the first healthy answer of `/health`, model on disk; and the
              memory of an engine that has served, against its packed weights and touched KV-cache

The scheduler's own time over thousands of waiting requests is another program's: `step_overhead`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from typing import Any

from tinyserve.bench import plots
from tinyserve.bench.arguments import ints, names_of, plot_file, positive_int
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
from tinyserve.bench.growth_process import memory_over_requests, resident, start_times
from tinyserve.bench.growth_tables import report
from tinyserve.bench.limits import Limit
from tinyserve.bench.offline_cases import begin_decodes, configuration
from tinyserve.bench.peer_engines import Tinyserve
from tinyserve.bench.simulate import StepTimer
from tinyserve.config import TinyServeConfig
from tinyserve.engine.build import Engine, build_engine
from tinyserve.engine.core import EngineCore

MODULE = "growth"
PARTS = ("steps", "rows", "memory", "start")


def main(argv: list[str] | None = None) -> None:
    parser = options()
    args = parser.parse_args(argv)
    wanted = args.parts.split(",")
    section = model_section(args)
    ours = Tinyserve.of(args)
    result: dict[str, Any] = {"command": command(MODULE, args, parser), "machine": machine()}
    result["model"] = section["name"]
    if {"steps", "rows"} & set(wanted):
        engine = build_engine(_configuration(args))
        result["model"] = shown_model(engine.model_name)
        limit = Limit(engine.core.runner)
        if "steps" in wanted:
            result["steps"] = steps(engine, args, limit)
        if "rows" in wanted:
            result["rows"] = rows(engine, args, limit)
        result["ceilings"] = limit.medians()
    if "memory" in wanted:
        result["memory"] = memory_over_requests(ours, args.num_requests, args.seed)
    if "start" in wanted:
        result["start"] = start_times(ours, args.starts)
        result["resident"] = resident(section, args.seed)
    write_json(args.out, result)
    print(report(result))
    if args.plot:
        plots.growth(result, args.plot)


def options() -> argparse.ArgumentParser:
    parser = model_parser(MODULE, __doc__)
    add = parser.add_argument
    add(
        "--parts",
        type=names_of(PARTS, "part"),
        default=",".join(PARTS),
        help=f"which, separated by commas (default: all): {', '.join(PARTS)}",
    )
    add("--streams", type=ints, default=[1, 2, 4, 8, 16, 32, 64], help="sequences at once")
    add("--contexts", type=ints, default=[64, 256, 1024, 4096], help="tokens before the step")
    add("--long-streams", type=ints, default=[1, 4], help="streams that all contexts are tried at")
    add("--rows", type=ints, default=[1, 2, 3, 4, 5, 6, 8], help="rows of one stream")
    add("--steps", type=positive_int, default=24, help="steps timed in a round")
    add("--repeat", type=positive_int, default=3, help="rounds; medians are reported")
    add("--num-requests", type=positive_int, default=10000, help="requests of the memory part")
    add(
        "--starts",
        type=positive_int,
        default=7,
        help="starts of the server; the median is reported",
    )
    add("--plot", type=plot_file, help="draw it into this file (matplotlib)")
    return parser


def steps(engine: Engine, args: argparse.Namespace, limit: Limit) -> list[dict[str, Any]]:
    """One line for each pair of streams and context: the median step in milliseconds."""
    pairs = pairs_of(args)
    rounds: dict[tuple[int, int], list[float]] = {pair: [] for pair in pairs}
    list(decode_steps(engine.core, *pairs[0], args.steps, args.seed))  # warm up
    for number in range(args.repeat):
        limit.measure()
        for streams, context in pairs:
            taken = list(decode_steps(engine.core, streams, context, args.steps, args.seed))
            rounds[streams, context].append(statistics.median(taken))
            took = 1e3 * rounds[streams, context][-1]
            say(f"round {number + 1}, {streams} streams at {context}: {took:.1f} ms")
    return [
        {
            "streams": streams,
            "context": context,
            "ms": 1e3 * statistics.median(found),
            "limit_ms": limit.ms(streams, streams * context),
        }
        for (streams, context), found in rounds.items()
    ]


def rows(engine: Engine, args: argparse.Namespace, limit: Limit) -> list[dict[str, Any]]:
    """One line for each number of rows: the median step of one stream in milliseconds."""
    timer = StepTimer(engine.core.runner, engine.config.cache.block_size, args.steps)
    context = min(args.contexts)
    rounds: dict[int, list[float]] = {count: [] for count in args.rows}
    for _ in range(args.repeat):
        limit.measure()
        for count in args.rows:
            rounds[count].append(timer.seconds(context, count, count))
    return [
        {
            "rows": count,
            "context": context,
            "ms": 1e3 * statistics.median(found),
            "limit_ms": limit.ms(count, context),
        }
        for count, found in rounds.items()
    ]


def pairs_of(args: argparse.Namespace) -> list[tuple[int, int]]:
    """All streams at the shortest context, all contexts at `--long-streams`; each pair once."""
    pairs = [(streams, min(args.contexts)) for streams in args.streams]
    pairs += [(streams, context) for streams in args.long_streams for context in args.contexts]
    return list(dict.fromkeys(pairs))


def decode_steps(
    core: EngineCore, streams: int, context: int, count: int, seed: int
) -> Iterator[float]:
    """Seconds of each of `count` steps that decode `streams` sequences around `context` tokens."""
    begin_decodes(core, streams, max(1, context - count // 2), count + 1, seed)
    while core.has_work():
        begin = time.perf_counter()
        outputs = core.step()
        seconds = time.perf_counter() - begin
        if len(outputs) == streams:  # else the budget made a stream wait
            yield seconds


def _configuration(args: argparse.Namespace) -> TinyServeConfig:
    pairs = pairs_of(args)
    streams = max(streams for streams, _ in pairs)
    longest = max(context for _, context in pairs) + args.steps
    blocks = max(streams * (-(-(context + args.steps) // 16) + 1) for streams, context in pairs)
    return configuration(
        model_section(args),
        streams,
        longest,
        cache={"num_blocks": blocks + 64, "num_swap_blocks": 0, "enable_prefix_caching": False},
        scheduler={
            "max_num_seqs": streams,
            "max_num_batched_tokens": 512,
            "chunked_prefill_size": 512,  # all streams are to decode at once
            "max_model_len": longest + 16,
        },
    )


if __name__ == "__main__":
    run_program(main)
