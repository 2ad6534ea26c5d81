"""Gauges and counts follow what happens, whoever leaves, and nobody waits for the engine."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import Future

import httpx
import pytest
from helpers.fake_service import make_engine
from helpers.live_server import Live, live, wait_for
from helpers.metrics import parse, scrape
from helpers.slow_gate import SlowGate

from tinyserve.config import ServerConfig
from tinyserve.engine.build import Engine
from tinyserve.server.app import create_app

NEVER_ENDING = {"prompt": "x", "max_tokens": 500, "ignore_eos": True}


def idle_gauges(served: Live) -> tuple[float, float, float]:
    metrics = scrape(served.client)
    return (
        metrics("vllm:num_requests_running"),
        metrics("vllm:num_requests_waiting"),
        metrics("vllm:kv_cache_usage_perc"),
    )


def test_met_01_gauges_return_to_zero_when_twenty_streams_are_killed_at_once() -> None:
    """MET-01: without a further request, running, waiting and KV use are zero, aborts counted."""
    with live(make_engine()) as served:
        served.runner.gate.clear()
        for index in range(20):
            served.open({**NEVER_ENDING, "prompt": [60 + index] * 9, "stream": True})
        wait_for(lambda: served.bridge.num_open == 20)
        held, served.runner.gate = served.runner.gate, SlowGate()
        held.set()
        wait_for(lambda: idle_gauges(served)[0] == 16)  # the seats
        _, waiting, usage = idle_gauges(served)
        assert waiting == 4
        assert usage > 0
        served.hang_up()
        wait_for(lambda: idle_gauges(served) == (0, 0, 0))
        wait_for(lambda: aborted(served) == 20)
        assert scrape(served.client)("vllm:request_success_total") == 20
        wait_for(lambda: scrape(served.client)("tinyserve:client_disconnects_total") == 20)


def aborted(served: Live) -> float:
    return scrape(served.client)("vllm:request_success_total", finished_reason="abort")


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_is_counted_once_in_every_state(stream: bool) -> None:
    with live(make_engine(scheduler={"max_num_seqs": 1})) as served:
        served.runner.gate.clear()
        served.open({**NEVER_ENDING, "prompt": ["a", "b"], "n": 2, "stream": stream})
        wait_for(lambda: served.runner.steps == 1)
        served.open({**NEVER_ENDING, "stream": stream})  # waits outside the engine
        wait_for(lambda: served.bridge.num_open == 3)
        served.hang_up()
        wait_for(lambda: served.bridge.num_open == 0)
        served.runner.gate.set()
        served.wait_idle()
        wait_for(lambda: aborted(served) == 5)
        served.complete(max_tokens=1, ignore_eos=True)
        metrics = scrape(served.client)
        assert metrics("vllm:request_success_total", finished_reason="abort") == 5
        assert metrics("vllm:request_success_total", finished_reason="length") == 1
        assert metrics("vllm:e2e_request_latency_seconds_count") == 6
        assert metrics("tinyserve:client_disconnects_total") == 2


def test_time_outs_count_as_aborts_and_as_refusals() -> None:
    with live(make_engine(server={"request_timeout_s": 0.1})) as served:
        served.runner.gate.clear()
        connection = served.open(NEVER_ENDING)
        assert connection.getresponse().status == 408
        served.runner.gate.set()
        wait_for(lambda: aborted(served) == 1)
        assert scrape(served.client)("tinyserve:requests_refused_total", reason="timeout") == 1
        assert scrape(served.client)("tinyserve:client_disconnects_total") == 0


def test_gauges_of_a_dead_engine_are_zero_and_its_requests_ended_in_error() -> None:
    with live(make_engine(scheduler={"max_num_seqs": 2}), check_idle=False) as served:
        served.runner.gate.clear()
        opened = [served.open(NEVER_ENDING) for _ in range(4)]
        wait_for(lambda: served.bridge.num_open == 4)
        served.runner.error = RuntimeError("broken")
        served.runner.gate.set()
        assert [c.getresponse().status for c in opened] == [503] * 4
        metrics = scrape(served.client)
        assert metrics("tinyserve:engine_up") == 0
        assert metrics("vllm:num_requests_running") == 0
        assert metrics("vllm:num_requests_waiting") == 0
        assert metrics("vllm:kv_cache_usage_perc") == 0
        assert metrics("vllm:request_success_total", finished_reason="error") == 4
        state = served.client.get("/engine/state").json()
        assert state["requests"] == []
        assert state["queue"]["running"] == 0
        assert not [owner for owner in state["blocks"]["owners"] if owner >= 0]


def test_met_04_both_paths_answer_at_once_while_a_step_runs(served: Live) -> None:
    """MET-04: no redirect, and a scrape never waits for the engine."""
    served.runner.gate.clear()
    connection = served.open({"prompt": "x" * 40, "max_tokens": 2})
    wait_for(lambda: served.runner.steps > 0 and served.bridge.num_open == 1)
    for path in ("/metrics", "/metrics/"):
        response = served.client.get(path, follow_redirects=False)
        assert response.status_code == 200
        assert response.history == []
        assert parse(response.text)("vllm:num_requests_waiting") == 1  # its first step runs
    assert not served.runner.gate.is_set(), "the engine is still in its step"
    served.runner.gate.set()
    assert connection.getresponse().status == 200


def test_met_05_first_token_is_timed_from_arrival() -> None:
    """MET-05: a request behind another waits, and that wait is in its time to first token."""
    with live(make_engine(scheduler={"max_num_seqs": 1})) as served:
        served.runner.gate.clear()
        began = time.monotonic()
        first = served.open({"prompt": "x", "max_tokens": 2, "ignore_eos": True})
        wait_for(lambda: served.runner.steps == 1)
        second = served.open({"prompt": "y", "max_tokens": 1, "ignore_eos": True})
        wait_for(lambda: served.bridge.num_queued == 1)
        held = 0.3
        time.sleep(held)
        served.runner.gate.set()
        assert first.getresponse().status == 200
        assert second.getresponse().status == 200
        took = time.monotonic() - began
        metrics = scrape(served.client)
        total = metrics("vllm:time_to_first_token_seconds_sum")
        assert 2 * held <= total <= 2 * took  # both waited; neither longer than its client
        queue = metrics("vllm:request_queue_time_seconds_sum")
        assert held <= queue <= took + held
        e2e = metrics("vllm:e2e_request_latency_seconds_sum")
        assert total <= e2e


def test_tokenizing_counts_as_waiting_for_the_first_token(
    served: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    intake = type(served.engine.intake)
    encode = intake.encode

    def slow(*args: object, **kwargs: object) -> list[int]:
        time.sleep(0.2)
        return encode(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(intake, "encode", slow)
    before = scrape(served.client)("vllm:time_to_first_token_seconds_sum")
    served.complete(max_tokens=1)
    metrics = scrape(served.client)
    assert metrics("vllm:time_to_first_token_seconds_sum") - before >= 0.2


def test_records_are_gathered_without_anybody_looking(served: Live) -> None:
    served.complete(max_tokens=3)
    core = served.state.observer.core
    assert core is not None
    wait_for(lambda: not core.records)
    with live(make_engine()) as other:  # an abort brings no output: the clock must do
        other.open({**NEVER_ENDING, "prompt": "y"})
        wait_for(lambda: other.bridge.num_open == 1)
        other.hang_up()
        metrics = other.state.observer.metrics
        wait_for(lambda: metrics.requests["abort"] == 1)


def test_metrics_while_the_model_loads() -> None:
    loading: Future[Engine] = Future()
    app = create_app(loading=loading, config=ServerConfig())

    async def scenario() -> None:
        transport = httpx.ASGITransport(app=app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://test") as client,
        ):
            response = await client.get("/metrics")
            assert response.status_code == 200
            assert "vllm:num_requests_running" not in response.text
            assert (await client.get("/engine/state")).status_code == 503
            loading.set_result(make_engine())
            while (await client.get("/health")).status_code != 200:
                await asyncio.sleep(0.001)
            response = await client.get("/metrics")
            assert parse(response.text)("vllm:num_requests_running") == 0
            assert parse(response.text)("http_requests_total", handler="/engine/state") == 1

    asyncio.run(scenario())
