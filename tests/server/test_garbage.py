"""Requests leave nothing to the garbage collector: whatever becomes of them, they are freed by
count. A full collection would stop every stream.
"""

from __future__ import annotations

import gc
import logging
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from helpers.fake_service import make_engine
from helpers.live_server import Live, live, wait_for

from tinyserve.server.observe import observer
from tinyserve.server.observe.log import ThroughputLog

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
HI = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
LONG = {"prompt": "x", "max_tokens": 400, "ignore_eos": True}
ROUNDS = 3


@pytest.fixture(scope="module")
def served() -> Iterator[Live]:
    """One seat, and one place in the queue."""
    engine = make_engine(scheduler={"max_num_seqs": 1}, server={"max_queued_requests": 1})
    with live(engine) as running:
        yield running


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """No log lines: whoever keeps one keeps the exception in it, which is then no garbage."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def garbage(served: Live, act: Callable[[Live], object]) -> Counter[str]:
    """Our own objects that only the garbage collector frees after some rounds of `act`."""

    def settle() -> None:
        served.hang_up()
        served.runner.reset()
        served.wait_idle()
        served.runner.plans.clear()
        for _ in range(3):  # what the last connection's end has left to do is done
            assert served.client.get("/health").status_code == 200

    act(served)  # what is made once and kept
    settle()
    gc.collect()
    gc.disable()
    try:
        for _ in range(ROUNDS):
            act(served)
            settle()
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        kinds = Counter(type(thing) for thing in gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    return Counter(
        {kind.__name__: n for kind, n in kinds.items() if kind.__module__.startswith("tinyserve")}
    )


ANSWERED: dict[str, tuple[str, dict[str, Any]]] = {
    "completion": (COMPLETIONS, {"prompt": "x", "max_tokens": 5}),
    "choices": (COMPLETIONS, {"prompt": ["x", "y"], "n": 2, "max_tokens": 5, "logprobs": 2}),
    "best_of": (COMPLETIONS, {"prompt": "x", "best_of": 3, "max_tokens": 5}),
    "echo": (COMPLETIONS, {"prompt": "x", "echo": True, "logprobs": 1, "max_tokens": 0}),
    "stop": (COMPLETIONS, {"prompt": "x", "stop": ["e", "zz"], "max_tokens": 50}),
    "grammar": (COMPLETIONS, {"prompt": "x", "structured_outputs": {"choice": ["a", "b"]}}),
    "long prompt": (COMPLETIONS, {"prompt": "x " * 5000, "truncate_prompt_tokens": 4}),
    "chat": (CHAT, {"messages": HI, "max_tokens": 5}),
    "tools": (CHAT, {"messages": HI, "max_tokens": 30, "tools": [TOOL]}),
    "demanded call": (
        CHAT,
        {"messages": HI, "max_tokens": 30, "tools": [TOOL], "tool_choice": "required"},
    ),
    "responses": ("/v1/responses", {"input": "hi", "max_output_tokens": 5}),
    "messages": ("/v1/messages", {"model": "tinyserve", "messages": HI, "max_tokens": 5}),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", ANSWERED)
def test_answered_requests(served: Live, name: str, stream: bool) -> None:
    path, body = ANSWERED[name]
    if stream and name == "best_of":
        return  # which is refused

    def act(served: Live) -> None:
        response = served.post(path, **body, stream=stream)
        assert response.status_code == 200, response.text

    assert not garbage(served, act)


OTHERS: dict[str, tuple[str, str, dict[str, Any] | None, int]] = {
    "embedding": ("POST", "/v1/embeddings", {"input": ["a", "b"]}, 200),
    "tokenize": ("POST", "/tokenize", {"prompt": "hello"}, 200),
    "metrics": ("GET", "/metrics", None, 200),
    "state": ("GET", "/engine/state", None, 200),
    "nowhere": ("GET", "/nowhere", None, 404),
    "wrong type": ("POST", COMPLETIONS, {"prompt": "x", "max_tokens": "5"}, 400),
    "wrong value": ("POST", COMPLETIONS, {"prompt": "x", "max_tokens": -5}, 400),
    "wrong model": ("POST", COMPLETIONS, {"prompt": "x", "model": "other"}, 404),
    "too long": ("POST", COMPLETIONS, {"prompt": [5] * 600, "stream": True}, 400),
    "bad schema": ("POST", CHAT, {"messages": HI, "structured_outputs": {"regex": "("}}, 400),
    "bad template": ("POST", CHAT, {"messages": [], "max_tokens": 5}, 400),
}


@pytest.mark.parametrize("name", OTHERS)
def test_requests_without_generation_leave_no_cycle(served: Live, name: str) -> None:
    method, path, body, status = OTHERS[name]

    def act(served: Live) -> None:
        response = served.client.request(method, path, json=body)
        assert response.status_code == status, response.text

    assert not garbage(served, act)


@pytest.mark.parametrize("stream", [False, True])
def test_requests_that_fail_in_the_engine(served: Live, stream: bool) -> None:
    def act(served: Live) -> None:
        served.runner.nan_token = 65
        body = {"prompt": [65], "stream": stream}
        assert served.post(COMPLETIONS, **body).status_code == 500
        blocked = {"allowed_token_ids": [70], "logit_bias": {"70": -100}, "bad_words": ["x"]}
        served.post(COMPLETIONS, prompt="x", stream=stream, **blocked)

    assert not garbage(served, act)


def occupied(served: Live, *, stream: bool) -> None:
    """One request in the seat, one in the queue."""
    served.runner.gate.clear()
    served.open({**LONG, "stream": stream})
    wait_for(lambda: served.bridge.num_open == 1 and served.bridge.num_queued == 0)
    served.open({**LONG, "stream": stream})
    wait_for(lambda: served.bridge.num_open == 2)


@pytest.mark.parametrize("stream", [False, True])
def test_refused_requests(served: Live, stream: bool) -> None:
    def act(served: Live) -> None:
        occupied(served, stream=stream)
        assert served.post(COMPLETIONS, prompt="x", stream=stream).status_code == 429

    assert not garbage(served, act)


@pytest.mark.parametrize("stream", [False, True])
def test_requests_whose_clients_leave(served: Live, stream: bool) -> None:
    """While they wait, and while they are computed."""

    def act(served: Live) -> None:
        occupied(served, stream=stream)
        served.hang_up()
        wait_for(lambda: served.bridge.num_open == 0)

    assert not garbage(served, act)


@pytest.mark.parametrize("stream", [False, True])
def test_requests_whose_clients_leave_in_the_middle_of_the_answer(
    served: Live, stream: bool
) -> None:
    def act(served: Live) -> None:
        steps = served.runner.steps
        served.open({**LONG, "stream": stream})
        wait_for(lambda: served.runner.steps > steps + 3)
        served.hang_up()
        wait_for(lambda: served.bridge.num_open == 0)

    assert not garbage(served, act)


@pytest.mark.parametrize("stream", [False, True])
def test_requests_that_take_too_long(stream: bool) -> None:
    def act(served: Live) -> None:
        served.runner.gate.clear()
        connection = served.open({**LONG, "stream": stream})
        assert connection.getresponse().status == 408

    with live(make_engine(server={"request_timeout_s": 0.1})) as served:
        assert not garbage(served, act)


def test_readers_that_are_cut_off() -> None:
    """An answer of which too much waits for its reader, who then takes it."""
    body = {**LONG, "n": 32, "max_tokens": 30, "logprobs": 20, "stream": True}
    engine = make_engine(
        server={"stream_buffer_size": "64KiB"},
        scheduler={"max_num_seqs": 32},
        cache={"num_blocks": 4096},
    )

    def act(served: Live) -> None:
        connection = served.open(body)
        wait_for(lambda: served.bridge.num_open == 1)
        wait_for(lambda: served.bridge.num_open == 0, 30)
        assert b"was not read fast enough" in connection.getresponse().read()

    with live(engine, send_buffer=4096) as served:
        assert not garbage(served, act)


def test_requests_that_are_preempted() -> None:
    engine = make_engine(
        scheduler={"max_num_seqs": 4}, cache={"num_blocks": 12, "num_swap_blocks": 6}
    )

    def act(served: Live) -> None:
        before = served.bridge.stats
        served.complete([[5, i] for i in range(4)], max_tokens=20, ignore_eos=True)
        after = served.bridge.stats
        assert after.num_preemptions_swap + after.num_preemptions_recompute > (
            before.num_preemptions_swap + before.num_preemptions_recompute
        )

    with live(engine) as served:
        assert not garbage(served, act)


def test_a_server_that_has_ended_lets_go_of_its_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though FastAPI, which the document wants, keeps the functions of every route it was given,
    and a server that has run for a second has looked at its engine.
    """
    has_ticked = threading.Event()
    monkeypatch.setattr(observer, "TICK_S", 0.001)
    monkeypatch.setattr(ThroughputLog, "tick", lambda *_: has_ticked.set())
    engine = make_engine()
    core = weakref.ref(engine.core)
    with live(engine) as served:
        served.complete(max_tokens=1)
        assert served.client.get("/openapi.json").status_code == 200
        assert has_ticked.wait(60)
    del engine, served
    gc.collect()
    assert core() is None
