"""Open-loop load on any OpenAI-compatible server: Poisson, bursts, or a trace.

    python -m tinyserve.bench.loadgen --url http://127.0.0.1:8000 --rate 4 --num-requests 50

Requests are sent at their times however slow the server is. Reports throughput, percentiles of the
time to the first token, between tokens and to the end, and goodput under a stated objective.

A trace (`--trace FILE`) is JSON lines of {"at": seconds, "prompt_tokens": n, "output_tokens": n}.
Prompts are common words, about one token each, and begin with a number of their own, so that no
prompt cache helps. A server that has answered a run knows its prompts: give the next another seed.
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
from pathlib import Path
from typing import Any

from tinyserve.bench.common import command, run_program, table, write_json
from tinyserve.bench.http_stream import Answer, post
from tinyserve.bench.latency import SLO, Record, summary
from tinyserve.bench.workload import ARRIVALS, LENGTHS, Arrival, Shape, Span, random_ids

MODULE = "loadgen"
_TEXT = """time year people way day man thing woman life child world school state family student
group country problem hand part place case week company system program question work number night
point home water room mother area money story fact month lot right study book eye job word"""
WORDS = _TEXT.split()


def main(argv: list[str] | None = None) -> None:
    parser = options()
    args = parser.parse_args(argv)
    workload = read_trace(args.trace) if args.trace else _shape(args).make(args.seed)
    records = asyncio.run(run(Target.of(args), workload, show=not args.quiet))
    found = summary(records, args.slo)
    print(report(found))
    for error, count in _errors(records).items():
        print(f"{count} x {error}")
    write_json(args.out, {"command": command(MODULE, args, parser), **found})
    if found["failed"] and not args.allow_failures:
        sys.exit(1)


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m tinyserve.bench.{MODULE}",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--url", required=True, help="the server, such as http://127.0.0.1:8000")
    add("--endpoint", choices=("completions", "chat"), default="completions")
    add("--model", help="model name to send (default: the first that /v1/models lists)")
    add("--api-key", help="key to present")
    add("--rate", type=float, default=4.0, help="requests a second")
    add("--num-requests", type=int, default=50)
    add("--arrivals", choices=ARRIVALS, default="poisson")
    add("--lengths", choices=LENGTHS, default="uniform")
    add("--prompt", type=Span.parse, default=Span(16, 96), help="prompt tokens, such as 16-96")
    add("--output", type=Span.parse, default=Span(16, 64), help="output tokens, such as 16-64")
    add("--trace", help="send this trace instead (JSON lines)")
    add("--temperature", type=float, default=0.0)
    add("--timeout", type=float, default=600.0, help="seconds until a request counts as failed")
    add(
        "--slo", type=SLO.parse, default=SLO(), help="seconds to first token, between tokens: 2,0.2"
    )
    add("--seed", type=int, default=0)
    add("--out", help="write the result as JSON")
    add("--quiet", action="store_true", help="no live progress")
    add("--allow-failures", action="store_true", help="exit 0 even if requests failed")
    return parser


def _shape(args: argparse.Namespace) -> Shape:
    return Shape(
        args.num_requests, args.rate, args.prompt, args.output, args.arrivals, args.lengths
    )


def read_trace(path: str) -> list[Arrival]:
    """A workload from JSON lines, in order of arrival."""
    rng = random.Random(path)
    arrivals = []
    for line in Path(path).read_text().splitlines():
        if line.strip():
            entry = json.loads(line)
            prompt = random_ids(int(entry["prompt_tokens"]), 512, rng)
            arrivals.append(Arrival(float(entry["at"]), prompt, int(entry["output_tokens"])))
    return sorted(arrivals, key=lambda a: a.at)


class Target:
    """The server under load, and how it is asked."""

    def __init__(
        self,
        url: str,
        *,
        endpoint: str = "completions",
        model: str | None = None,
        api_key: str | None = None,
        temperature: float = 0.0,
        timeout_s: float = 600.0,
    ) -> None:
        path = "/v1/completions" if endpoint == "completions" else "/v1/chat/completions"
        self.base = url.rstrip("/").removesuffix("/v1")
        self._url = self.base + path
        self._is_chat = endpoint == "chat"
        self._model = model
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._temperature = temperature
        self._timeout_s = timeout_s

    @classmethod
    def of(cls, args: argparse.Namespace) -> Target:
        """As the options say; asks the server for its model's name if none was given."""
        return cls(
            args.url,
            endpoint=args.endpoint,
            model=args.model or first_model(args.url, args.api_key),
            api_key=args.api_key,
            temperature=args.temperature,
            timeout_s=args.timeout,
        )

    async def ask(self, arrival: Arrival, number: int) -> Record:
        """Send one request and wait for its end; failures are noted in the record."""
        record = Record(time.perf_counter(), len(arrival.prompt_ids), client=arrival.client)
        try:
            answer = await post(
                self._url, self._body(arrival, number), self._headers, self._timeout_s
            )
            _read(answer, record)
        except Exception as error:
            record.error = f"{type(error).__name__}: {error}"
        return record

    def _body(self, arrival: Arrival, number: int) -> dict[str, Any]:
        text = prompt_text(arrival.prompt_ids, number)
        said: dict[str, Any] = (
            {"messages": [{"role": "user", "content": text}]} if self._is_chat else {"prompt": text}
        )
        return {
            **said,
            **({"model": self._model} if self._model else {}),
            "max_tokens": arrival.max_tokens,
            "temperature": self._temperature,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }


def prompt_text(ids: Sequence[int], number: int) -> str:
    """About as many tokens of common words, after a number that no other prompt has."""
    return f"{number}: " + " ".join(WORDS[i % len(WORDS)] for i in ids[3:])


def _read(answer: Answer, record: Record) -> None:
    """Fill a record from the events of its stream."""
    if answer.status != 200:
        record.error = f"HTTP {answer.status}: {answer.body[:200].decode(errors='replace')}"
        return
    is_done = False
    for when, data in answer.events:
        if data == b"[DONE]":
            is_done = True
            continue
        chunk = json.loads(data)
        if "error" in chunk:
            record.error = json.dumps(chunk["error"])
            return
        for choice in chunk.get("choices", ()):
            delta = choice.get("delta") or {}
            if choice.get("text") or delta.get("content") or delta.get("reasoning_content"):
                record.token_times.append(when)
        usage = chunk.get("usage")
        if usage:
            record.num_tokens = usage["completion_tokens"]
            record.prompt_tokens = usage["prompt_tokens"]
            details = usage.get("prompt_tokens_details") or {}
            record.cached_tokens = details.get("cached_tokens") or 0
    if not is_done or not record.token_times:
        record.error = "the stream ended early"


def first_model(url: str, api_key: str | None = None) -> str | None:
    """The first model the server lists; None where it lists none."""
    import urllib.request

    request = urllib.request.Request(url.rstrip("/").removesuffix("/v1") + "/v1/models")
    if api_key:
        request.add_header("Authorization", f"Bearer {api_key}")
    with urllib.request.urlopen(request, timeout=30) as response:
        data = json.load(response).get("data") or []
    return data[0]["id"] if data else None


async def run(target: Target, workload: Sequence[Arrival], *, show: bool = False) -> list[Record]:
    """Send every request at its time; the records in order of arrival."""
    begin = time.perf_counter()
    tasks: list[asyncio.Task[Record]] = []
    watcher = asyncio.create_task(_watch(tasks, len(workload))) if show else None
    for number, arrival in enumerate(workload):
        await asyncio.sleep(max(0.0, begin + arrival.at - time.perf_counter()))
        tasks.append(asyncio.create_task(target.ask(arrival, number)))
    records = await asyncio.gather(*tasks)
    if watcher is not None:
        watcher.cancel()
        sys.stderr.write("\n")
    return list(records)


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
    for name in ("ttft_s", "inter_token_s", "e2e_s"):
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
