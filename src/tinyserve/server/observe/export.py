"""The metrics as Prometheus text. The only file that knows prometheus-client.

Every value is read when it is asked for; nothing is kept here and nothing is global. Values are
collected on the event loop, in about a millisecond, and written on another thread. Names that
begin with `vllm:` are vLLM's and mean what they mean there, so that its dashboards, autoscalers and
routers work; names of our own begin with `tinyserve:`.

Imported at the first scrape: the library is no part of the start-up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from tinyserve.engine.request import EngineStats
from tinyserve.server.observe.histogram import Histogram
from tinyserve.server.observe.http import HTTPMetrics
from tinyserve.server.observe.metrics import Metrics

Values = Mapping[tuple[str, ...], float]
Value = float | Values


@dataclass(frozen=True)
class Source:
    """What is exported. Without `stats` there is no engine yet: the HTTP part alone."""

    http: HTTPMetrics
    metrics: Metrics
    model_name: str = ""
    stats: EngineStats | None = None
    num_queued: int = 0
    is_alive: bool = True
    cache_info: Mapping[str, str] = field(default_factory=dict)
    build_info: Mapping[str, str] = field(default_factory=dict)


def collect(source: Source) -> list[Metric]:
    """The values of this moment."""
    families: list[Metric] = []
    if source.stats is not None:
        make = _Families(source.model_name)
        families += _engine_gauges(make, source, source.stats)
        families += _engine_counters(make, source, source.stats)
        families += _histograms(make, source.metrics)
        families += _information(source)
    return [*families, *_http(source.http)]


def exposition(families: list[Metric]) -> bytes:
    """What was collected, and the process's own numbers, in text format 0.0.4. On any thread."""
    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    registry.register(_Collected(families))
    return generate_latest(registry)


@dataclass(frozen=True, eq=False)
class _Collected:
    families: list[Metric]

    def collect(self) -> list[Metric]:
        return self.families


class _Families:
    """Makes families whose labels begin with the model's name and the engine's number."""

    def __init__(self, model_name: str) -> None:
        self._base = {"model_name": model_name, "engine": "0"}

    def gauge(self, name: str, help: str, value: Value, *labels: str) -> Metric:
        return self._fill(GaugeMetricFamily(name, help, labels=[*self._base, *labels]), value)

    def counter(self, name: str, help: str, value: Value, *labels: str) -> Metric:
        """`name` without its "_total"."""
        return self._fill(CounterMetricFamily(name, help, labels=[*self._base, *labels]), value)

    def histogram(self, name: str, help: str, histogram: Histogram) -> Metric:
        family = HistogramMetricFamily(name, help, labels=list(self._base))
        family.add_metric(list(self._base.values()), _buckets(histogram), histogram.sum)
        return family

    def _fill(self, family: GaugeMetricFamily | CounterMetricFamily, value: Value) -> Metric:
        rows = value if isinstance(value, Mapping) else {(): value}
        for labels, number in rows.items():
            family.add_metric([*self._base.values(), *labels], number)
        return family


def _engine_gauges(make: _Families, source: Source, stats: EngineStats) -> Iterable[Metric]:
    s = stats
    waiting = source.num_queued + s.num_waiting + s.num_swapped
    used = (s.num_total_blocks - s.num_free_blocks - s.num_cached_blocks) / s.num_total_blocks
    rows: tuple[tuple[str, float, str], ...] = (
        ("vllm:num_requests_running", s.num_running, "Requests computed in the steps."),
        ("vllm:num_requests_waiting", waiting, "Requests that wait, preempted ones too."),
        ("vllm:kv_cache_usage_perc", used, "Share of the KV blocks that requests own; 1 is all."),
        ("tinyserve:engine_up", int(source.is_alive), "1 while the engine thread lives."),
        ("tinyserve:queue_depth", source.num_queued, "Requests outside the engine."),
        (
            "tinyserve:num_requests_swapped",
            s.num_swapped,
            "Preempted requests whose KV is in the host arena.",
        ),
        ("tinyserve:kv_blocks_total", s.num_total_blocks, "KV blocks."),
        ("tinyserve:kv_blocks_free", s.num_free_blocks, "KV blocks that hold nothing."),
        (
            "tinyserve:kv_blocks_cached",
            s.num_cached_blocks,
            "KV blocks of no request that a prefix hit may revive.",
        ),
        ("tinyserve:swap_blocks_total", s.num_total_swap_blocks, "Host blocks."),
        ("tinyserve:swap_blocks_free", s.num_free_swap_blocks, "Free host blocks."),
    )
    yield from (make.gauge(name, help, value) for name, value, help in rows)
    name, help = "vllm:num_requests_waiting_by_reason", "Requests that wait, by what they wait for."
    yield make.gauge(name, help, {("capacity",): waiting}, "reason")


def _engine_counters(make: _Families, source: Source, stats: EngineStats) -> Iterable[Metric]:
    s = stats
    ends: Values = {(reason,): count for reason, count in source.metrics.requests.items()}
    at: Values = {(str(i),): n for i, n in enumerate(s.num_accepted_per_position)}
    preempted: Values = {
        ("swap",): s.num_preemptions_swap,
        ("recompute",): s.num_preemptions_recompute,
    }
    swapped: Values = {("out",): s.num_swapped_out_blocks, ("in",): s.num_swapped_in_blocks}
    rows: tuple[tuple[str, Value, str], ...] = (
        ("vllm:prompt_tokens", s.num_prompt_tokens, "Prompt tokens, cached ones too."),
        ("vllm:generation_tokens", s.num_generation_tokens, "Tokens generated."),
        ("vllm:prefix_cache_queries", s.num_prefix_query_tokens, "Prompt tokens looked up."),
        ("vllm:prefix_cache_hits", s.num_prefix_hit_tokens, "Prompt tokens found cached."),
        ("vllm:num_preemptions", sum(preempted.values()), "Preemptions."),
        ("vllm:corrupted_requests", s.num_corrupted, "Requests with NaN in logits."),
        ("vllm:spec_decode_num_drafts", s.num_drafts, "Drafts verified."),
        ("vllm:spec_decode_num_draft_tokens", s.num_draft_tokens, "Draft tokens."),
        ("vllm:spec_decode_num_accepted_tokens", s.num_accepted_tokens, "Draft tokens accepted."),
        ("tinyserve:cow_copies", s.num_cow_copies, "Shared blocks copied on write."),
        ("tinyserve:steps", s.num_steps, "Engine steps."),
        ("tinyserve:scheduled_tokens", s.num_scheduled_tokens, "Rows computed, of drafts too."),
        ("tinyserve:recomputed_tokens", s.num_recomputed_tokens, "Tokens computed again."),
    )
    by_label: tuple[tuple[str, Values, str, str], ...] = (
        ("vllm:request_success", ends, "Choices that ended.", "finished_reason"),
        ("vllm:spec_decode_num_accepted_tokens_per_pos", at, "Draft tokens accepted.", "position"),
        ("tinyserve:preemptions", preempted, "Preemptions, by what became of the KV.", "kind"),
        ("tinyserve:swapped_blocks", swapped, "Blocks moved to the host and back.", "direction"),
    )
    yield from (make.counter(name, help, value) for name, value, help in rows)
    yield from (make.counter(name, help, value, label) for name, value, help, label in by_label)


def _histograms(make: _Families, metrics: Metrics) -> Iterable[Metric]:
    m = metrics
    rows: tuple[tuple[str, Histogram, str], ...] = (
        (
            "vllm:time_to_first_token_seconds",
            m.time_to_first_token,
            "From arrival, before tokenizing, to the first token.",
        ),
        (
            "vllm:inter_token_latency_seconds",
            m.inter_token_latency,
            "Between the tokens of a choice, preemption included.",
        ),
        (
            "vllm:request_time_per_output_token_seconds",
            m.time_per_output_token,
            "Mean time between the tokens of each choice.",
        ),
        ("vllm:e2e_request_latency_seconds", m.e2e, "From arrival to the end."),
        ("vllm:request_queue_time_seconds", m.queue_time, "From the queue to the first step."),
        (
            "vllm:request_prefill_time_seconds",
            m.prefill_time,
            "From the first step to the first token.",
        ),
        ("vllm:request_decode_time_seconds", m.decode_time, "From the first token to the last."),
        (
            "vllm:request_inference_time_seconds",
            m.inference_time,
            "From the first step to the end.",
        ),
        ("vllm:request_prompt_tokens", m.prompt_tokens, "Prompt tokens."),
        ("vllm:request_generation_tokens", m.generation_tokens, "Output tokens."),
        (
            "vllm:request_max_num_generation_tokens",
            m.max_generation_tokens,
            "Tokens of each request's longest choice.",
        ),
        ("vllm:request_params_n", m.params_n, "The n of requests."),
        (
            "vllm:request_params_max_tokens",
            m.params_max_tokens,
            "The max_tokens of requests, where they name none what is left of the context.",
        ),
        ("vllm:iteration_tokens_total", m.step_tokens, "Tokens of each step."),
        ("tinyserve:step_seconds", m.step_seconds, "Time of each step."),
    )
    yield from (make.histogram(name, help, histogram) for name, histogram, help in rows)


def _information(source: Source) -> Iterable[Metric]:
    return (
        _info("vllm:cache_config_info", "The KV-cache's settings.", source.cache_info),
        _info("tinyserve:build_info", "What is running.", source.build_info),
    )


def _info(name: str, help: str, labels: Mapping[str, str]) -> Metric:
    family = GaugeMetricFamily(name, help, labels=list(labels))
    family.add_metric(list(labels.values()), 1)
    return family


def _http(http: HTTPMetrics) -> Iterable[Metric]:
    requests = CounterMetricFamily(
        "http_requests", "HTTP requests.", labels=["handler", "method", "status"]
    )
    for labels, count in http.requests.items():
        requests.add_metric(labels, count)
    seconds = HistogramMetricFamily(
        "http_request_duration_seconds",
        "From an HTTP request's arrival to the end of its answer.",
        labels=["handler", "method"],
    )
    for key, histogram in http.seconds.items():
        seconds.add_metric(key, _buckets(histogram), histogram.sum)
    refused = CounterMetricFamily(
        "tinyserve:requests_refused", "HTTP requests refused, by reason.", labels=["reason"]
    )
    for reason, count in http.refused.items():
        refused.add_metric([reason], count)
    left = CounterMetricFamily(
        "tinyserve:client_disconnects", "Clients that left before the end of their answer."
    )
    left.add_metric([], http.num_disconnects)
    slow = CounterMetricFamily(
        "tinyserve:slow_readers", "Clients that were cut off because they did not read."
    )
    slow.add_metric([], http.count_slow_readers())
    return (requests, seconds, refused, left, slow)


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    return [
        ("+Inf" if bound == float("inf") else repr(float(bound)), count)
        for bound, count in histogram.cumulative()
    ]
