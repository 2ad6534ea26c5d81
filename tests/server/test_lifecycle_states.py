"""Every way out of every state gives everything back, and the next request works.

A state is set up step by step with the engine held before each; then the request ends in one of
several ways while the engine stands still.
"""

from __future__ import annotations

import http.client
import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from helpers.fake_service import make_engine
from helpers.live_server import Live, live, wait_for

from tinyserve.errors import EngineDeadError
from tinyserve.server.session import Session

BASE = {"prompt": [65], "max_tokens": 60, "ignore_eos": True, "temperature": 0}


class Turnstile:
    """Stands for the runner's gate: lets a counted number of steps through, or all."""

    def __init__(self) -> None:
        self._permits = threading.Semaphore(0)
        self._is_open = threading.Event()

    def wait(self) -> None:
        while not self._is_open.is_set() and not self._permits.acquire(timeout=0.005):
            pass

    def let(self, steps: int) -> None:
        for _ in range(steps):
            self._permits.release()

    def set(self) -> None:
        self._is_open.set()

    def clear(self) -> None:
        self._is_open.clear()


@dataclass
class Scene:
    """A server whose engine goes step by step, and the sessions that were opened on it."""

    served: Live
    turnstile: Turnstile
    sessions: list[Session]

    def ask(self, **body: Any) -> http.client.HTTPConnection:
        """A request that has arrived when this returns."""
        before = len(self.sessions)
        connection = self.served.open({**BASE, **body})
        wait_for(lambda: len(self.sessions) == before + 1)
        return connection

    def step_until(self, condition: Callable[[], bool]) -> None:
        """Step by step; when the condition holds, the engine is held before another step."""
        for _ in range(400):
            begun = self.served.runner.steps
            self.turnstile.let(1)
            wait_for(lambda begun=begun: self.served.runner.steps > begun)  # type: ignore[misc]
            if condition():
                return
        raise AssertionError("the state was never reached")

    @property
    def stats(self) -> Any:
        return self.served.bridge.stats


def queued(scene: Scene, body: dict[str, Any]) -> None:
    scene.ask(prompt=[70])
    wait_for(lambda: scene.served.runner.steps == 1)
    scene.ask(**body)
    wait_for(lambda: scene.served.bridge.num_queued > 0)


def before_its_first_step(scene: Scene, body: dict[str, Any]) -> None:
    scene.ask(**body)
    wait_for(lambda: scene.served.runner.steps == 1)


def mid_prefill(scene: Scene, body: dict[str, Any]) -> None:
    scene.ask(**{**body, "prompt": [list(range(60, 110))] * len(body["prompt"])})
    wait_for(lambda: scene.served.runner.steps == 1)
    scene.step_until(lambda: scene.served.runner.steps == 3)


def running(scene: Scene, body: dict[str, Any]) -> None:
    scene.ask(**body)
    wait_for(lambda: scene.served.runner.steps == 1)
    before = scene.stats.num_generation_tokens
    scene.step_until(lambda: scene.stats.num_generation_tokens > before + 5)


def swapped(scene: Scene, body: dict[str, Any]) -> None:
    for token in (70, 71, 72):
        scene.ask(prompt=[token] * 3)
    wait_for(lambda: scene.served.runner.steps == 1)
    scene.ask(**body)
    scene.step_until(lambda: scene.stats.num_swapped > 0)


def dropped_to_be_recomputed(scene: Scene, body: dict[str, Any]) -> None:
    for token in (70, 71, 72):
        scene.ask(prompt=[token] * 3)
    wait_for(lambda: scene.served.runner.steps == 1)
    scene.ask(**body)
    before = scene.stats.num_preemptions_recompute
    scene.step_until(lambda: scene.stats.num_preemptions_recompute > before)


def one_prompt_of_several_finished(scene: Scene, body: dict[str, Any]) -> None:
    num_prompts = len(body["prompt"]) + 1
    scene.ask(**{**body, "prompt": [*body["prompt"], [66] * 20], "max_tokens": 3})
    wait_for(lambda: scene.served.runner.steps == 1)
    scene.step_until(lambda: scene.served.bridge.num_open < num_prompts)


def finished_but_unread(scene: Scene, body: dict[str, Any]) -> None:
    scene.ask(**{**body, "max_tokens": 2})
    wait_for(lambda: scene.served.runner.steps == 1)
    scene.turnstile.set()
    wait_for(lambda: not scene.served.engine.core.has_work())
    scene.turnstile.clear()


SMALL = {"cache": {"num_blocks": 24, "num_swap_blocks": 64}}
STATES: dict[Any, dict[str, Any]] = {
    queued: {"scheduler": {"max_num_seqs": 1}},
    before_its_first_step: {},
    mid_prefill: {"scheduler": {"max_num_batched_tokens": 8}},
    running: {"scheduler": {"max_num_seqs": 2}},  # so that of several choices some wait to fork
    swapped: SMALL,
    dropped_to_be_recomputed: {"cache": {"num_blocks": 24, "num_swap_blocks": 0}},
    one_prompt_of_several_finished: {"scheduler": {"max_num_seqs": 1}},
    finished_but_unread: {},
}
BODIES: tuple[dict[str, Any], ...] = (
    {"prompt": [[65]]},
    {"prompt": [[65]], "n": 3},
    {"prompt": [[65], [66], [67]], "n": 2},
)


def leave(scene: Scene) -> None:
    scene.served.hang_up()


def time_out(scene: Scene) -> None:
    loop = scene.served.bridge._loop
    assert loop is not None
    for session in scene.sessions:
        loop.call_soon_threadsafe(session._expire)


def server_stops(scene: Scene) -> None:
    loop = scene.served.bridge._loop
    assert loop is not None
    loop.call_soon_threadsafe(scene.served.bridge.fail_all, EngineDeadError("shutting down"))


@pytest.mark.parametrize("state", list(STATES), ids=lambda state: state.__name__)
def test_con_06_everything_comes_back(state: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sessions: list[Session] = []
    opened = Session.open

    def open_and_tell(session: Session) -> None:
        opened(session)
        sessions.append(session)

    monkeypatch.setattr(Session, "open", open_and_tell)
    with live(make_engine(**STATES[state])) as served:
        for body, stream, way_out in itertools.product(
            BODIES, (True, False), (leave, time_out, server_stops)
        ):
            sessions.clear()
            scene = Scene(served, Turnstile(), sessions)
            served.runner.steps = 0
            served.runner.gate = scene.turnstile  # type: ignore[assignment]
            state(scene, {**body, "stream": stream})
            way_out(scene)
            wait_for(lambda: served.bridge.num_open == 0)
            held = served.runner.steps
            scene.turnstile.let(1)  # the step that was held; no other follows
            wait_for(lambda: not served.engine.core.has_work())
            assert served.runner.steps <= held + 1, (body, stream, way_out)
            scene.turnstile.set()
            assert_nothing_is_left(served)
            served.complete(max_tokens=2)
            assert_nothing_is_left(served)
            served.hang_up()
            served.engine.core._kv.clear_cache()


def assert_nothing_is_left(served: Live) -> None:
    served.wait_idle()
    bridge, kv = served.bridge, served.engine.core._kv
    wait_for(lambda: not bridge._releases and bridge._inside.num_choices == 0)
    wait_for(lambda: bridge.stats.num_waiting + bridge.stats.num_running == 0)
    wait_for(lambda: bridge.stats.num_swapped == 0)
    assert (bridge.num_queued, bridge.num_open) == (0, 0)
    wait_for(lambda: not bridge._groups)
    assert not bridge._inside.waiting
    assert not served.engine.core._jobs
    kv.check()
    assert kv.num_free + kv.num_cached == kv.num_blocks
