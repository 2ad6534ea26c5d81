"""Workloads: who asks for how much, and when. Plain values made from a seed; no engine, no clock.

Arrival processes: `poisson` (open loop, exponential gaps), `burst` (Poisson bursts of several at
once), `steady` (equal gaps), `together` (everybody at time 0). Lengths are drawn uniformly, or like
chat traffic (`chat`: log-normal, a few very long; the shape of published ShareGPT statistics).
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

ARRIVALS = ("poisson", "burst", "steady", "together")
LENGTHS = ("uniform", "chat")
BURST_SIZE = 8
LEAST_VOCAB = 512  # no model here has fewer tokens


@dataclass(frozen=True)
class Arrival:
    """One request. `at`: seconds after the start; lengths in tokens."""

    at: float
    prompt_ids: tuple[int, ...]
    max_tokens: int
    client: str = ""
    priority: int = 0


@dataclass(frozen=True)
class Span:
    """Inclusive bounds of a length, in tokens."""

    low: int
    high: int

    @classmethod
    def parse(cls, text: str) -> Span:
        """ "16-96", or one number. Raises ValueError."""
        low, _, high = text.partition("-")
        span = cls(int(low), int(high or low))
        if not 1 <= span.low <= span.high:
            raise ValueError(f"{text!r} is not a span of lengths such as 16-96")
        return span


@dataclass(frozen=True)
class Shape:
    """What a workload looks like. `rate` in requests a second."""

    count: int
    rate: float
    prompt: Span = Span(16, 96)
    output: Span = Span(16, 64)
    arrivals: str = "poisson"
    lengths: str = "uniform"

    def make(self, seed: int) -> list[Arrival]:
        """The requests in order of arrival. Every prompt is different from its first token on."""
        rng = random.Random(f"workload-{seed}")
        times = arrival_times(self.arrivals, self.rate, self.count, rng)
        return [
            Arrival(
                at,
                random_ids(self.draw(self.prompt, rng), rng),
                self.draw(self.output, rng),
            )
            for at in times
        ]

    def draw(self, span: Span, rng: random.Random) -> int:
        """One length."""
        if self.lengths == "uniform":
            return rng.randint(span.low, span.high)
        middle = math.log(span.low + (span.high - span.low) / 4)
        return min(max(round(rng.lognormvariate(middle, 0.9)), span.low), span.high)


def arrival_times(kind: str, rate: float, count: int, rng: random.Random) -> list[float]:
    """`count` times in seconds, ascending, at `rate` a second on average."""
    if kind == "together":
        return [0.0] * count
    if kind == "steady":
        return [i / rate for i in range(count)]
    times: list[float] = []
    now = 0.0
    size = BURST_SIZE if kind == "burst" else 1
    while len(times) < count:
        now += rng.expovariate(rate / size)
        times += [now] * min(size, count - len(times))
    return times


def random_ids(count: int, rng: random.Random) -> tuple[int, ...]:
    """Token ids that every vocabulary has, and that are in no way special."""
    return tuple(rng.randrange(LEAST_VOCAB // 4, LEAST_VOCAB) for _ in range(count))


def with_shared_prefix(workload: Sequence[Arrival], length: int, seed: int) -> list[Arrival]:
    """The same requests, each after one common system prompt of `length` tokens."""
    prefix = random_ids(length, random.Random(f"prefix-{seed}"))
    return [replace(a, prompt_ids=prefix + a.prompt_ids) for a in workload]


def agent_turns(conversations: int, turns: int, shape: Shape, seed: int) -> list[list[Arrival]]:
    """Conversations whose every turn repeats all that was said; the pause is between the turns.

    `Arrival.at` is the pause after the previous answer. What the model would have said is made up
    here too, so that every run has the same prompts.
    """
    rng = random.Random(f"agent-{seed}")
    result = []
    for _ in range(conversations):
        history: tuple[int, ...] = ()
        chat = []
        for _ in range(turns):
            history += random_ids(shape.draw(shape.prompt, rng), rng)
            reply = shape.draw(shape.output, rng)
            chat.append(Arrival(rng.expovariate(shape.rate), history, reply))
            history += random_ids(reply, rng)
        result.append(chat)
    return result


def with_flood(
    workload: Sequence[Arrival], count: int, seed: int, *, priority: int = 0
) -> list[Arrival]:
    """The workload, and `count` requests as long as its own of the client "flood", all at time 0.
    Their prompts are their own: nobody's prefix cache gains by the flood.
    """
    rng = random.Random(f"flood-{seed}")
    flood = []
    for like in (workload[i % len(workload)] for i in range(count)):
        ids = random_ids(len(like.prompt_ids), rng)
        flood.append(Arrival(0.0, ids, like.max_tokens, "flood", priority))
    return sorted([*flood, *workload], key=lambda a: a.at)
