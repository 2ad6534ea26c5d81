"""`GET /metrics`: vLLM's names, bounded labels, right counts."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from helpers.fake_service import make_engine
from helpers.live_server import Live, live, wait_for
from helpers.metrics import Scrape, scrape

from tinyserve.server.observe.http import METHODS

GAUGES = {
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:cache_config_info",
    "tinyserve:engine_up",
    "tinyserve:queue_depth",
    "tinyserve:num_requests_swapped",
    "tinyserve:kv_blocks_total",
    "tinyserve:kv_blocks_free",
    "tinyserve:kv_blocks_cached",
    "tinyserve:swap_blocks_total",
    "tinyserve:swap_blocks_free",
    "tinyserve:build_info",
}
COUNTERS = {
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:request_success_total",
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
    "vllm:num_preemptions_total",
    "vllm:spec_decode_num_drafts_total",
    "vllm:spec_decode_num_draft_tokens_total",
    "vllm:spec_decode_num_accepted_tokens_total",
    "vllm:spec_decode_num_accepted_tokens_per_pos_total",
    "vllm:corrupted_requests_total",
    "http_requests_total",
    "tinyserve:preemptions_total",
    "tinyserve:swapped_blocks_total",
    "tinyserve:cow_copies_total",
    "tinyserve:steps_total",
    "tinyserve:scheduled_tokens_total",
    "tinyserve:recomputed_tokens_total",
    "tinyserve:requests_refused_total",
    "tinyserve:client_disconnects_total",
    "tinyserve:slow_readers_total",
}
HISTOGRAMS = {
    "vllm:time_to_first_token_seconds",
    "vllm:inter_token_latency_seconds",
    "vllm:request_time_per_output_token_seconds",
    "vllm:e2e_request_latency_seconds",
    "vllm:request_queue_time_seconds",
    "vllm:request_prefill_time_seconds",
    "vllm:request_decode_time_seconds",
    "vllm:request_inference_time_seconds",
    "vllm:request_prompt_tokens",
    "vllm:request_generation_tokens",
    "vllm:request_max_num_generation_tokens",
    "vllm:request_params_n",
    "vllm:request_params_max_tokens",
    "vllm:iteration_tokens_total",
    "http_request_duration_seconds",
    "tinyserve:step_seconds",
}


def test_every_promised_metric_is_there_with_its_kind(served: Live) -> None:
    kinds = scrape(served.client).kinds
    for names, kind in ((GAUGES, "gauge"), (COUNTERS, "counter"), (HISTOGRAMS, "histogram")):
        assert {name: kinds.get(name) for name in names} == dict.fromkeys(names, kind)
    if sys.platform == "linux":
        assert kinds["process_resident_memory_bytes"] == "gauge"


def test_engine_metrics_carry_the_model_and_the_engine(served: Live) -> None:
    served.complete(max_tokens=2)
    metrics = scrape(served.client)
    for name in metrics.names():
        if name.startswith("vllm:") and name != "vllm:cache_config_info":
            for labels in metrics.labels(name):
                assert (labels["model_name"], labels["engine"]) == ("synthetic", "0"), name
    (info,) = metrics.labels("vllm:cache_config_info")
    assert (info["num_gpu_blocks"], info["block_size"]) == ("512", "4")


def test_latency_buckets_reach_minutes(served: Live) -> None:
    metrics = scrape(served.client)
    for name in HISTOGRAMS - {"http_request_duration_seconds"}:
        if name.endswith("_seconds"):
            bounds = {float(labels["le"]) for labels in metrics.labels(f"{name}_bucket")}
            assert max(bounds - {float("inf")}) >= 60, name


def new_values(before: Scrape, after: Scrape, name: str, **labels: str) -> float:
    return after(name, **labels) - before(name, **labels)


def test_counts_of_one_request(served: Live) -> None:
    served.runner.says("a reply")
    before = scrape(served.client)
    usage = served.complete("x" * 10, max_tokens=50)["usage"]
    after = scrape(served.client)

    def new(name: str, **labels: str) -> float:
        return new_values(before, after, name, **labels)

    num_output = usage["completion_tokens"] + 1  # the end of text is drawn too
    assert new("vllm:prompt_tokens_total") == usage["prompt_tokens"]
    assert new("vllm:generation_tokens_total") in (num_output, num_output - 1)
    assert new("vllm:request_success_total", finished_reason="stop") == 1
    assert new("vllm:request_success_total") == 1
    assert new("vllm:time_to_first_token_seconds_count") == 1
    generated = new("vllm:generation_tokens_total")
    assert new("vllm:inter_token_latency_seconds_count") == generated - 1
    assert new("vllm:e2e_request_latency_seconds_count") == 1
    assert new("vllm:request_prompt_tokens_sum") == usage["prompt_tokens"]
    assert new("vllm:request_generation_tokens_sum") == generated
    assert new("vllm:request_params_max_tokens_sum") == 50
    assert new("vllm:iteration_tokens_total_count") == new("tinyserve:steps_total")
    assert new("vllm:iteration_tokens_total_sum") == new("tinyserve:scheduled_tokens_total")
    assert new("tinyserve:step_seconds_count") == new("tinyserve:steps_total")


@pytest.mark.parametrize("body", [{}, {"echo": True}, {"echo": True, "logprobs": 1}])
def test_prompts_count_where_nothing_follows_them(served: Live, body: dict[str, Any]) -> None:
    """Whether they had to be computed or not: sums of the usages are those of the counters."""
    before = scrape(served.client)
    usage = served.complete(["x" * 10, "y"], max_tokens=0, **body)["usage"]
    after = scrape(served.client)
    assert new_values(before, after, "vllm:prompt_tokens_total") == usage["prompt_tokens"] > 10
    assert new_values(before, after, "vllm:request_prompt_tokens_sum") == usage["prompt_tokens"]
    assert new_values(before, after, "vllm:generation_tokens_total") == 0


def test_choices_are_counted_one_by_one_and_requests_once(served: Live) -> None:
    before = scrape(served.client)
    served.complete(["a", "b"], n=3, max_tokens=4, ignore_eos=True)
    after = scrape(served.client)
    assert new_values(before, after, "vllm:request_success_total", finished_reason="length") == 6
    assert new_values(before, after, "vllm:request_params_n_count") == 2
    assert new_values(before, after, "vllm:request_params_n_sum") == 6
    assert new_values(before, after, "vllm:request_max_num_generation_tokens_sum") == 8
    assert new_values(before, after, "vllm:generation_tokens_total") == 24


def test_prefix_hits_are_counted_in_tokens(served: Live) -> None:
    prompt = list(range(100, 121))
    before = scrape(served.client)
    for _ in range(2):
        served.complete(prompt, max_tokens=1)
    after = scrape(served.client)
    assert new_values(before, after, "vllm:prefix_cache_queries_total") == 42
    assert new_values(before, after, "vllm:prefix_cache_hits_total") == 20


def test_preemptions_by_kind_and_blocks_moved() -> None:
    engine = make_engine(
        cache={"num_blocks": 24, "num_swap_blocks": 8}, scheduler={"max_model_len": 90}
    )
    with live(engine) as served:
        served.complete(["a" * 20, "b" * 20, "c" * 20], max_tokens=40, ignore_eos=True)
        metrics = scrape(served.client)
        by_kind = [metrics("tinyserve:preemptions_total", kind=k) for k in ("swap", "recompute")]
        assert sum(by_kind) == metrics("vllm:num_preemptions_total") > 0
        assert metrics("tinyserve:swapped_blocks_total", direction="out") > 0
        assert metrics("tinyserve:kv_blocks_total") == 24


def test_a_corrupted_request_is_counted_as_an_error(served: Live) -> None:
    served.runner.nan_token = 70
    before = scrape(served.client)
    assert served.post("/v1/completions", prompt=[65, 70], max_tokens=3).status_code == 500
    after = scrape(served.client)
    assert new_values(before, after, "vllm:corrupted_requests_total") == 1
    assert new_values(before, after, "vllm:request_success_total", finished_reason="error") == 1


def test_routes_are_counted_by_template_and_never_by_path(served: Live) -> None:
    before = scrape(served.client)
    for i in range(5):
        served.client.get(f"/nowhere/{i}")
        served.client.get(f"/v1/models/unknown-{i}")
        served.client.request(f"ODD{i}", "/health")
    served.complete(max_tokens=1)
    metrics = scrape(served.client)
    rows = list(metrics.labels("http_requests_total"))
    assert not [row for row in rows if "unknown" in row["handler"] or "nowhere" in row["handler"]]
    assert {row["method"] for row in rows} <= {*METHODS, "OTHER"}
    assert {row["status"] for row in rows} <= {"1xx", "2xx", "3xx", "4xx", "5xx"}
    model = {"handler": "/v1/models/{name:path}", "method": "GET", "status": "4xx"}
    assert metrics("http_requests_total", **model) >= 5
    assert metrics("http_requests_total", handler="none", status="4xx") >= 5
    name = "http_request_duration_seconds_count"
    assert metrics(name, handler="/v1/completions", method="POST") >= 1
    assert new_values(before, metrics, "tinyserve:requests_refused_total", reason="not_found") == 10


def test_refusals_by_reason() -> None:
    engine = make_engine(scheduler={"max_num_seqs": 1}, server={"max_queued_requests": 1})
    with live(engine) as served:
        assert served.post("/v1/completions", prompt=True).status_code == 400
        served.runner.gate.clear()
        opened = [served.open({"prompt": "x", "max_tokens": 2})]
        wait_for(lambda: served.runner.steps == 1)
        opened.append(served.open({"prompt": "x", "max_tokens": 2}))
        wait_for(lambda: served.bridge.num_queued == 1)
        assert served.post("/v1/completions", prompt="x").status_code == 429
        metrics = scrape(served.client)
        served.runner.gate.set()
        assert [c.getresponse().status for c in opened] == [200, 200]
    assert metrics("tinyserve:requests_refused_total", reason="overloaded") == 1
    assert metrics("tinyserve:requests_refused_total", reason="invalid") == 1
    assert metrics("tinyserve:queue_depth") == 1


def test_a_key_is_asked_for_and_the_refusal_counted() -> None:
    """AUTH-01 for /metrics and its kin."""
    with live(make_engine(server={"api_key": ["secret"]})) as served:
        for path in ("/metrics", "/metrics/", "/engine/state", "/debug/trace"):
            assert served.client.get(path).status_code == 401, path
        served.client.headers["authorization"] = "Bearer secret"
        metrics = scrape(served.client)
        assert metrics("tinyserve:requests_refused_total", reason="unauthorized") == 4
        assert metrics("http_requests_total", handler="none", status="4xx") == 4
        assert "secret" not in metrics.text


def test_an_exception_counts_as_500(served: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> object:
        raise RuntimeError("broken")

    monkeypatch.setattr(served.state.observer, "view", broken)
    served.client.get("/health")
    before = scrape(served.client)
    failed = served.client.get("/engine/state", headers={"connection": "close"})
    assert failed.status_code == 500
    after = scrape(served.client)
    assert after("http_requests_total", handler="/engine/state", status="5xx") >= 1
    assert new_values(before, after, "http_requests_total") == 2  # it, and the first scrape


def test_two_applications_in_one_process_do_not_mix() -> None:
    with live(make_engine()) as one, live(make_engine()) as two:
        one.complete(max_tokens=3, ignore_eos=True)
        assert scrape(one.client)("vllm:generation_tokens_total") == 3
        assert scrape(two.client)("vllm:generation_tokens_total") == 0


def test_the_library_is_no_part_of_the_start_up() -> None:
    code = "import sys, tinyserve.server.app; print('prometheus_client' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
