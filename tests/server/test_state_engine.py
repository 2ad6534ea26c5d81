"""`GET /engine/state`: what it shows, and that it never waits long for the engine."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from helpers.fake_service import make_engine
from helpers.live_server import Live, live, wait_for
from helpers.slow_gate import SlowGate

from tinyserve.server.observe.view import FREE, MAX_LISTED, client_label

KEYS = {
    *("model", "version", "fingerprint", "time", "uptime_s", "kernels", "threads", "settings"),
    *("queue", "requests", "num_requests", "blocks", "counters", "latency", "age_s"),
}
LONG = {"max_tokens": 400, "ignore_eos": True}


def state_of(served: Live) -> dict[str, Any]:
    response = served.client.get("/engine/state")
    assert response.status_code == 200, response.text
    state: dict[str, Any] = response.json()
    return state


def assert_consistent(state: dict[str, Any]) -> None:
    """What must hold of every fresh state."""
    blocks, requests = state["blocks"], state["requests"]
    owners, refs = blocks["owners"], blocks["refs"]
    assert len(owners) == len(refs) == blocks["total"]
    assert owners.count(-1) == blocks["free"]
    assert owners.count(-2) == blocks["cached"]
    assert all((owner < 0) == (count == 0) for owner, count in zip(owners, refs, strict=True))
    owned = sum(request["num_blocks"] for request in requests if request["state"] == "running")
    assert sum(refs) == owned
    for request in requests:
        assert request["computed_tokens"] <= request["prompt_tokens"] + request["output_tokens"]
        assert request["state"] in ("queued", "waiting", "running", "swapped")
    assert len(requests) == min(state["num_requests"], MAX_LISTED)


def test_an_idle_engine_answers_at_once(served: Live) -> None:
    state = state_of(served)
    assert state.keys() == KEYS
    assert state["requests"] == []
    assert state["queue"] == {"depth": 0, "waiting": 0, "running": 0, "swapped": 0}
    assert set(state["blocks"]["owners"]) == {FREE}
    assert state["age_s"] < 0.5
    assert abs(state["time"] - time.time()) < 60
    assert state["settings"]["max_num_seqs"] == 16
    assert_consistent(state)


def test_counters_and_latency_of_the_last_minute(served: Live) -> None:
    before = state_of(served)
    usage = served.complete("hello", max_tokens=8, ignore_eos=True)["usage"]
    state = state_of(served)
    counters, old = state["counters"], before["counters"]
    assert counters["prompt_tokens"] - old["prompt_tokens"] == usage["prompt_tokens"]
    assert counters["generation_tokens"] - old["generation_tokens"] == 8
    assert counters["requests"]["length"] - old["requests"]["length"] == 1
    for name, count in (("ttft_s", 1), ("inter_token_s", 7)):
        latency = state["latency"][name]
        assert latency["count"] - before["latency"][name]["count"] == count
        assert 0 < latency["p50"] <= latency["p99"]


def test_percentiles_are_null_where_there_is_nothing() -> None:
    with live(make_engine()) as served:
        latency = state_of(served)["latency"]
        assert latency["ttft_s"] == {"p50": None, "p99": None, "count": 0}


def test_requests_in_every_state() -> None:
    engine = make_engine(
        scheduler={"max_num_seqs": 3, "max_model_len": 200},
        cache={"num_blocks": 40, "num_swap_blocks": 40},
    )
    with live(engine) as served:
        served.runner.gate = SlowGate()
        for index in range(6):
            served.open(
                {"prompt": [60 + index] * 30, "priority": index, **LONG, "max_tokens": 100},
                **{"x-client-id": f"client-{index}"},
            )
        seen: set[str] = set()

        def all_seen() -> bool:
            state = state_of(served)
            if state["age_s"] < 0.05:
                assert_consistent(state)
            seen.update(request["state"] for request in state["requests"])
            return {"queued", "running", "swapped"} <= seen or not served.engine.core.has_work()

        wait_for(all_seen)
        assert {"queued", "running", "swapped"} <= seen


def test_shared_blocks_belong_to_the_oldest() -> None:
    with live(make_engine()) as served:
        served.runner.gate = SlowGate()
        served.open({"prompt": [70] * 41, "n": 3, **LONG})
        states: list[dict[str, Any]] = []

        def all_run() -> bool:
            states.append(state_of(served))
            rows = states[-1]["requests"]  # the last block is shared until each has written
            return len(rows) == 3 and all(row["output_tokens"] > 2 for row in rows)

        wait_for(all_run)
        state = states[-1]
        assert [row["choice"] for row in state["requests"]] == [0, 1, 2]
        assert {row["state"] for row in state["requests"]} == {"running"}
        assert_consistent(state)
        owners, refs = state["blocks"]["owners"], state["blocks"]["refs"]
        shared = [owner for owner, count in zip(owners, refs, strict=True) if count == 3]
        assert len(shared) == 10  # ten full blocks of the prompt
        assert set(shared) == {0}
        served.hang_up()


def test_during_a_long_step_the_last_snapshot_must_do(served: Live) -> None:
    state_of(served)
    served.runner.gate.clear()
    connection = served.open({"prompt": "x", "max_tokens": 2})
    wait_for(lambda: served.runner.steps > 0 and served.bridge.num_open == 1)
    state = state_of(served)  # answers although the engine cannot
    assert not served.runner.gate.is_set()
    assert state["age_s"] > 0.3
    assert state["queue"]["waiting"] == 1  # numbers are fresh all the same
    with ThreadPoolExecutor(8) as pool:  # those who ask meanwhile share one question
        states = list(pool.map(lambda _: state_of(served), range(8)))
    assert all(s["age_s"] > 0.3 for s in states)
    assert len(served.bridge._questions) == 1
    served.runner.gate.set()
    assert connection.getresponse().status == 200
    assert state_of(served)["age_s"] < 0.5


def test_more_requests_than_are_listed() -> None:
    engine = make_engine(scheduler={"max_num_seqs": 1}, server={"max_queued_requests": 2})
    with live(engine) as served:
        served.runner.gate.clear()
        served.open({"prompt": "x", **LONG})
        wait_for(lambda: served.runner.steps == 1)
        served.open({"prompt": ["y"] * 250, **LONG})
        wait_for(lambda: served.bridge.num_queued == 250)
        state = state_of(served)
        assert state["queue"]["depth"] == 250
        assert state["num_requests"] >= 250
        assert len(state["requests"]) == MAX_LISTED
        served.hang_up()
        served.runner.gate.set()


@pytest.mark.parametrize("via", ["bearer", "header", "user"])
def test_no_key_and_no_prompt_shows(via: str) -> None:
    secret, prompt = "sk-very-secret-key", "the prompt says nothing"
    with live(make_engine(server={"api_key": [secret]}, scheduler={"max_num_seqs": 1})) as served:
        served.client.headers["authorization"] = f"Bearer {secret}"
        served.runner.gate.clear()
        headers = {"authorization": f"Bearer {secret}"}
        if via == "header":
            headers["x-client-id"] = "me"
        body = {"prompt": prompt, **LONG, **({"user": "me"} if via == "user" else {})}
        for _ in range(2):
            served.open(body, **headers)
        wait_for(lambda: served.bridge.num_open == 2)
        text = served.client.get("/engine/state").text
        served.hang_up()
        served.runner.gate.set()
    assert '"client":"' in text.replace(" ", "")
    assert secret not in text
    assert secret[:12] not in text
    assert prompt not in text


def test_client_labels_are_short_and_stable() -> None:
    assert client_label("key:0123456789abcdef") == "key:01234567"
    assert client_label("address:127.0.0.1") == "address:127.0.0.1"
    assert client_label("address:") == "address"
    assert len(client_label("user:" + "x" * 500)) == 32
    assert client_label("id:a\nb\x00") == "id:a?b?"
