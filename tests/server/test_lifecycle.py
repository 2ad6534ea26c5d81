"""The life of requests: leaving, waiting, timing out, the queue's order, the engine's end."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from helpers.fake_service import make_engine
from helpers.live_server import Live, live, wait_for

from tinyserve.config import ServerConfig
from tinyserve.engine.build import Engine
from tinyserve.errors import ModelLoadError
from tinyserve.server import run
from tinyserve.server.app import create_app

PATH = "/v1/completions"


def open_request(served: Live, **body: Any) -> http.client.HTTPConnection:
    """A request whose connection the test can drop."""
    return served.open({"prompt": "x", "ignore_eos": True, "temperature": 0, **body})


def running(served: Live) -> int:
    return served.bridge.stats.num_running


@pytest.mark.parametrize("stream", [True, False])
def test_con_01_con_02_leaving_frees_at_once(served: Live, stream: bool) -> None:
    """CON-01, CON-02."""
    served.runner.gate.clear()
    connection = open_request(served, max_tokens=500, stream=stream)
    wait_for(lambda: served.runner.steps > 0 and served.bridge.num_open == 1)
    before = served.runner.steps
    connection.close()
    wait_for(lambda: served.bridge.num_open == 0)
    served.runner.gate.set()
    served.wait_idle()
    wait_for(lambda: running(served) == 0)
    assert served.runner.steps <= before + 1


def test_con_01_leaving_a_stream_that_is_being_read(served: Live) -> None:
    """CON-01."""
    body = {"prompt": "x", "max_tokens": 500, "ignore_eos": True, "stream": True}
    with served.client.stream("POST", PATH, json=body) as response:
        lines = response.iter_lines()
        for _ in range(3):
            next(lines)
    served.wait_idle()


def test_con_03_a_queued_request_whose_client_left_never_runs() -> None:
    """CON-03."""
    engine = make_engine(scheduler={"max_num_seqs": 1})
    with live(engine) as served:
        served.runner.gate.clear()
        first = open_request(served, prompt=[65], max_tokens=3)
        wait_for(lambda: served.runner.steps == 1)
        waiting = [open_request(served, prompt=[66], max_tokens=400) for _ in range(5)]
        wait_for(lambda: served.bridge.num_queued == 5)
        for connection in waiting:
            connection.close()
        wait_for(lambda: served.bridge.num_queued == 0)
        last = open_request(served, prompt=[67], max_tokens=1)
        wait_for(lambda: served.bridge.num_open == 2)
        served.runner.gate.set()
        for connection in (first, last):
            assert connection.getresponse().status == 200
        served.wait_idle()
        prompts = {chunk.token_ids[0] for plan in served.runner.plans for chunk in plan.chunks}
        assert 66 not in prompts
        assert {65, 67} <= prompts


def test_con_04_leaving_in_the_middle_of_a_prompt() -> None:
    """CON-04."""
    engine = make_engine(scheduler={"max_num_batched_tokens": 16})
    with live(engine) as served:
        served.runner.gate.clear()
        connection = open_request(served, prompt=[65] * 400, max_tokens=1)
        wait_for(lambda: served.runner.steps == 1)
        connection.close()
        wait_for(lambda: served.bridge.num_open == 0)
        served.runner.gate.set()
        served.wait_idle()
        assert served.runner.steps <= 2  # of 25 chunks


def test_leaving_with_several_prompts_and_choices(served: Live) -> None:
    served.runner.gate.clear()
    connection = open_request(served, prompt=["a", "b", "c"], n=3, max_tokens=400, stream=True)
    wait_for(lambda: served.bridge.num_open == 3)
    connection.close()
    wait_for(lambda: served.bridge.num_open == 0)
    served.runner.gate.set()
    served.wait_idle()


def test_full_queue_is_429_with_retry_after() -> None:
    engine = make_engine(scheduler={"max_num_seqs": 1}, server={"max_queued_requests": 2})
    with live(engine) as served:
        served.runner.gate.clear()
        connections = [open_request(served, max_tokens=2)]
        wait_for(lambda: served.runner.steps == 1)
        for count in (1, 2):
            connections.append(open_request(served, prompt=["a", "b"], max_tokens=2))
            wait_for(lambda count=count: served.bridge.num_queued == 2 * count)
        for stream in (False, True):
            response = served.post(PATH, prompt="x", stream=stream)
            assert response.status_code == 429
            assert response.json()["error"]["code"] == "queue_full"
            assert int(response.headers["retry-after"]) >= 1
        assert served.client.get("/health").json()["queue_depth"] == 4
        served.runner.gate.set()
        assert all(c.getresponse().status == 200 for c in connections)
        served.complete(max_tokens=1)


def order_of_prompts(served: Live, opened: list[http.client.HTTPConnection]) -> list[int]:
    served.runner.gate.set()
    for connection in opened:
        response = connection.getresponse()
        assert response.status == 200, response.read()
    firsts = [p.chunks[0].token_ids[0] for p in served.runner.plans if p.chunks[0].start == 0]
    return [token for token in firsts if token != 65]


def open_as(served: Live, client: str, token: int, **body: Any) -> http.client.HTTPConnection:
    before = served.bridge.num_open
    fields = {"prompt": [token], "max_tokens": 1, **body}
    connection = served.open(fields, **{"x-client-id": client})
    wait_for(lambda: served.bridge.num_open == before + 1)
    return connection


def test_a_greedy_client_delays_another_by_one_request_at_most() -> None:
    engine = make_engine(scheduler={"max_num_seqs": 1})
    with live(engine) as served:
        served.runner.gate.clear()
        opened = [open_as(served, "greedy", 65)]
        wait_for(lambda: served.runner.steps == 1)
        opened += [open_as(served, "greedy", 100) for _ in range(10)]
        opened.append(open_as(served, "modest", 200))
        order = order_of_prompts(served, opened)
        assert order.index(200) <= 1
        assert order.count(100) == 10


def test_priority_goes_first_in_the_queue() -> None:
    engine = make_engine(scheduler={"max_num_seqs": 1})
    with live(engine) as served:
        served.runner.gate.clear()
        opened = [open_as(served, "a", 65, priority=-5)]
        wait_for(lambda: served.runner.steps == 1)
        opened += [open_as(served, "a", 100 + p, priority=p) for p in (3, 1, 2)]
        assert order_of_prompts(served, opened) == [101, 102, 103]


def test_con_11_an_urgent_request_reaches_a_busy_engine() -> None:
    """CON-11."""
    engine = make_engine(scheduler={"max_num_seqs": 1, "policy": "priority"})
    with live(engine) as served:
        served.runner.gate.clear()
        long = open_as(served, "a", 65, priority=10, max_tokens=200, ignore_eos=True)
        waiting = [open_as(served, "a", 70, priority=10) for _ in range(3)]
        urgent = open_as(served, "b", 99, priority=0)
        served.runner.gate.set()
        assert urgent.getresponse().status == 200
        for connection in (long, *waiting):
            assert connection.getresponse().status == 200
        plans = [p for p in served.runner.plans if p.chunks]
        urgent_step = next(i for i, p in enumerate(plans) if p.chunks[0].token_ids[0] == 99)
        last_long = max(i for i, p in enumerate(plans) if p.chunks[0].start > 100)
        assert urgent_step < last_long


@pytest.mark.parametrize("stream", [True, False])
def test_time_out_while_running(stream: bool) -> None:
    engine = make_engine(server={"request_timeout_s": 0.15})
    with live(engine) as served:
        served.runner.gate.clear()
        connection = open_request(served, max_tokens=400, stream=stream)
        response = connection.getresponse()
        assert response.status == 408
        assert json.loads(response.read())["error"]["code"] == "request_timeout"
        served.runner.gate.set()
        served.wait_idle()
        served.complete(max_tokens=1)


def test_time_out_while_queued() -> None:
    engine = make_engine(scheduler={"max_num_seqs": 1}, server={"request_timeout_s": 0.2})
    with live(engine) as served:
        served.runner.gate.clear()
        opened = [open_request(served, max_tokens=4) for _ in range(3)]
        assert [c.getresponse().status for c in opened] == [408] * 3
        served.runner.gate.set()


def test_con_15_a_dead_engine_fails_every_request_and_health() -> None:
    """CON-15."""
    with live(make_engine(), check_idle=False) as served:
        served.runner.gate.clear()
        opened = [open_request(served, max_tokens=50, stream=i % 2 == 0) for i in range(4)]
        wait_for(lambda: served.bridge.num_open == 4)
        served.runner.error = RuntimeError("broken")
        served.runner.gate.set()
        assert [c.getresponse().status for c in opened] == [503] * 4
        assert served.client.get("/health").status_code == 503
        assert served.bridge.num_open == 0


def test_health_while_idle_and_busy(served: Live) -> None:
    idle = served.client.get("/health").json()
    assert idle == {"status": "ok", "queue_depth": 0, "waiting": 0, "running": 0, "swapped": 0}
    served.runner.gate.clear()
    connection = open_request(served, max_tokens=3)
    wait_for(lambda: served.runner.steps > 0 and served.bridge.num_open == 1)
    assert served.client.get("/health").status_code == 200  # while the step is held
    served.runner.gate.set()
    assert connection.getresponse().status == 200


def test_health_is_503_until_the_model_is_there() -> None:
    loading: Future[Engine] = Future()
    ready: list[Engine] = []
    app = create_app(loading=loading, config=ServerConfig())
    app.state.tinyserve.on_ready = ready.append
    engine = make_engine()

    async def scenario() -> None:
        transport = httpx.ASGITransport(app=app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://test") as client,
        ):
            health = await client.get("/health")
            assert (health.status_code, health.json()["status"]) == (503, "loading")
            early = await client.post(PATH, json={"prompt": "x"})
            assert early.status_code == 503
            loading.set_result(engine)
            while not ready:
                await asyncio.sleep(0.001)
            assert (await client.get("/health")).status_code == 200
            assert (await client.post(PATH, json={"prompt": "x"})).status_code == 200

    asyncio.run(scenario())
    assert ready == [engine]


def test_health_tells_of_a_model_that_failed_to_load() -> None:
    loading: Future[Engine] = Future()
    loading.set_exception(ModelLoadError("no such folder"))
    app = create_app(loading=loading, config=ServerConfig())

    async def scenario() -> None:
        transport = httpx.ASGITransport(app=app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://test") as client,
        ):
            while (health := await client.get("/health")).json()["status"] == "loading":
                await asyncio.sleep(0.001)
            assert health.status_code == 503
            assert health.json()["error"] == "no such folder"

    asyncio.run(scenario())


def test_stopping_lets_running_requests_finish() -> None:
    with live(make_engine(), check_idle=False) as served:
        served.runner.says("farewell")
        served.runner.gate.clear()
        connection = open_request(served, max_tokens=50, ignore_eos=False)
        wait_for(lambda: served.bridge.num_open == 1)
        served.server.should_exit = True
        wait_for(lambda: served.state.is_draining)
        wait_for(lambda: not takes_connections(served))
        served.runner.gate.set()
        response = connection.getresponse()
        assert json.loads(response.read())["choices"][0]["text"] == "farewell"


def test_who_has_come_before_the_end_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system resets a connection that is closed with a request unread, or not accepted yet."""
    monkeypatch.setattr(run, "TAKE_IN_S", 600)
    with live(make_engine(), check_idle=False) as served:
        is_held, may_go_on = threading.Event(), threading.Event()

        def hold() -> None:
            is_held.set()
            may_go_on.wait()

        loop = served.bridge._loop
        assert loop is not None
        loop.call_soon_threadsafe(hold)
        is_held.wait()
        connections = [served.open({"prompt": "x"}) for _ in range(100)]
        served.server.should_exit = True
        time.sleep(0.2)  # the server's next look at it is due
        may_go_on.set()
        statuses = {connection.getresponse().status for connection in connections}
        assert statuses <= {200, 503}, "some may have come in just before"
        wait_for(lambda: not takes_connections(served))


def takes_connections(served: Live) -> bool:
    try:
        httpx.get(f"{served.base_url}/health")
    except httpx.ConnectError:
        return False
    return True


def test_stopping_ends_what_takes_too_long_with_an_error() -> None:
    engine = make_engine(server={"shutdown_timeout_s": 0.1})
    with live(engine, check_idle=False) as served:
        served.runner.gate.clear()
        connection = open_request(served, max_tokens=50, stream=True)
        wait_for(lambda: served.bridge.num_open == 1)
        served.server.should_exit = True
        response = connection.getresponse()
        assert response.status == 503
        assert "shutting down" in json.loads(response.read())["error"]["message"]


def test_many_clients_of_which_a_third_leave(served: Live) -> None:
    def ask(i: int) -> int | None:
        connection = open_request(served, prompt=[60 + i], max_tokens=20 + i, stream=i % 2 == 0)
        if i % 3 == 0:
            time.sleep(0.001 * (i % 7))
            connection.close()
            return None
        response = connection.getresponse()
        response.read()
        return response.status

    with ThreadPoolExecutor(16) as pool:
        results = list(pool.map(ask, range(60)))
    assert all(status in (None, 200) for status in results)
    served.wait_idle()


def test_con_19_an_idle_engine_sleeps(served: Live) -> None:
    """CON-19."""
    served.complete(max_tokens=3)
    engine_thread = next(t for t in threading.enumerate() if t.name == "tinyserve-engine")
    assert engine_thread.is_alive()
    time.sleep(0.05)
    before = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - before < 0.1
