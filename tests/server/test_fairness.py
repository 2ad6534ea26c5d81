"""Fairness through the whole server, on order, never on time: who is computed first."""

from __future__ import annotations

import contextlib
import http.client
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from helpers.fake_engine import FakeEngine
from helpers.fake_service import make_engine
from helpers.live_server import Live, live, wait_for
from hypothesis import given
from hypothesis import strategies as st

from tinyserve.engine.request import EngineRequest
from tinyserve.engine.sampling import SamplingParams
from tinyserve.server.admission import Admission, Occupancy
from tinyserve.server.pace import Pace

BUSY, GREEDY, MODEST = 65, 100, 200  # the only prompt token of each kind of request


@contextlib.contextmanager
def held(**sections: dict[str, Any]) -> Iterator[Live]:
    with live(make_engine(**sections)) as served:
        served.runner.gate.clear()
        yield served


def ask(served: Live, client: str, token: int, **body: Any) -> http.client.HTTPConnection:
    """A request that has arrived when this returns."""
    before = served.bridge.num_open
    fields = {"prompt": [token], "max_tokens": 1, "temperature": 0, **body}
    connection = served.open(fields, **{"x-client-id": client})
    wait_for(lambda: served.bridge.num_open == before + 1)
    return connection


def order(served: Live, opened: list[http.client.HTTPConnection]) -> list[int]:
    """The first tokens of prompts in the order in which they were computed."""
    served.runner.gate.set()
    for connection in opened:
        response = connection.getresponse()
        assert response.status == 200, response.read()
        response.read()
    begun = [c.token_ids[0] for p in served.runner.plans for c in p.chunks if c.start == 0]
    return [token for token in begun if token != BUSY]


@pytest.mark.parametrize("policy", ["continuous", "priority", "fair", "static"])
@pytest.mark.parametrize("seats", [1, 4])
def test_a_hundred_requests_delay_another_client_by_one_at_most(policy: str, seats: int) -> None:
    with held(scheduler={"max_num_seqs": seats, "policy": policy}) as served:
        opened = [ask(served, "greedy", BUSY) for _ in range(seats)]
        wait_for(lambda: served.runner.steps == 1)
        opened += [ask(served, "greedy", GREEDY) for _ in range(100)]
        opened.append(ask(served, "modest", MODEST))
        computed = order(served, opened)
        assert len(computed) == 101
        # Those of one step are computed together, in the order of their arrival.
        assert computed.index(MODEST) < max(2, seats)


def test_prompt_lists_take_turns_entry_by_entry() -> None:
    """A list of prompts is as many turns as it has prompts, not one."""
    with held(scheduler={"max_num_seqs": 1}) as served:
        opened = [ask(served, "greedy", BUSY)]
        wait_for(lambda: served.runner.steps == 1)
        opened.append(served.open({"prompt": [[GREEDY]] * 40}, **{"x-client-id": "greedy"}))
        wait_for(lambda: served.bridge.num_queued == 40)
        opened.append(ask(served, "modest", MODEST))
        assert order(served, opened).index(MODEST) <= 1


def test_clients_are_keys_before_ids_before_users() -> None:
    """Another X-Client-ID or `user` buys no second turn when there is a key."""
    with held(scheduler={"max_num_seqs": 1}, server={"api_key": ["a", "b"]}) as served:

        def with_key(key: str, client: str, token: int) -> http.client.HTTPConnection:
            before = served.bridge.num_open
            headers = {"authorization": f"Bearer {key}", "x-client-id": client}
            connection = served.open({"prompt": [token], "max_tokens": 1}, **headers)
            wait_for(lambda: served.bridge.num_open == before + 1)
            return connection

        opened = [with_key("a", "x", BUSY)]
        wait_for(lambda: served.runner.steps == 1)
        opened += [with_key("a", f"c{i}", GREEDY) for i in range(20)]
        opened.append(with_key("b", "x", MODEST))
        assert order(served, opened).index(MODEST) <= 1


def test_the_fair_policy_prefers_who_was_served_least() -> None:
    """Round-robin would alternate; a modest client's short requests all go first."""
    with held(scheduler={"max_num_seqs": 1, "policy": "fair", "max_model_len": 256}) as served:
        opened = [ask(served, "greedy", BUSY, max_tokens=100, ignore_eos=True)]
        wait_for(lambda: served.runner.steps == 1)
        opened += [ask(served, "modest", MODEST + i) for i in range(6)]
        opened += [ask(served, "greedy", GREEDY) for _ in range(6)]
        computed = order(served, opened)
        modest = [i for i, token in enumerate(computed) if token >= MODEST]
        # Greedy's first request was charged a hundred tokens while the others waited.
        assert modest == [0, 1, 2, 3, 4, 5]


def test_the_fair_policy_shares_the_seats_of_one_step() -> None:
    engine = FakeEngine(max_num_seqs=4, policy="fair")
    for client in "ab":
        for i in range(4):
            engine.add([1, 2, i], client=client, request_id=f"{client}{i}", max_tokens=1)
    engine.step()
    assert sorted(engine.planned_ids()) == ["a0", "a1", "b0", "b1"]


# -- the parts ------------------------------------------------------------------------------------


def engine_request(request_id: str, client: str, n: int = 1, priority: int = 0) -> EngineRequest:
    params = SamplingParams(n=n)
    return EngineRequest(
        request_id=request_id,
        prompt_token_ids=[1],
        params=params,
        client=client,
        priority=priority,
    )


@given(st.lists(st.tuples(st.sampled_from("asfd"), st.integers(0, 5)), max_size=60))
def test_occupancy_counts_what_is_inside(operations: list[tuple[str, int]]) -> None:
    inside = Occupancy()
    truth: dict[str, tuple[EngineRequest, int, bool]] = {}  # request, open choices, has started
    for kind, number in operations:
        name = f"r{number}"
        if kind == "a" and name not in truth:
            request = engine_request(name, f"c{number % 2}", n=1 + number % 3)
            inside.add(request)
            truth[name] = (request, request.params.n, False)
        elif kind == "s":
            inside.start(name)
            if name in truth:
                truth[name] = (*truth[name][:2], True)
        elif kind == "f":
            is_last = inside.close_choice(name)
            request, left, _ = truth.pop(name, (None, 1, True))
            assert is_last == (left == 1)
            if request is not None and left > 1:
                truth[name] = (request, left - 1, _)
        elif kind == "d":
            inside.drop(name)
            truth.pop(name, None)
        assert inside.num_choices == sum(left for _, left, _ in truth.values())
        waiting = Counter(r.client for r, _, has_started in truth.values() if not has_started)
        assert inside.waiting == waiting


def test_an_urgent_request_enters_a_full_engine_but_not_without_end() -> None:
    admission, inside = Admission(seats=2), Occupancy()
    for i in range(2):
        inside.add(engine_request(f"r{i}", "a", priority=5))
    assert admission.blocked(inside, 5) is None
    assert admission.blocked(inside, 4) == ()
    for i in range(2):
        inside.add(engine_request(f"u{i}", "b", priority=4))
    assert admission.blocked(inside, 0) is None


def test_under_the_fair_policy_a_full_engine_takes_some_more_of_each_client() -> None:
    admission, inside = Admission(seats=2, is_fair=True), Occupancy()
    for i in range(2):
        inside.add(engine_request(f"r{i}", "a"))
        inside.start(f"r{i}")
    for i in range(2, 5):
        assert admission.blocked(inside, 0) == set()
        inside.add(engine_request(f"r{i}", "a"))
    assert admission.blocked(inside, 0) == {"a"}
    for client in range(100):
        inside.add(engine_request(f"c{client}", f"c{client}"))
        if admission.blocked(inside, 0) is None:
            break
    assert inside.num_choices < 30


def test_retry_after_follows_the_pace() -> None:
    now = [0.0]
    pace = Pace(clock=lambda: now[0])
    assert pace.wait_s(1000) == 1.0
    for _ in range(100):
        pace.note()
        now[0] += 0.5
    # 64 departures of half a second each; half of what waits
    assert pace.wait_s(40) == pytest.approx(10.0, rel=0.05)
    assert pace.wait_s(1) == 1.0
    assert pace.wait_s(10**6) == 60.0
    now[0] += 1000  # nothing has left for long
    assert pace.wait_s(40) == 60.0


def test_an_idle_time_does_not_count_as_a_slow_one() -> None:
    """A crowd in the morning is told the pace, not that nothing has left all night."""
    now = [0.0]
    pace = Pace(clock=lambda: now[0])
    for _ in range(100):
        pace.note()
        now[0] += 0.5
    before = pace.wait_s(40)
    with pace.at_rest():
        now[0] += 30_000
        assert pace.wait_s(40) == before  # who has come has not yet woken the engine
    assert pace.wait_s(40) == before
    for _ in range(100):
        pace.note()
        now[0] += 0.1
    assert pace.wait_s(400) == pytest.approx(20.0, rel=0.05)


def test_an_engine_without_work_is_at_rest() -> None:
    with held() as served:
        pace = served.bridge._pace
        wait_for(lambda: pace._rests_since is not None)
        connection = ask(served, "a", BUSY)
        wait_for(lambda: pace._rests_since is None)
        order(served, [connection])
        wait_for(lambda: pace._rests_since is not None)
