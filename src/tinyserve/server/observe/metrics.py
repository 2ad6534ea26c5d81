"""`Metrics`: what the engine's records add up to. The event loop's alone; knows no Prometheus.

Requests are counted by choice: each choice of each request ends exactly once, under one reason,
wherever it was when it ended (waiting outside the engine included).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tinyserve.engine.chronicle import Life, TimedStep
from tinyserve.server.observe.histogram import Histogram, Window

REASONS = ("stop", "length", "abort", "error")

# Seconds. A CPU serves some requests in milliseconds and others in minutes.
LATENCY = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.5, 5.0, 7.5),
    *(10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 90.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 3840.0),
)
FIRST_TOKEN = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0, 160.0, 320.0, 640.0, 1280.0, 2560.0),
)
PER_TOKEN = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075),
    *(0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0),
)
STEP = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5),
    *(0.75, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
STEP_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
NUM_CHOICES = (1, 2, 5, 10, 20, 50, 128)


def token_bounds(longest: int) -> tuple[int, ...]:
    """1, 2, 5, 10, 20, 50, ... up to the first that is not below `longest`."""
    bounds: list[int] = []
    scale = 1
    while True:
        for digit in (1, 2, 5):
            bounds.append(digit * scale)
            if digit * scale >= longest:
                return tuple(bounds)
        scale *= 10


class Metrics:
    """Counters and histograms; reads a `Chronicle`."""

    def __init__(self, max_model_len: int) -> None:
        tokens = token_bounds(max_model_len)
        self.requests: Counter[str] = Counter(dict.fromkeys(REASONS, 0))
        self.time_to_first_token = Histogram(FIRST_TOKEN)
        self.inter_token_latency = Histogram(PER_TOKEN)
        self.time_per_output_token = Histogram(PER_TOKEN)
        self.e2e = Histogram(LATENCY)
        self.queue_time = Histogram(LATENCY)
        self.prefill_time = Histogram(LATENCY)
        self.decode_time = Histogram(LATENCY)
        self.inference_time = Histogram(LATENCY)
        self.prompt_tokens = Histogram(tokens)
        self.generation_tokens = Histogram(tokens)
        self.max_generation_tokens = Histogram(tokens)
        self.params_n = Histogram(NUM_CHOICES)
        self.params_max_tokens = Histogram(tokens)
        self.step_seconds = Histogram(STEP)
        self.step_tokens = Histogram(STEP_TOKENS)
        self.recent_first_tokens = Window()
        self.recent_gaps = Window()
        self._open: dict[str, tuple[int, int]] = {}  # request: (choices to end, longest output)

    def add_step(self, step: TimedStep) -> None:
        self.step_seconds.observe(step.seconds)
        self.step_tokens.observe(step.num_tokens)
        for seconds in step.first_tokens:
            self.time_to_first_token.observe(seconds)
            self.recent_first_tokens.observe(step.time, seconds)
        for seconds, num_tokens in step.gaps:
            each = seconds / num_tokens
            self.inter_token_latency.observe(each, num_tokens)
            self.recent_gaps.observe(step.time, each, num_tokens)

    def add_life(self, life: Life) -> None:
        """A choice has ended."""
        assert life.reason is not None
        self.requests[life.reason] += 1
        self.e2e.observe(life.e2e_s)
        self.queue_time.observe(life.queue_s)
        for histogram, seconds in self._phases(life):
            if seconds is not None:
                histogram.observe(seconds)
        self.prompt_tokens.observe(len(life.request.prompt_token_ids))
        self.generation_tokens.observe(life.num_output_tokens)
        self._add_request(life)

    def _phases(self, life: Life) -> Iterator[tuple[Histogram, float | None]]:
        yield self.prefill_time, life.prefill_s
        yield self.decode_time, life.decode_s
        yield self.inference_time, life.inference_s
        yield self.time_per_output_token, life.time_per_output_token_s

    def _add_request(self, life: Life) -> None:
        """What is counted once for all choices of a request, when the last has ended."""
        params, request_id = life.request.params, life.request.request_id
        left, longest = self._open.pop(request_id, (params.n, 0))
        longest = max(longest, life.num_output_tokens)
        if left > 1:
            self._open[request_id] = (left - 1, longest)
            return
        self.max_generation_tokens.observe(longest)
        self.params_n.observe(params.n)
        if params.max_tokens is not None:
            self.params_max_tokens.observe(params.max_tokens)
