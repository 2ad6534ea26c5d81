"""The casebook on memory: nothing grows with the number of requests."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from casebook_servers import serve_synthetic
from helpers.fake_service import make_engine
from helpers.live_server import Live, live, wait_for
from helpers.metrics import scrape

PATH = "/v1/completions"


@pytest.fixture(scope="module")
def served() -> Iterator[Live]:
    with live(make_engine()) as running:
        yield running


def alive() -> Counter[str]:
    """How many objects of the package's own classes there are."""
    gc.collect()
    kinds = (type(thing) for thing in gc.get_objects())
    return Counter(kind.__name__ for kind in kinds if str(kind.__module__).startswith("tinyserve"))


def left_by(ask: Callable[[int], object], rounds: int) -> Counter[str]:
    """The objects that `rounds` calls leave behind, after as many have warmed up."""
    for i in range(rounds):
        ask(i)
    before = alive()
    for i in range(rounds, 2 * rounds):
        ask(i)
    return alive() - before


def test_nothing_grows_with_requests() -> None:
    """MEM-03: good ones, refused ones, streams; each another prompt, client, model and field."""

    def ask(i: int) -> None:
        body: dict[str, Any] = {"prompt": f"prompt {i}", "max_tokens": 1, "user": f"user {i}"}
        served.post(PATH, **body)
        served.post(PATH, **body, stream=True, cache_salt=f"salt {i}")
        served.post(PATH, **body, structured_outputs={"choice": ["a", "b"]}, n=2)
        served.post(PATH, **body, model=f"model {i}")
        served.post(PATH, **body, temperature=-1)
        served.client.get(f"/nowhere/{i}", headers={"x-request-id": f"id-{i}"})

    # The fake model keeps every plan it has seen; this one keeps nothing. Its cache is soon full.
    with serve_synthetic(cache={"num_blocks": 16}) as served:
        left = left_by(ask, 20)
        served.wait_idle()
    assert max(left.values(), default=0) < 10, left


def test_nothing_is_kept_of_requests_that_were_left(served: Live) -> None:
    """MEM-03, CON-06"""

    def ask(i: int) -> None:
        served.runner.gate.clear()
        served.open({"prompt": [5, i], "max_tokens": 300, "stream": i % 2 == 0})
        wait_for(lambda: served.bridge.num_open == 1)
        served.hang_up()
        wait_for(lambda: served.bridge.num_open == 0)
        served.runner.gate.set()
        served.wait_idle()
        served.runner.plans.clear()

    left = left_by(ask, 40)
    assert max(left.values(), default=0) < 20, left


def test_the_prefix_cache_is_bounded_and_shown(served: Live) -> None:
    """MEM-02: it lives in the KV blocks, which are all there is; /metrics says how many."""
    for i in range(200):
        served.complete([3 + (i * 7 + j) % 500 for j in range(40)], max_tokens=1)
    stats = served.engine.core.stats()
    assert stats.num_free_blocks + stats.num_cached_blocks == stats.num_total_blocks == 512
    assert stats.num_cached_blocks > 400  # 200 prompts of ten blocks would not fit
    shown = scrape(served.client)
    config = next(shown.labels("vllm:cache_config_info"))
    assert (config["num_gpu_blocks"], config["block_size"]) == ("512", "4")
    assert shown("vllm:kv_cache_usage_perc") == 0
