"""What a streamed token may not cost: validation of models. And the program that measures costs."""

from __future__ import annotations

import json
import sys
import threading
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from helpers.live_server import Live

from tinyserve.bench import http_overhead
from tinyserve.server.app import create_app


class Profile:
    """Counts the calls on the server's event loop, by module: Python functions and C functions."""

    def __init__(self, served: Live) -> None:
        self.calls: Counter[str] = Counter()
        self._served = served

    def __enter__(self) -> Profile:
        self._on_loop(lambda: sys.setprofile(self._count))
        return self

    def __exit__(self, *args: object) -> None:
        self._on_loop(lambda: sys.setprofile(None))

    def _on_loop(self, function: Any) -> None:
        done = threading.Event()
        loop = self._served.bridge._loop
        assert loop is not None
        loop.call_soon_threadsafe(lambda: (function(), done.set()))
        assert done.wait(10)

    def _count(self, frame: FrameType, event: str, arg: Any) -> None:
        if event == "call":
            self.calls[str(frame.f_globals.get("__name__")).partition(".")[0]] += 1
        elif event == "c_call":
            owner = type(getattr(arg, "__self__", None)).__module__
            if owner.startswith("pydantic"):
                self.calls[owner] += 1

    @property
    def num_validations(self) -> int:
        return sum(n for module, n in self.calls.items() if module.startswith("pydantic"))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/completions", {"prompt": "x", "logprobs": 2}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
    ],
)
def test_no_model_is_validated_on_the_way_of_a_token(
    served: Live, path: str, body: dict[str, Any]
) -> None:
    counts = []
    served.stream(path, max_tokens=2, **body)  # the first of a path completes its models
    for max_tokens in (2, 202):
        with Profile(served) as profile:
            served.stream(path, max_tokens=max_tokens, ignore_eos=True, **body)
        counts.append(profile.num_validations)
        assert profile.calls["tinyserve"] > max_tokens, "the profile sees the stream"
    assert counts[0] == counts[1] > 0  # the body's validation, and no more for 200 tokens


def test_the_meter_at_the_door_adds_no_coroutine_to_a_token(served: Live) -> None:
    """`send` is looked at and passed on: what it returns is the server's own awaitable."""
    from tinyserve.server.observe.http import _Exchange

    own = object()
    exchange = _Exchange({}, None, lambda message: own)  # type: ignore[arg-type, return-value]
    message = {"type": "http.response.body", "body": b"x", "more_body": True}
    assert exchange.send(message) is own
    assert not exchange.is_complete


def test_the_benchmark_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "overhead.json"
    argv = ["http_overhead", "--streams", "2", "--tokens", "20", "--requests", "3", "--repeat", "1"]
    monkeypatch.setattr(sys, "argv", [*argv, "--out", str(out)])
    http_overhead.main()
    result = json.loads(out.read_text())
    rows = {row["what"]: row for row in result["rows"]}
    assert len(rows) == 1 + len(http_overhead.CALLS)
    assert all(row["loop_us"] > 0 for name, row in rows.items() if name.startswith("GET"))
    assert rows["streamed token"]["streams"] == 2


def test_an_instant_engine_is_a_whole_one() -> None:
    engine, _ = http_overhead.instant_engine(2, 20)
    app = create_app(engine)
    assert app.state.tinyserve.observer is not None
    request = engine.intake.request("a", [5, 6], engine.intake.params({"max_tokens": 3}))
    engine.core.add_request(request)
    text = ""
    while engine.core.has_work():
        text += "".join(output.new_text for output in engine.core.step())
    assert text == "aaa"
