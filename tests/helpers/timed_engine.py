"""A fake engine whose core is timed, as the server runs it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from helpers.fake_engine import FakeEngine

from tinyserve.engine.chronicle import Chronicle, Life, TimedStep
from tinyserve.engine.request import EngineRequest
from tinyserve.engine.sampling import SamplingParams
from tinyserve.engine.timing import TimedCore


class TimedEngine:
    """`options` are FakeEngine's. Requests are greedy and go on to max_tokens.

    `steps` and `lives` are what a chronicle tells of all that has happened until now.
    """

    def __init__(self, **options: Any) -> None:
        self.engine = FakeEngine(**options)
        self.core = TimedCore(self.engine.core)
        self.chronicle = Chronicle(self)
        self._steps: list[TimedStep] = []
        self._lives: dict[tuple[str, int], Life] = {}

    def add(self, request_id: str, prompt: Sequence[int], **params: Any) -> EngineRequest:
        sampling = SamplingParams(**{"temperature": 0.0, "ignore_eos": True, **params})
        request = EngineRequest(
            request_id=request_id, prompt_token_ids=list(prompt), params=sampling
        )
        self.core.add_request(request)
        return request

    def run(self) -> None:
        while self.core.has_work():
            self.core.step()

    @property
    def steps(self) -> list[TimedStep]:
        self._read()
        return self._steps

    @property
    def lives(self) -> dict[tuple[str, int], Life]:
        """Those that have ended, by request and choice."""
        self._read()
        return self._lives

    def _read(self) -> None:
        while self.core.records:
            self.chronicle.take(self.core.records.popleft())

    def add_step(self, step: TimedStep) -> None:
        self._steps.append(step)

    def add_life(self, life: Life) -> None:
        key = life.request.request_id, life.choice
        assert key not in self._lives, "a choice ended twice"
        self._lives[key] = life
