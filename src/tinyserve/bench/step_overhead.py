"""What a decode step costs outside the forward pass: Python's share, part by part.

    python -m tinyserve.bench.step_overhead --streams 1,8,32,64 --out overhead.json

For numbers of streams, greedy and sampled: microseconds a step of the engine's thread, native calls
left out, by part. `scheduler` plans; `batch` flattens the chunks and calls the forward pass;
`sampling` makes the draws' arguments and reads their results; `text` is detokenization, measured
by pushing the same tokens again; `rest` commits tokens and makes outputs. It is CPU time of the
thread, which other processes disturb less than the wall clock; that is given beside it.

Then the scheduler alone, over the number of waiting requests, under each policy.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tinyserve.bench.arguments import ints, positive_int
from tinyserve.bench.common import (
    command,
    machine,
    model_parser,
    model_section,
    run_program,
    say,
    table,
    write_json,
)
from tinyserve.bench.replay import VirtualClock
from tinyserve.bench.simulate import StepModel, simulated_core
from tinyserve.config import CacheConfig, SchedulerConfig, TinyServeConfig
from tinyserve.engine.build import Engine, build_engine
from tinyserve.engine.request import EngineRequest, RequestOutput
from tinyserve.engine.sampling import SamplingParams
from tinyserve.kernels import abi

MODULE = "step_overhead"
PARTS = ("scheduler", "batch", "sampling", "text", "rest")
SAMPLED = {"temperature": 0.8, "top_p": 0.95}
PROMPT = 20  # tokens
WARM = 10  # steps before the first that counts
POLICIES = ("continuous", "priority", "fair")
SEATS = 8  # taken, while others wait


def main(argv: list[str] | None = None) -> None:
    parser = options()
    args = parser.parse_args(argv)
    with timed_library() as library:
        lines = [
            {"streams": streams, "sampling": name, **measure(args, library, streams, fields)}
            for streams in args.streams
            for name, fields in (("greedy", {"temperature": 0}), ("sampled", SAMPLED))
        ]
    waiting = [
        {"policy": policy, "waiting": count, "us": schedule_time(policy, count, args.steps)}
        for policy in POLICIES
        for count in args.waiting
    ]
    result = {
        "command": command(MODULE, args, parser),
        "machine": machine(),
        "lines": lines,
        "waiting": waiting,
    }
    write_json(args.out, result)
    print(report(result))


def options() -> argparse.ArgumentParser:
    parser = model_parser(MODULE, __doc__)
    parser.set_defaults(size="tiny", threads=1)
    add = parser.add_argument
    add("--streams", type=ints, default=[1, 8, 32, 64], help="sequences at once")
    add("--waiting", type=ints, default=[10, 100, 1000, 10000], help="waiting requests")
    add("--steps", type=positive_int, default=300, help="steps of each case; medians are reported")
    return parser


class TimedLibrary:
    """The kernels' library; `cpu` and `wall` are the seconds spent in forward passes and draws."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self.cpu = self.wall = 0.0
        self.ts_program_run = self._timed(library.ts_program_run)
        self.ts_sample = self._timed(library.ts_sample)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._library, name)

    def cpu_outside(self) -> float:
        """The thread's CPU time, by a clock that stands still during those calls."""
        return time.thread_time() - self.cpu

    def wall_outside(self) -> float:
        return time.perf_counter() - self.wall

    def _timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            cpu, wall = time.thread_time(), time.perf_counter()
            result = function(*arguments)
            self.cpu += time.thread_time() - cpu
            self.wall += time.perf_counter() - wall
            return result

        return call


@contextmanager
def timed_library() -> Iterator[TimedLibrary]:
    """Engines built in this context call the kernels through it. Raises OSError without kernels."""
    real = abi.load_library()
    timed = TimedLibrary(real)
    abi._library = timed  # type: ignore[assignment]
    try:
        yield timed
    finally:
        abi._library = real


def measure(
    args: argparse.Namespace, library: TimedLibrary, streams: int, fields: dict[str, Any]
) -> dict[str, Any]:
    """Microseconds a step: each part's median, and the whole step's."""
    sections = {"model": model_section(args), "scheduler": {"max_num_seqs": streams}}
    engine = build_engine(TinyServeConfig.from_dict(sections))
    requests = decodes(engine, streams, args.steps, args.seed, fields)
    core = engine.core
    core.clock = library.cpu_outside
    for request in requests:
        core.add_request(request)
    for _ in range(WARM):
        core.step()
    steps, outputs = [], []
    for _ in range(args.steps):
        cpu, wall = library.cpu_outside(), library.wall_outside()
        outputs.append(core.step())
        cpu, wall = library.cpu_outside() - cpu, library.wall_outside() - wall
        assert core.lap is not None
        lap = core.lap
        planned, ran, drawn = lap.planned - lap.begin, lap.ran - lap.planned, lap.drawn - lap.ran
        steps.append((planned, ran, drawn, cpu, wall))
    planned, ran, drawn, cpu, wall = [1e6 * statistics.median(c) for c in zip(*steps, strict=True)]
    text = 1e6 * statistics.median(text_times(requests, outputs))
    rest = cpu - planned - ran - drawn - text
    parts = dict(zip(PARTS, (planned, ran, drawn, text, rest), strict=True))
    say(f"{streams} streams done")
    return {"us": parts, "total_us": cpu, "wall_us": wall}


def decodes(
    engine: Engine, streams: int, steps: int, seed: int, fields: dict[str, Any]
) -> list[EngineRequest]:
    """Requests that decode in each of the steps, with prompts that share nothing."""
    vocab_size = engine.intake.limits.vocab_size
    requests = []
    for i in range(streams):
        params = engine.intake.params(
            {"max_tokens": steps + 4 * WARM, "ignore_eos": True, "seed": seed + i, **fields}
        )
        prompt = [(seed + i * PROMPT + j) % vocab_size for j in range(PROMPT)]
        requests.append(engine.intake.request(str(i), prompt, params))
    return requests


def text_times(requests: list[EngineRequest], outputs: list[list[RequestOutput]]) -> list[float]:
    """Seconds of each step's tokens in texts of their own."""
    texts = {}
    for request in requests:
        assert request.new_text is not None
        texts[request.request_id] = request.new_text()
    times = []
    for step in outputs:
        tokens = [(texts[o.request_id], token) for o in step for token in o.new_token_ids]
        begin = time.thread_time()
        for text, token in tokens:
            text.push(token, True)
        times.append(time.thread_time() - begin)
    return times


def schedule_time(policy: str, waiting: int, steps: int) -> float:
    """The median microseconds of planning a step while so many requests, each of a client of its
    own, wait for one of the seats.
    """
    length = 2 * (steps + 4 * WARM)
    scheduler = SchedulerConfig(policy=policy, max_num_seqs=SEATS, max_model_len=length)
    blocks = CacheConfig(num_blocks=SEATS * (length // 16 + 2))
    core = simulated_core(StepModel((1,), (0.0,), 0.0, 0.0), VirtualClock(), scheduler, blocks)
    core.clock = time.thread_time
    params = SamplingParams(temperature=0, max_tokens=steps + 4 * WARM)
    for i in range(SEATS + waiting):
        request = EngineRequest(
            request_id=str(i), prompt_token_ids=(i, 1), params=params, client=str(i)
        )
        core.add_request(request)
    times = []
    for _ in range(WARM + steps):
        core.step()
        assert core.lap is not None
        times.append(core.lap.planned - core.lap.begin)
    return 1e6 * statistics.median(times[WARM:])


def report(result: Mapping[str, Any]) -> str:
    """Both tables."""
    rows = [
        [x["streams"], x["sampling"], *x["us"].values(), x["total_us"], x["wall_us"]]
        for x in result["lines"]
    ]
    head = ["streams", "sampling", *(f"{part} µs" for part in PARTS), "total µs", "wall µs"]
    waits = [[x["policy"], x["waiting"], x["us"]] for x in result["waiting"]]
    return table(head, rows) + "\n\n" + table(["policy", "waiting", "scheduler µs"], waits)


if __name__ == "__main__":
    run_program(main)
