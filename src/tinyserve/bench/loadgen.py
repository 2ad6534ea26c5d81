"""Open-loop load on any OpenAI-compatible server: Poisson, bursts, or a trace.

    python -m tinyserve.bench.loadgen --url http://127.0.0.1:8000 --rate 4 --num-requests 50

Requests are sent at their times however slow the server is. Reports throughput, percentiles of the
time to the first token, between tokens and to the end, and goodput: answers a second that met the
objective (--slo). Ctrl-C ends it and reports the requests that were answered by then.

A trace (`--trace FILE`) is JSON lines of {"at": seconds, "prompt_tokens": n, "output_tokens": n}.
Prompts are common words, about one token each, and begin with a number of their own, so that no
prompt cache helps. A server that has answered a run knows its prompts: give the next another seed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import sys
import time
import urllib.parse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tinyserve.bench.arguments import add_workload, positive_float, positive_int
from tinyserve.bench.common import (
    INTERRUPTED,
    command,
    program_parser,
    run_program,
    table,
    write_json,
)
from tinyserve.bench.latency import LATENCIES, Record, summary
from tinyserve.bench.target import Target
from tinyserve.bench.workload import Arrival, Shape, random_ids
from tinyserve.errors import ConfigError, reason_of

MODULE = "loadgen"
TRACE_LINE = '{"at": seconds, "prompt_tokens": n, "output_tokens": n}'


def main(argv: list[str] | None = None) -> None:
    parser = options()
    args = parser.parse_args(argv)
    if urllib.parse.urlsplit(args.url).scheme not in ("http", "https"):
        parser.error(f"--url must begin with http:// or https://, got {args.url!r}")
    workload = read_trace(args.trace, args.seed) if args.trace else _shape(args).make(args.seed)
    target = Target.of(args)
    records: list[Record] = []
    is_cut = False
    try:
        asyncio.run(run(target, workload, show=not args.quiet, ended=records))
    except KeyboardInterrupt:
        is_cut = True
        print(f"interrupted: {len(records)} of {len(workload)} requests had ended", file=sys.stderr)
    found = summary(records, args.slo)
    note = {"interrupted": True} if is_cut else {}
    write_json(args.out, {"command": command(MODULE, args, parser), **note, **found})
    print(report(found))
    for error, times in _errors(records).items():
        print(f"{times} x {error}")
    if any(r.error is None and not r.num_tokens for r in records):
        print("The server did not say how many tokens it sent: each piece counts as one.")
    if is_cut:
        sys.exit(INTERRUPTED)
    if found["failed"] and not args.allow_failures:
        sys.exit(1)


def options() -> argparse.ArgumentParser:
    parser = program_parser(MODULE, __doc__)
    add = parser.add_argument
    add("--url", required=True, help="the server, such as http://127.0.0.1:8000")
    add(
        "--endpoint",
        choices=("completions", "chat"),
        default="completions",
        help="which API to use",
    )
    add("--model", help="model name to send (default: the first that /v1/models lists)")
    add("--api-key", help="key to present")
    add("--rate", type=positive_float, default=4.0, help="requests a second (default: 4)")
    add("--num-requests", type=positive_int, default=50, help="how many to send (default: 50)")
    add_workload(parser)
    add("--trace", help="send this trace instead (JSON lines, see above)")
    add(
        "--respect-eos",
        action="store_true",
        help="let answers end by themselves; for servers that refuse ignore_eos",
    )
    add("--temperature", type=float, default=0.0, help="of the answers (default: 0)")
    add(
        "--timeout",
        type=positive_float,
        default=600.0,
        help="seconds until a request counts as failed",
    )
    add("--seed", type=int, default=0, help="of arrivals, lengths and words (default: 0)")
    add("--quiet", action="store_true", help="no live progress")
    add("--allow-failures", action="store_true", help="exit 0 even if requests failed")
    return parser


def _shape(args: argparse.Namespace) -> Shape:
    return Shape(
        args.num_requests, args.rate, args.prompt, args.output, args.arrivals, args.lengths
    )


def read_trace(path: str, seed: int) -> list[Arrival]:
    """A workload from JSON lines, in order of arrival; the seed draws its words. Raises
    ConfigError.
    """
    rng = random.Random(f"trace-{seed}")
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the trace {path}: {reason_of(error)}") from None
    arrivals = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            at, prompt = float(entry["at"]), int(entry["prompt_tokens"])
            output = int(entry["output_tokens"])
            if not (0 <= at < math.inf and prompt >= 1 and output >= 1):
                raise ValueError
        except (ValueError, LookupError, TypeError):
            raise ConfigError(
                f"{path}, line {number}: not {TRACE_LINE}, with a token at least: {line:.80}"
            ) from None
        arrivals.append(Arrival(at, random_ids(prompt, rng), output))
    if not arrivals:
        raise ConfigError(f"the trace {path} has no requests")
    return sorted(arrivals, key=lambda a: a.at)


async def run(
    target: Target,
    workload: Sequence[Arrival],
    *,
    show: bool = False,
    ended: list[Record] | None = None,
) -> list[Record]:
    """Send every request at its time; the records in order of arrival. `ended` is given each as it
    ends.
    """
    ended = [] if ended is None else ended

    async def ask(arrival: Arrival, number: int) -> Record:
        record = await target.ask(arrival, number)
        ended.append(record)
        return record

    begin = time.perf_counter()
    tasks: list[asyncio.Task[Record]] = []
    watcher = asyncio.create_task(_watch(tasks, len(workload))) if show else None
    try:
        for number, arrival in enumerate(workload):
            await asyncio.sleep(max(0.0, begin + arrival.at - time.perf_counter()))
            tasks.append(asyncio.create_task(ask(arrival, number)))
        return list(await asyncio.gather(*tasks))
    finally:
        if watcher is not None:
            watcher.cancel()
            sys.stderr.write("\n")


async def _watch(tasks: Sequence[asyncio.Task[Record]], total: int) -> None:
    """One line that says how far it is."""
    begin = time.perf_counter()
    while True:
        done = [task.result() for task in tasks if task.done()]
        tokens = sum(record.output_tokens for record in done)
        failed = sum(record.error is not None for record in done)
        passed = time.perf_counter() - begin
        sys.stderr.write(
            f"\r{passed:5.0f} s  sent {len(tasks)}/{total}  open {len(tasks) - len(done)}  "
            f"done {len(done)}  failed {failed}  {tokens / max(passed, 0.1):.0f} tok/s  "
        )
        sys.stderr.flush()
        await asyncio.sleep(0.5)


def report(found: dict[str, Any]) -> str:
    """The summary as tables."""
    rates = ("output_tok_s", "requests_s", "goodput_requests_s", "slo_attainment", "failed")
    lines = [table(["what", "value"], [[name, found.get(name)] for name in rates])]
    rows = []
    for name in LATENCIES:
        values = found.get(name)
        if values:
            rows.append(
                [name.replace("_s", " ms")] + [1e3 * values[p] for p in ("p50", "p90", "p99")]
            )
    lines.append(table(["latency", "p50", "p90", "p99"], rows))
    return "\n\n".join(lines)


def _errors(records: Sequence[Record]) -> dict[str, int]:
    """How often each kind of failure came; its first words tell one kind from another."""
    counts = Counter(record.error[:100] for record in records if record.error is not None)
    return dict(counts.most_common(10))


if __name__ == "__main__":
    run_program(main)
