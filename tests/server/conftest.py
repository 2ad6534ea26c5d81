"""A server with a fake model: started once, and as good as new for each test.

A module that needs another one overrides `shared_server`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from helpers.fake_service import make_engine
from helpers.live_server import Live, live


@pytest.fixture(scope="session")
def shared_server() -> Iterator[Live]:
    with live(make_engine()) as running:
        yield running


@pytest.fixture
def served(shared_server: Live) -> Iterator[Live]:
    shared_server.runner.reset()
    shared_server.engine.core._kv.clear_cache()
    yield shared_server
    shared_server.hang_up()
    shared_server.runner.reset()
    shared_server.wait_idle()


@pytest.fixture
def plain() -> Iterator[Live]:
    """A server that reads no thinking: a random model would think where it may."""
    engine = make_engine(scheduler={"max_model_len": 2048}, cache={"num_blocks": 1024})
    with live(engine) as running:
        yield running
