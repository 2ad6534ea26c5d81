"""A fake engine whose core is timed, as the server runs it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from helpers.fake_engine import FakeEngine

from tinyserve.engine.request import EngineRequest
from tinyserve.engine.sampling import SamplingParams
from tinyserve.engine.timing import Life, TimedCore


class TimedEngine:
    """`options` are FakeEngine's. Requests are greedy and go on to max_tokens."""

    def __init__(self, **options: Any) -> None:
        self.engine = FakeEngine(**options)
        self.core = TimedCore(self.engine.core)

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

    def lives(self) -> dict[tuple[str, int], Life]:
        found = {(life.request.request_id, life.choice): life for life in self.core.ended}
        assert len(found) == len(self.core.ended), "a choice ended twice"
        return found
