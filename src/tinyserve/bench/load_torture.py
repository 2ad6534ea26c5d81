"""A crowd, an overload, and clients that leave: what the server promises while too much is asked.

    python -m tinyserve.bench.load_torture --model default --seconds 60

Starts a server, asks it each of some prompts alone, and then

- a crowd: `--streams` plus `--queued` requests at once, some of which hang up at random moments;
- an overload: requests at `--overload` times the pace of the crowd, for a while to warm up, then
  for `--seconds`.

Every answer is compared with the one that was given alone: greedy, so it must be the same text.
Whoever is not answered must have been told 429. Meanwhile `/health` is asked again and again, and
the server's memory is read. Exits with 1 where a promise is broken.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tinyserve.bench.arguments import positive_float, positive_int
from tinyserve.bench.common import command, machine, program_parser, run_program, table, write_json
from tinyserve.bench.http_stream import Answer, post
from tinyserve.bench.served import Served, free_port, serving
from tinyserve.bench.watch import Watch

MODULE = "load_torture"
NUM_PROMPTS = 16
PATIENCE_S = 900.0


@dataclass(frozen=True)
class Load:
    """What is asked: one of some prompts, `num_tokens` long answers."""

    url: str
    num_tokens: int
    leave: float  # share of clients that hang up
    seed: int = 0

    def body(self, number: int) -> dict[str, Any]:
        start = f"{number % NUM_PROMPTS}: once upon a time there was a"
        sampling = {"temperature": 0, "max_tokens": self.num_tokens, "ignore_eos": True}
        return {"prompt": start, **sampling, "stream": True}


@dataclass
class Outcome:
    """How the requests of a phase ended. `wrong` says what broke a promise."""

    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, ending: str) -> None:
        kind = ending if ending in ("ended", "left", "refused") else "wrong"
        self.counts[kind] += 1
        if kind == "wrong":
            self.wrong.append(ending)


async def answers_alone(load: Load) -> list[str]:
    """The text of each prompt, asked one after the other."""
    texts = []
    for number in range(NUM_PROMPTS):
        answer = await post(load.url, load.body(number), {}, PATIENCE_S)
        problem = _problem(answer)
        if problem is not None:
            raise RuntimeError(f"the server cannot answer a request alone: {problem}")
        texts.append(_text(answer))
    return texts


async def crowd(load: Load, count: int, expected: Sequence[str]) -> Outcome:
    """`count` requests, all at once."""
    return await _run(load, [0.0] * count, expected, leave_within=2.0)


async def overload(load: Load, rate: float, seconds: float, expected: Sequence[str]) -> Outcome:
    """`rate` requests a second, whatever becomes of them."""
    times = [i / rate for i in range(int(rate * seconds))]
    return await _run(load, times, expected, leave_within=seconds / 4)


async def _run(
    load: Load, times: Sequence[float], expected: Sequence[str], leave_within: float
) -> Outcome:
    rng = random.Random(load.seed)
    outcome = Outcome()
    began = time.perf_counter()

    async def client(number: int, leave_after: float | None) -> None:
        outcome.add(await _ask(load, number, expected, leave_after))

    clients = []
    for number, at in enumerate(times):
        await asyncio.sleep(max(0.0, began + at - time.perf_counter()))
        leaves = rng.random() < load.leave
        leave_after = rng.uniform(0.0, leave_within) if leaves else None
        clients.append(asyncio.create_task(client(number, leave_after)))
    await asyncio.gather(*clients)
    outcome.seconds = time.perf_counter() - began
    return outcome


async def _ask(load: Load, number: int, expected: Sequence[str], leave_after: float | None) -> str:
    """ "ended", "left", "refused", or what was wrong."""
    patience = PATIENCE_S if leave_after is None else leave_after
    try:
        answer = await post(load.url, load.body(number), {}, patience)
    except TimeoutError:
        return "left" if leave_after is not None else "never answered"
    except OSError as error:
        return f"connection failed: {error!r}"
    if answer.status == 429:
        is_told = json.loads(answer.body)["error"]["code"] == "queue_full"
        return "refused" if is_told else f"429 for another reason: {answer.body!r}"
    problem = _problem(answer)
    if problem is None and _text(answer) != expected[number % NUM_PROMPTS]:
        problem = "the text differs from the one that was given alone"
    return problem or "ended"


def _problem(answer: Answer) -> str | None:
    if answer.status != 200:
        return f"status {answer.status}: {answer.body[:200]!r}"
    if not answer.is_complete or not answer.events or answer.events[-1][1] != b"[DONE]":
        return "the stream did not end with [DONE]"
    reasons = [c["finish_reason"] for c in _choices(answer) if c["finish_reason"] is not None]
    return None if reasons == ["length"] else f"finish reasons {reasons}"


def _choices(answer: Answer) -> list[dict[str, Any]]:
    chunks = [json.loads(data) for _, data in answer.events[:-1]]
    return [choice for chunk in chunks for choice in chunk["choices"]]


def _text(answer: Answer) -> str:
    return "".join(choice["text"] for choice in _choices(answer))


async def torture(args: argparse.Namespace, server: Served) -> dict[str, Any]:
    """Both phases under watch; the result."""
    load = Load(f"{server.url}/v1/completions", args.tokens, args.leave, args.seed)
    expected = await answers_alone(load)
    watch = Watch(server.url, server.pid)
    await watch.start()
    phases = {"crowd": await crowd(load, args.streams + args.queued, expected)}
    rate = args.overload * phases["crowd"].counts["ended"] / phases["crowd"].seconds
    phases["warm-up"] = await overload(load, rate, args.seconds / 4, expected)
    watch.mark()  # every buffer has been as large as it will be
    phases["overload"] = await overload(load, rate, args.seconds, expected)
    return {
        "phases": {
            name: {**outcome.counts, "seconds": outcome.seconds, "wrong_first": outcome.wrong[:5]}
            for name, outcome in phases.items()
        },
        "overload_rate": rate,
        **await watch.finish(),
    }


def broken(result: dict[str, Any]) -> list[str]:
    """The promises that were not kept."""
    found = []
    for name, phase in result["phases"].items():
        if phase.get("wrong"):
            found.append(f"{name}: {phase['wrong']} wrong, such as {phase['wrong_first']}")
        if not phase.get("ended"):
            found.append(f"{name}: nothing was answered")
    if not result["phases"]["overload"].get("refused"):
        found.append("overload: nothing was refused, so it was none")
    if result["health_ms"]["p99"] > 100:
        found.append(f"one /health in a hundred took {result['health_ms']['p99']:.0f} ms")
    if not result["is_idle_after"]:
        found.append("the server is not idle after all clients have gone")
    return found


def options() -> argparse.ArgumentParser:
    parser = program_parser(MODULE, __doc__)
    add = parser.add_argument
    add("--model", default="synthetic", help="model to serve (default: random weights)")
    add("--streams", type=positive_int, default=64, help="sequences computed at once")
    add("--queued", type=positive_int, default=500, help="requests that may wait")
    add("--leave", type=float, default=0.3, help="share of clients that hang up")
    add(
        "--overload",
        type=positive_float,
        default=4.0,
        help="times the pace at which requests are answered",
    )
    add("--seconds", type=positive_float, default=60.0, help="length of the overload")
    add("--tokens", type=positive_int, default=16, help="of each answer")
    add("--seed", type=int, default=0, help="of prompts and hang-ups (default: 0)")
    return parser


def serve_command(args: argparse.Namespace, port: int) -> list[str]:
    """The server that is asked."""
    blocks = args.streams * (2 + args.tokens // 16)  # few, so that all have soon been touched
    return [
        *(sys.executable, "-m", "tinyserve", "serve", args.model, "--port", str(port)),
        *("--max-num-seqs", str(args.streams), "--max-queued-requests", str(args.queued)),
        *("--num-blocks", str(blocks)),
    ]


def main(argv: list[str] | None = None) -> None:
    parser = options()
    args = parser.parse_args(argv)
    port = free_port()
    with serving(serve_command(args, port), port) as server:
        result = asyncio.run(torture(args, server))
    header = ("phase", "ended", "left", "refused", "wrong", "seconds")
    rows = [
        (name, *(phase.get(kind, 0) for kind in header[1:-1]), phase["seconds"])
        for name, phase in result["phases"].items()
    ]
    print(table(header, rows))
    print(json.dumps({k: v for k, v in result.items() if k != "phases"}, indent=1))
    write_json(args.out, {"command": command(MODULE, args, parser), **machine(), **result})
    problems = broken(result)
    print("\n".join(problems) or "every promise was kept")
    sys.exit(bool(problems))


if __name__ == "__main__":
    run_program(main)
