"""What the server costs besides the model: CPU time for each streamed token and each request.

    python -m tinyserve.bench.http_overhead --out FILE

A whole server on a real socket over an engine whose model computes nothing. The client lives in the
same process; what is counted is the CPU time of the server's two threads, read from their own
clocks, so that neither the client nor waiting is in it. The model that computes nothing pauses in
each step, long enough for the loop to send every step's tokens by themselves. A token's cost is
the difference between long and short streams: what a request costs once is not in it.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import http.client
import json
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from tinyserve.bench.arguments import ints, positive_int
from tinyserve.bench.common import (
    command,
    machine,
    program_parser,
    run_program,
    say,
    table,
    write_json,
)
from tinyserve.config import TinyServeConfig
from tinyserve.engine.build import Engine, assemble
from tinyserve.engine.plan import StepPlan
from tinyserve.engine.sampling import SampledToken, SampleRow
from tinyserve.models.synthetic import synthetic_checkpoint
from tinyserve.server.app import create_app
from tinyserve.server.run import GracefulServer, web_settings
from tinyserve.text.tokenizer import Tokenizer

MODULE = "http_overhead"
SHORT = 8  # tokens of the short streams
HEADERS = {"content-type": "application/json"}


class InstantRunner:
    """Computes nothing: every row draws the same token, after a pause."""

    def __init__(self, token_id: int) -> None:
        self.pause_s = 0.0
        self._token = SampledToken(token_id)

    def run(self, plan: StepPlan) -> InstantRunner:
        if self.pause_s:
            time.sleep(self.pause_s)
        return self

    def sample(self, rows: list[SampleRow]) -> list[SampledToken]:
        return [self._token] * len(rows)

    def memory_report(self) -> dict[str, Any]:
        return {}


def instant_engine(max_num_seqs: int, max_tokens: int) -> tuple[Engine, InstantRunner]:
    """An engine whose every token is the letter a."""
    checkpoint = synthetic_checkpoint()
    length = checkpoint.config.max_position_embeddings
    if max_tokens + 64 > length:
        raise SystemExit(f"--tokens is at most {length - 64}")
    config = TinyServeConfig.from_dict(
        {
            "cache": {"num_blocks": 16 + max_num_seqs * (length // 16)},
            "scheduler": {"max_num_seqs": max_num_seqs, "max_model_len": length},
            "server": {"disable_log_stats": True, "shutdown_timeout_s": 1},
        }
    )
    tokenizer = Tokenizer.from_spec(checkpoint.tokenizer_spec())
    runner = InstantRunner(tokenizer.encode("a", add_special_tokens=False)[0])
    return assemble(config, checkpoint, tokenizer, runner), runner


@dataclass(frozen=True)
class Server:
    """A running server and the CPU clocks of its threads."""

    port: int
    loop_s: Callable[[], float]
    engine_s: Callable[[], float]


@contextlib.contextmanager
def serving(engine: Engine) -> Iterator[Server]:
    app = create_app(engine)
    server = GracefulServer(web_settings(app, engine.config.server), app.state.tinyserve)
    before = set(threading.enumerate())
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        loop = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        loop.start()
        try:
            while not server.started:
                time.sleep(0.01)
            new = set(threading.enumerate()) - before
            (thread,) = [t for t in new if t.name == "tinyserve-engine"]
            yield Server(listener.getsockname()[1], cpu_clock(loop), cpu_clock(thread))
        finally:
            server.should_exit = True
            loop.join()


def cpu_clock(thread: threading.Thread) -> Callable[[], float]:
    """A clock of the CPU time that a thread has used."""
    if sys.platform == "darwin" or not hasattr(time, "pthread_getcpuclockid"):
        raise SystemExit("this system has no CPU clocks for threads")
    assert thread.ident is not None
    clock = time.pthread_getcpuclockid(thread.ident)
    return lambda: time.clock_gettime(clock)


class Client:
    """One kept connection."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)

    def complete(self, max_tokens: int, *, stream: bool) -> bytes:
        body = {"prompt": "hello", "max_tokens": max_tokens, "ignore_eos": True, "stream": stream}
        self._connection.request("POST", "/v1/completions", json.dumps(body), HEADERS)
        answer = self._connection.getresponse()
        if answer.status != 200:
            raise SystemExit(f"the server answered {answer.status}: {answer.read()!r}")
        return answer.read()

    def close(self) -> None:
        self._connection.close()

    def get(self, path: str) -> bytes:
        self._connection.request("GET", path)
        return self._connection.getresponse().read()


@dataclass(frozen=True)
class Cost:
    """CPU microseconds of the event loop and of the engine thread."""

    loop_us: float
    engine_us: float


def measured(server: Server, work: Callable[[], object], count: int) -> Cost:
    """What `work` costs, divided by `count`."""
    loop, engine = server.loop_s(), server.engine_s()
    work()
    time.sleep(0.02)  # work that follows the last byte counts, too
    loop, engine = server.loop_s() - loop, server.engine_s() - engine
    return Cost(loop / count * 1e6, engine / count * 1e6)


def token_cost(server: Server, num_streams: int, num_tokens: int) -> Cost:
    """The cost of one token in each of `num_streams` streams at once."""
    with contextlib.ExitStack() as stack:
        clients = [
            stack.enter_context(contextlib.closing(Client(server.port))) for _ in range(num_streams)
        ]
        return _token_cost(server, clients, num_tokens)


def _token_cost(server: Server, clients: list[Client], num_tokens: int) -> Cost:
    num_streams = len(clients)

    def run(length: int) -> None:
        with ThreadPoolExecutor(num_streams) as pool:
            answers = list(pool.map(lambda c: c.complete(length, stream=True), clients))
        for answer in answers:
            if answer.count(b"data: ") < length:
                raise SystemExit("tokens shared an event: the pause of a step is too short")

    run(SHORT)
    short = measured(server, lambda: run(SHORT), 1)
    long = measured(server, lambda: run(num_tokens), 1)
    tokens = num_streams * (num_tokens - SHORT)
    return Cost(
        (long.loop_us - short.loop_us) / tokens, (long.engine_us - short.engine_us) / tokens
    )


def repeated(measure: Callable[[], Cost], times: int) -> dict[str, float]:
    """Medians."""
    costs = [dataclasses.asdict(measure()) for _ in range(times)]
    return {name: round(statistics.median(cost[name] for cost in costs), 2) for name in costs[0]}


def run(args: argparse.Namespace) -> list[dict[str, Any]]:
    """What was measured, a line each."""
    engine, runner = instant_engine(max(args.streams), args.tokens)
    rows: list[dict[str, Any]] = []
    with serving(engine) as server:
        with contextlib.closing(Client(server.port)) as client:
            client.complete(1, stream=False)
        for num_streams in args.streams:
            say(f"{num_streams} streams of {args.tokens} tokens")
            runner.pause_s = 0.0005 + 0.0003 * num_streams
            measure = partial(token_cost, server, num_streams, args.tokens)
            cost = repeated(measure, args.repeat)
            rows.append({"what": "streamed token", "streams": num_streams, **cost})
        runner.pause_s = 0.0
        for what, call in CALLS.items():
            say(what)
            with contextlib.closing(Client(server.port)) as client:
                work = partial(_many, call, client, args.requests)
                work()
                cost = repeated(partial(measured, server, work, args.requests), args.repeat)
            rows.append({"what": what, "streams": 1, **cost})
    return rows


CALLS: dict[str, Callable[[Client], object]] = {
    "request, whole, of one token": lambda client: client.complete(1, stream=False),
    "request, streamed, of one token": lambda client: client.complete(1, stream=True),
    "GET /health": lambda client: client.get("/health"),
    "GET /metrics": lambda client: client.get("/metrics"),
    "GET /engine/state": lambda client: client.get("/engine/state"),
}


def _many(call: Callable[[Client], object], client: Client, count: int) -> None:
    for _ in range(count):
        call(client)


def options() -> argparse.ArgumentParser:
    parser = program_parser(MODULE, __doc__)
    streams = "streams at once, separated by commas"
    parser.add_argument("--streams", type=ints, default=[1, 16], help=streams)
    parser.add_argument("--tokens", type=positive_int, default=400, help="tokens of a long stream")
    parser.add_argument(
        "--requests", type=positive_int, default=200, help="requests one after another"
    )
    parser.add_argument("--repeat", type=positive_int, default=3, help="times; medians are shown")
    return parser


def main(argv: list[str] | None = None) -> None:
    parser = options()
    args = parser.parse_args(argv)
    rows = run(args)
    about = {"machine": machine(), "command": command(MODULE, args, parser)}
    write_json(args.out, {**about, "rows": rows})
    header = ["", "streams", "loop, µs", "engine thread, µs"]
    print(table(header, [list(row.values()) for row in rows]))


if __name__ == "__main__":
    run_program(main)
