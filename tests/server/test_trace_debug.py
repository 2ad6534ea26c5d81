"""`GET /debug/trace`: the Trace Event Format, and that it shows what happened."""

from __future__ import annotations

import json
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from helpers.fake_engine import VOCAB, generate_alone
from helpers.fake_service import make_engine
from helpers.live_server import Live, live, wait_for
from helpers.timed_engine import TimedEngine

from tinyserve.engine.trace import TraceRecorder
from tinyserve.engine.trace_events import FIRST_SEQUENCE, STEPS, trace_json
from tinyserve.spec.oracle import OracleProposer

Event = dict[str, Any]


def assert_valid(trace: dict[str, Any]) -> list[Event]:
    """What the Trace Event Format asks of an object, and nesting that viewers can draw."""
    assert set(trace) == {"traceEvents", "displayTimeUnit", "otherData"}
    assert trace["displayTimeUnit"] in ("ms", "ns")
    events: list[Event] = trace["traceEvents"]
    named = {e["tid"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    for event in events:
        assert event["ph"] in "XiCM"
        assert isinstance(event["name"], str)
        assert isinstance(event["args"], dict)
        assert event["pid"] == 1
        assert event["tid"] in named
        if event["ph"] == "M":
            assert event["args"]["name"]
            continue
        assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0
        if event["ph"] == "i":
            assert event["s"] in ("t", "p", "g")
        if event["ph"] == "C":
            assert all(isinstance(value, int) for value in event["args"].values())
    for track in named:
        assert_nested([e for e in events if e["tid"] == track and e["ph"] == "X"])
    return events


def assert_nested(slices: list[Event]) -> None:
    """Slices of one track lie inside or beside one another, never across."""
    open_until: list[float] = []
    for event in sorted(slices, key=lambda e: (e["ts"], -e["dur"])):
        begin, end = event["ts"], event["ts"] + event["dur"]
        while open_until and open_until[-1] <= begin + 0.002:  # rounding to nanoseconds
            open_until.pop()
        assert not open_until or end <= open_until[-1] + 0.002
        open_until.append(end)


def names(events: list[Event]) -> Counter[str]:
    return Counter(event["name"] for event in events)


class Traced(TimedEngine):
    """A fake engine that is recorded."""

    def __init__(self, max_chunks: int = 100_000, **options: Any) -> None:
        super().__init__(**options)
        self.core.tracer = self.recorder = TraceRecorder(max_chunks)

    def events(self) -> list[Event]:
        """Those of all steps until there is no more work."""
        self.run()
        began = self.recorder.steps[0].lap[0]
        return assert_valid(json.loads(trace_json(self.recorder, began, {"version": "x"})))


def test_each_token_that_went_through_the_model_is_on_a_track() -> None:
    traced = Traced(max_num_batched_tokens=8)
    traced.add("a", [1, 2, 3] * 7, max_tokens=3)
    traced.add("b", [4, 5], max_tokens=2, n=2)
    events = traced.events()
    stats = traced.core.stats()
    chunks = [e for e in events if e["ph"] == "X" and e["tid"] >= FIRST_SEQUENCE]
    assert sum(e["args"]["tokens"] for e in chunks) == stats.num_scheduled_tokens
    steps = [e for e in events if e["name"] == "step"]
    assert len(steps) == stats.num_steps
    assert sum(e["args"]["tokens"] for e in steps) == stats.num_scheduled_tokens
    assert sum(e["args"]["sequences"] for e in steps) == len(chunks)
    tracks = {e["args"]["name"]: e["tid"] for e in events if e["name"] == "thread_name"}
    assert set(tracks) == {"steps", "a", "b", "b #1"}
    prefill = [e for e in chunks if e["tid"] == tracks["a"] and e["name"] == "prefill"]
    assert prefill[0]["args"]["start"] == 0
    assert sum(e["args"]["tokens"] for e in prefill) == 21
    assert names(chunks)["decode"] == 2 + 2


def test_the_parts_of_a_step_fill_it() -> None:
    traced = Traced()
    traced.add("a", [1, 2, 3], max_tokens=3)
    events = traced.events()
    for step in (e for e in events if e["name"] == "step"):
        inside = [
            e
            for e in events
            if e["tid"] == STEPS
            and e["name"] in ("plan", "run", "sample", "commit")
            and step["ts"] <= e["ts"] + 0.001
            and e["ts"] + e["dur"] <= step["ts"] + step["dur"] + 0.01
        ]
        assert [e["name"] for e in inside] == ["plan", "run", "sample", "commit"]
        assert sum(e["dur"] for e in inside) == pytest.approx(step["dur"], abs=0.01)


@pytest.mark.parametrize(("num_swap_blocks", "how"), [(0, "recompute"), (16, "swap")])
def test_preemption_shows_where_it_happened(num_swap_blocks: int, how: str) -> None:
    traced = Traced(num_blocks=6, num_swap_blocks=num_swap_blocks, caching=False)
    for name in ("old", "new"):
        traced.add(name, [len(name) + i for i in range(8)], max_tokens=12)
    events = traced.events()
    stats = traced.core.stats()
    happened = names([e for e in events if e["ph"] == "i"])
    num = stats.num_preemptions_swap + stats.num_preemptions_recompute
    assert happened["preempted"] == happened["resumed"] == num > 0
    assert happened["admitted"] == happened["finished"] == 2
    details = {e["args"]["detail"] for e in events if e["name"] == "preempted"}
    assert details == {how}
    moved = [e["args"]["blocks"] for e in events if e["name"] == "swap out"]
    assert sum(moved) == stats.num_swapped_out_blocks
    moved = [e["args"]["blocks"] for e in events if e["name"] == "swap in"]
    assert sum(moved) == stats.num_swapped_in_blocks
    if how == "recompute":
        again = [e for e in events if e["name"] in ("recompute", "prefill")]
        rows = sum(e["args"]["tokens"] for e in again)
        assert rows >= 16 + stats.num_recomputed_tokens - num


def test_copies_on_write_show() -> None:
    traced = Traced()
    traced.add("a", [1, 2, 3, 4, 5, 6], max_tokens=4, n=3)
    events = traced.events()
    copied = sum(e["args"]["blocks"] for e in events if e["name"] == "copy on write")
    assert copied == traced.core.stats().num_cow_copies > 0


def test_accepted_drafts_show_at_their_sequence() -> None:
    prompt = [1, 2, 3, 4]
    future = [*prompt, *generate_alone(prompt, max_tokens=40)[0]]
    traced = Traced(proposer=OracleProposer([future], VOCAB, accuracy=0.7, seed=1))
    traced.add("a", prompt, max_tokens=30)
    events = traced.events()
    stats = traced.core.stats()
    verified = [e["args"] for e in events if e["name"] == "verify"]
    assert sum(args["drafts"] for args in verified) == stats.num_draft_tokens > 0
    assert sum(args["accepted"] for args in verified) == stats.num_accepted_tokens > 0
    marked = [e["args"]["accepted"] for e in events if e["name"] == "drafts accepted"]
    assert sum(marked) == stats.num_accepted_tokens
    gaps = [count for step in traced.steps for _, count in step.gaps]
    assert sum(gaps) == 29
    assert max(gaps) > 1


def test_counters_follow_the_engine() -> None:
    traced = Traced(max_num_seqs=1)
    traced.add("a", [1, 2], max_tokens=3)
    traced.add("b", [3, 4], max_tokens=3)
    events = traced.events()
    counts = [e["args"] for e in events if e["name"] == "sequences"]
    assert counts[0] == {"running": 1, "waiting": 1}
    assert counts[-1] == {"running": 0, "waiting": 0}
    blocks = [e["args"]["blocks"] for e in events if e["name"] == "available blocks"]
    assert blocks[-1] == 64
    assert min(blocks) < 64


def test_an_abort_between_steps_ends_the_track() -> None:
    traced = Traced()
    traced.add("a", [1, 2], max_tokens=50)
    traced.add("b", [3, 4], max_tokens=4)
    traced.core.step()
    traced.core.abort("a")
    events = traced.events()
    ends = {e["args"]["detail"] for e in events if e["name"] == "finished"}
    assert ends == {"abort", "length"}


def test_the_recording_is_bounded_and_says_what_it_missed() -> None:
    traced = Traced(max_chunks=30)
    traced.add("a", [1, 2, 3], max_tokens=100)
    traced.run()
    recorder = traced.recorder
    assert len(recorder.steps) == 15  # a step and its one chunk count two
    assert recorder.num_missed == traced.core.stats().num_steps - 15
    trace = json.loads(trace_json(recorder, 0.0, {}))
    assert trace["otherData"] == {"steps": 15, "steps_missed": recorder.num_missed}


def test_a_trace_without_steps_is_valid() -> None:
    trace = json.loads(trace_json(TraceRecorder(), 0.0, {}))
    assert {e["ph"] for e in assert_valid(trace)} == {"M"}


# -- over HTTP ---------------------------------------------------------------------------------


def traced_engine() -> Any:
    return make_engine(server={"debug_trace": True})


def test_off_by_default_and_says_how_to_turn_it_on(served: Live) -> None:
    response = served.client.get("/debug/trace?seconds=1")
    assert response.status_code == 404
    assert "--enable-debug-trace" in response.json()["error"]["message"]


def test_seconds_out_of_range() -> None:
    with live(traced_engine()) as served:
        for seconds in ("0", "-1", "60.5", "abc", "nan", "inf", ""):
            response = served.client.get("/debug/trace", params={"seconds": seconds})
            assert response.status_code == 400, seconds
            assert response.json()["error"]["param"] == "seconds"


def test_a_trace_of_a_running_server() -> None:
    with live(traced_engine()) as served:
        served.complete(max_tokens=2)  # before: not in the trace
        with ThreadPoolExecutor(2) as pool:
            asked = pool.submit(served.client.get, "/debug/trace?seconds=0.4")
            wait_for(lambda: served.state.observer.core.tracer is not None)  # type: ignore[union-attr]
            refused = served.client.get("/debug/trace?seconds=1")
            usage = served.complete("abc", max_tokens=5, ignore_eos=True)["usage"]
            response = asked.result(20)
        assert refused.status_code == 409
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("application/json")
        trace = response.json()
        events = assert_valid(trace)
        chunks = [e for e in events if e["ph"] == "X" and e["tid"] >= FIRST_SEQUENCE]
        rows = sum(e["args"]["tokens"] for e in chunks)
        assert rows == usage["prompt_tokens"] + 4
        assert trace["otherData"]["steps"] == 5
        core = served.state.observer.core
        assert core is not None
        assert core.tracer is None  # nothing is recorded any more
        assert served.client.get("/debug/trace?seconds=0.01").status_code == 200


def test_the_step_that_runs_at_the_end_is_in_the_trace() -> None:
    with live(traced_engine()) as served:
        served.runner.gate.clear()
        connection = served.open({"prompt": "x", "max_tokens": 1})
        wait_for(lambda: served.runner.steps == 1)
        timer = threading.Timer(0.3, served.runner.gate.set)
        timer.start()
        trace = served.client.get("/debug/trace?seconds=0.05").json()
        assert trace["otherData"]["steps"] == 1
        assert connection.getresponse().status == 200
