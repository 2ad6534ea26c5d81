"""Thousands of bodies that are nearly right: no 500, no hang, the engine alive, everything back."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from helpers.fake_service import make_engine
from helpers.fuzz_bodies import ROUTES, BodyFuzzer
from helpers.live_server import Live, live, wait_for

from tinyserve.config import TinyServeConfig
from tinyserve.engine.build import build_engine

BATCH = 100
LIMITS = {"request_timeout_s": 20, "max_queued_requests": 1000}
EXPECTED = {200, 400, 404, 408, 413, 415}


def fuzz(served: Live, seed: int, count: int) -> Counter[int]:
    """Send `count` bodies, eight at a time; how many of each status came back."""
    paths = served.client.get("/openapi.json").json()["paths"]
    bodies = BodyFuzzer(seed, list(paths)).bodies(count)
    statuses: Counter[int] = Counter()
    with ThreadPoolExecutor(8) as pool:
        while batch := [body for _, body in zip(range(BATCH), bodies, strict=False)]:
            statuses.update(pool.map(lambda body: send(served, *body), batch))
            assert_well(served)
    return statuses


def send(served: Live, path: str, content: bytes) -> int:
    headers = {"content-type": "application/json"}
    response = served.client.post(path, content=content, headers=headers)
    context = f"{path} {content[:2000]!r} -> {response.status_code} {response.text[:500]}"
    assert response.status_code in EXPECTED, context
    if response.status_code != 200:
        assert is_error(response), context
    elif response.headers["content-type"].startswith("text/event-stream"):
        assert has_ended(response.text), context
    else:
        response.json()
    return response.status_code


def is_error(response: httpx.Response) -> bool:
    error: Any = response.json()["error"]
    return {"message", "type"} <= set(error) and bool(error["message"])


def has_ended(text: str) -> bool:
    """A stream of whatever protocol says that it is over."""
    last = text.removesuffix("\n\n").rpartition("\n\n")[2]
    name = last.partition("\n")[0]
    data = last.rpartition("data: ")[2]
    known = ("event: response.completed", "event: response.incomplete", "event: message_stop")
    return data == "[DONE]" or name in known or "error" in json.loads(data)


def assert_well(served: Live) -> None:
    """Alive, idle, and nothing held."""
    assert served.bridge.death is None
    wait_for(lambda: served.bridge.num_open == 0 and not served.engine.core.has_work(), 30)
    wait_for(lambda: served.bridge.stats.num_running + served.bridge.stats.num_waiting == 0)
    health = served.client.get("/health")
    assert health.status_code == 200
    expected = {"status": "ok", "queue_depth": 0, "waiting": 0, "running": 0, "swapped": 0}
    assert expected.items() <= health.json().items()
    served.engine.core._kv.check()
    assert served.bridge.stats.num_free_blocks + served.bridge.stats.num_cached_blocks == (
        served.bridge.stats.num_total_blocks
    )
    served.complete(max_tokens=1)


@pytest.fixture(scope="module")
def fake() -> Iterator[Live]:
    with live(make_engine(server=LIMITS, scheduler={"max_model_len": 128})) as served:
        yield served


def test_fuzzed_bodies(fake: Live) -> None:
    statuses = fuzz(fake, seed=1, count=600)
    assert statuses[200] > 60, "the bodies are not nearly right any more"
    assert statuses[400] > 60


def test_every_route_is_fuzzed(fake: Live) -> None:
    paths = fake.client.get("/openapi.json").json()["paths"]
    taking = {path for path, item in paths.items() if "post" in item}
    assert taking <= set(ROUTES), "say in fuzz_bodies what its bodies are"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_five_thousand_fuzzed_bodies() -> None:
    config = TinyServeConfig.from_dict(
        {
            "model": {"name": "synthetic"},
            "cache": {"num_blocks": 512},
            "scheduler": {"max_model_len": 256},
            "server": LIMITS,
        }
    )
    with live(build_engine(config), check_idle=False) as served:
        statuses = fuzz(served, seed=2, count=5000)
    assert statuses[200] > 500
