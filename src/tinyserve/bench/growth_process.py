"""What is measured from outside a process: a server's start and memory, an engine's resident bytes.

As a program, `python -m tinyserve.bench.growth_process JSON` is the process that is weighed: with
the `model` section of a configuration it serves 16 streams and says what it holds; with `null` it
only imports what an engine does, which is the baseline.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from tinyserve.bench.http_stream import post
from tinyserve.bench.peer_engines import Tinyserve
from tinyserve.bench.served import Served, free_port, serving
from tinyserve.bench.watch import resident_mib, slope

SEATS = 16
CONTEXT = 512
BLOCKS = 256  # few, so that the whole KV-cache is soon touched and what still grows is a leak
SAMPLES = 100


def start_times(ours: Tinyserve, count: int) -> dict[str, Any]:
    """Seconds from the command to a healthy `/health`, `count` times after one that is not counted
    (it fills the caches of files and of packed weights).
    """
    seconds = []
    for _ in range(count + 1):
        port = free_port()
        with serving(ours.serve(port, SEATS, CONTEXT), port) as server:
            seconds.append(server.start_s)
    return {"seconds": seconds[1:], "first": seconds[0]}


def memory_over_requests(ours: Tinyserve, count: int, seed: int) -> dict[str, Any]:
    """Resident MiB of a server while it answers `count` short requests, 16 at a time."""
    port = free_port()
    command = [*ours.serve(port, SEATS, CONTEXT), "--num-blocks", str(BLOCKS)]
    with serving(command, port) as server:
        samples = asyncio.run(_ask(server, count, seed))
    warm = [(float(done), mib) for done, mib in samples if done >= count / 10]
    return {"samples": samples, "growth_kib_per_1000": 1000 * 1024 * slope(warm)}


async def _ask(server: Served, count: int, seed: int) -> list[tuple[int, float]]:
    """(requests done, resident MiB), `SAMPLES` times over the run."""
    url = f"{server.url}/v1/completions"
    samples = [(0, resident_mib(server.pid) or 0.0)]
    numbers = iter(range(count))
    done = 0

    async def client() -> None:
        nonlocal done
        for number in numbers:
            length = 1 + (seed + number) % 4
            body = {"prompt": f"{seed + number}: " + "a word " * length, "max_tokens": length}
            answer = await post(url, {**body, "ignore_eos": True}, {}, 600.0)
            if answer.status != 200:
                raise RuntimeError(f"HTTP {answer.status}: {answer.body[:200]!r}")
            done += 1
            if done % max(1, count // SAMPLES) == 0:
                samples.append((done, resident_mib(server.pid) or 0.0))

    await asyncio.gather(*(client() for _ in range(SEATS)))
    return samples


def resident(model: Mapping[str, Any], seed: int) -> dict[str, float]:
    """Bytes of an engine that has served, by what they are for; and of a process without one.

    `ratio`: what is resident beyond the baseline, over packed weights and touched KV.
    """
    baseline = _weigh(None)["resident"]
    found = _weigh({"model": dict(model), "seed": seed})
    useful = found["weights"] + found["kv_cache"]
    return {**found, "baseline": baseline, "ratio": (found["resident"] - baseline) / useful}


def _weigh(told: Mapping[str, Any] | None) -> dict[str, float]:
    command = [sys.executable, "-m", "tinyserve.bench.growth_process", json.dumps(told)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"the process that is weighed failed:\n{done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _be_weighed(told: Mapping[str, Any] | None) -> dict[str, float]:
    """What this process holds once it has done what it was told."""
    from tinyserve.bench.offline_cases import decode
    from tinyserve.config import TinyServeConfig
    from tinyserve.engine.build import build_engine
    from tinyserve.engine.memory import resident_memory

    if told is None:
        return {"resident": resident_memory()}
    engine = build_engine(TinyServeConfig.from_dict({"model": told["model"]}))
    decode(engine.core, SEATS, 64, 64, int(told["seed"]))
    report = engine.core.memory_report()
    return {
        **{name: item["touched"] for name, item in report.items()},
        "resident": resident_memory(),
    }


if __name__ == "__main__":
    print(json.dumps(_be_weighed(json.loads(sys.argv[1]))))
