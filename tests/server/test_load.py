"""Crowds, overload and clients that leave, over a fake engine: accounting and order, never time."""

from __future__ import annotations

import asyncio
import itertools
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from helpers.fake_service import make_engine
from helpers.live_server import Live, live, wait_for
from starlette.types import Scope

from tinyserve.bench import load_torture
from tinyserve.bench.load_torture import Load, Outcome, answers_alone, broken, crowd, overload
from tinyserve.bench.watch import resident_mib, slope
from tinyserve.config import TinyServeConfig
from tinyserve.engine.build import build_engine
from tinyserve.server.body import as_chat_request
from tinyserve.server.chat import prompt_size
from tinyserve.server.gate import Gate
from tinyserve.server.json_text import in_pieces, to_json
from tinyserve.server.service import INLINE_CHARACTERS


def load_on(served: Live, **options: Any) -> Load:
    fields = {"num_tokens": 6, "leave": 0.3, **options}
    return Load(f"{served.base_url}/v1/completions", **fields)


def test_a_crowd_of_streams_of_which_a_third_leaves() -> None:
    """64 that run and 200 that wait: all that stay get the answer that they would get alone."""
    engine = make_engine(scheduler={"max_num_seqs": 64}, server={"max_queued_requests": 300})
    with live(engine) as served:
        load = load_on(served)

        async def scenario() -> Outcome:
            return await crowd(load, 264, await answers_alone(load))

        outcome = asyncio.run(scenario())
        assert outcome.wrong == []
        assert outcome.counts["ended"] + outcome.counts["left"] == 264
        assert outcome.counts["ended"] >= 264 * 0.6
        served.wait_idle()


def test_an_overload_is_answered_or_refused() -> None:
    """More than there is room for: every request ends well or is told 429; none is forgotten."""
    engine = make_engine(scheduler={"max_num_seqs": 2}, server={"max_queued_requests": 4})
    with live(engine) as served:
        load = load_on(served, num_tokens=40, leave=0.2)

        async def scenario() -> Outcome:
            return await overload(load, rate=2000, seconds=0.1, expected=await answers_alone(load))

        outcome = asyncio.run(scenario())
        assert outcome.wrong == []
        assert sum(outcome.counts.values()) == 200
        assert outcome.counts["refused"] > 0
        assert outcome.counts["ended"] >= 6
        served.wait_idle()
        assert served.complete(max_tokens=1)


def test_what_the_program_counts_as_broken() -> None:
    good: dict[str, Any] = {
        "phases": {"crowd": {"ended": 5}, "overload": {"ended": 5, "refused": 3}},
        "health_ms": {"p99": 20.0},
        "is_idle_after": True,
    }
    assert broken(good) == []
    assert broken({**good, "health_ms": {"p99": 101.0}})
    assert broken({**good, "is_idle_after": False})
    wrong = {"crowd": {"ended": 5, "wrong": 1, "wrong_first": ["x"]}, "overload": {"ended": 5}}
    assert len(broken({**good, "phases": wrong})) == 2


def test_answers_that_are_wrong_are_noticed(served: Live) -> None:
    load = load_on(served, leave=0.0)

    async def scenario() -> Outcome:
        return await crowd(load, 16, ["something else"] * load_torture.NUM_PROMPTS)

    outcome = asyncio.run(scenario())
    assert outcome.counts == {"wrong": 16}
    assert "differs" in outcome.wrong[0]


def test_memory_and_its_slope() -> None:
    assert slope([(float(t), 5.0 + 2.0 * t) for t in range(9)]) == pytest.approx(2.0)
    assert slope([(1.0, 7.0)]) == 0.0
    assert (resident_mib(os.getpid()) or 100) > 5
    assert resident_mib(2**22 + 1) is None


def test_mem_03_nothing_is_kept_of_requests_that_ended(served: Live) -> None:
    """Maps of requests are empty after many, ended and aborted alike."""
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: served.complete([60 + i % 100], max_tokens=1), range(200)))
    for _ in range(30):
        served.open({"prompt": "x", "max_tokens": 400, "ignore_eos": True, "stream": True})
    served.hang_up()
    served.wait_idle()
    bridge, core = served.bridge, served.engine.core
    wait_for(lambda: not bridge._releases)
    assert [len(kept) for kept in (bridge._mailboxes, bridge._groups, core._jobs)] == [0, 0, 0]
    assert (len(bridge._queue), bridge._queue.num_requests, bridge._queue.num_tokens) == (0, 0, 0)
    inside = bridge._inside
    kept = (inside._requests, inside._open, inside._unstarted, inside.waiting)
    assert [len(each) for each in kept] == [0, 0, 0, 0]


# -- the gate -------------------------------------------------------------------------------------


class Door:
    """A gate before an application that notes who came in, and when."""

    def __init__(self, max_waiting: int = 1024) -> None:
        self.came: list[tuple[int, str]] = []  # round of the loop, who
        self.refused: list[int] = []
        self.round = 0
        self.gate = Gate(self._app, max_waiting)

    async def _app(self, scope: Scope, receive: Any, send: Any) -> None:
        self.came.append((self.round, scope["path"]))

    async def visit(self, name: str, client: str = "a", method: str = "POST") -> None:
        scope = {
            "type": "http",
            "method": method,
            "path": name,
            "query_string": b"",
            "headers": [(b"x-client-id", client.encode())],
            "client": ("127.0.0.1", 1),
            "app": _KEYLESS,
        }

        async def send(message: Any) -> None:
            if "status" in message:
                self.refused.append(message["status"])

        await self.gate(scope, None, send)  # type: ignore[arg-type]

    async def count_rounds(self) -> None:
        while True:
            self.round += 1
            await asyncio.sleep(0)

    def run(self, *visits: Any) -> None:
        async def scenario() -> None:
            counting = asyncio.create_task(self.count_rounds())
            await asyncio.gather(*visits)
            counting.cancel()

        asyncio.run(scenario())


class _App:
    """As much of an application as naming clients needs."""

    def __init__(self) -> None:
        self.state = self
        self.tinyserve = self
        self.keys = ()


_KEYLESS = _App()


def test_con_19_what_takes_long_is_not_done_on_the_event_loop() -> None:
    """A hundred thousand messages without a letter once held every stream for seconds."""
    few = [{"role": "user", "content": ""}]
    assert prompt_size(as_chat_request({"messages": few})) <= INLINE_CHARACTERS
    assert prompt_size(as_chat_request({"messages": few * 1000})) > INLINE_CHARACTERS


def test_con_19_a_long_answer_is_written_in_pieces() -> None:
    answer = {"a": 1, "b": [], "c": [{"d": [1, None]}, "\u00e9\n"], '"': {"e": []}, "f": [[], 0.5]}
    assert in_pieces(answer) == to_json(answer)
    assert in_pieces({}) == to_json({})


def test_one_request_comes_in_for_each_round_of_the_loop() -> None:
    door = Door()
    door.run(*[door.visit(str(i)) for i in range(50)])
    rounds = [number for number, _ in door.came]
    assert len(rounds) == 50
    assert all(later > earlier for earlier, later in itertools.pairwise(rounds))


def test_the_gate_is_fair_between_clients() -> None:
    door = Door()
    greedy = [door.visit(f"g{i}", "greedy") for i in range(50)]
    door.run(*greedy, door.visit("m", "modest"))
    names = [name for _, name in door.came]
    assert names.index("m") <= 2  # one had come in already, and one goes before


def test_gets_do_not_wait_at_the_gate() -> None:
    door = Door()
    door.run(*[door.visit(f"p{i}") for i in range(20)], door.visit("health", method="GET"))
    names = [name for _, name in door.came]
    assert names.index("health") <= 1


def test_too_many_at_the_gate_are_refused() -> None:
    door = Door(max_waiting=10)
    door.run(*[door.visit(str(i)) for i in range(50)])
    assert len(door.came) == 11
    assert door.refused == [429] * 39


def test_who_gives_up_at_the_gate_is_forgotten() -> None:
    door = Door()

    async def scenario() -> None:
        visits = [asyncio.create_task(door.visit(str(i))) for i in range(5)]
        await asyncio.sleep(0)
        for visit in visits[1:4]:
            visit.cancel()
        await asyncio.gather(*visits, return_exceptions=True)
        await door.visit("later")
        assert len(door.gate._line) == 0

    asyncio.run(scenario())
    assert [name for _, name in door.came] == ["0", "4", "later"]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_mem_03_memory_is_flat_over_many_requests() -> None:
    """Fifteen thousand short requests, a tenth of them aborted."""
    config = TinyServeConfig.from_dict({"model": {"name": "synthetic"}})
    with live(build_engine(config), check_idle=False) as served:
        samples: list[tuple[float, float]] = []
        for batch in range(30):
            _send(served, 500, abort_every=10)
            if batch >= 15:  # the clients are in this process, too, and take their time to settle
                samples.append((float(batch), resident_mib(os.getpid()) or 0.0))
        served.wait_idle()
    assert slope(samples) < 0.2, samples  # MiB for each batch


def _send(served: Live, count: int, abort_every: int) -> None:
    def ask(i: int) -> None:
        if i % abort_every == 0:
            with httpx.Client(base_url=served.base_url, timeout=0.002) as client:
                try:
                    client.post("/v1/completions", json={"prompt": f"{i} x", "max_tokens": 50})
                except httpx.HTTPError:
                    return
        else:
            served.complete(f"{i} x", max_tokens=1)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, range(count)))
