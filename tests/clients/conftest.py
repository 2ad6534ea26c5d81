"""Official and popular clients against a running server; loud where they are absent.

`TINYSERVE_REQUIRE_CLIENTS=1` turns their absence into a failure; continuous integration sets it.
Nothing here leaves the machine: what the clients would fetch or report is turned off.
"""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.fake_service import make_engine
from helpers.live_server import Live, live

from tinyserve.config import TinyServeConfig
from tinyserve.engine.build import build_engine

NAMES = ("anthropic", "langchain_openai", "litellm")
MISSING = [name for name in NAMES if not importlib.util.find_spec(name)]
REASON = f"clients absent ({', '.join(MISSING)} not installed): pip install -e '.[clients]'"
HERE = Path(__file__).parent

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else its import asks GitHub
os.environ["LITELLM_TELEMETRY"] = "False"
os.environ["LANGSMITH_TRACING"] = "false"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if MISSING and os.environ.get("TINYSERVE_REQUIRE_CLIENTS") == "1":
        raise pytest.UsageError(f"TINYSERVE_REQUIRE_CLIENTS is set: {REASON}")
    for item in items:
        if item.path.is_relative_to(HERE):
            # The clients' own warnings are not ours to turn into errors.
            item.add_marker(pytest.mark.filterwarnings("ignore"))
            if MISSING:
                item.add_marker(pytest.mark.skip(reason=REASON))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if MISSING:
        terminalreporter.section("other clients were NOT tested", red=True, bold=True)
        terminalreporter.line(REASON)


CALL = (
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}\n</tool_call>'
)


@pytest.fixture(scope="module", autouse=True)
def _clean_up_after_clients() -> Iterator[None]:
    """Some leave sockets and event loops behind, whose warnings would be blamed on later tests."""
    asyncio.set_event_loop(None)  # or LiteLLM would make one for this thread, and never close it
    yield
    litellm = sys.modules.get("litellm")
    if litellm is not None:
        litellm.in_memory_llm_clients_cache.flush_cache()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()


@pytest.fixture(scope="session")
def shared_client_server() -> Iterator[Live]:
    with live(
        make_engine(scheduler={"max_model_len": 2048}, cache={"num_blocks": 2048})
    ) as running:
        yield running


@pytest.fixture(scope="session")
def random_model() -> Iterator[Live]:
    """A model that is really computed and draws at random: only a grammar keeps it to a form."""
    config = {"model": {"name": "synthetic"}, "scheduler": {"max_model_len": 2048}}
    with live(build_engine(TinyServeConfig.from_dict(config))) as running:
        yield running


@pytest.fixture
def weather_call() -> str:
    """How the model writes a call of `get_weather` for two days in Paris."""
    return CALL


@pytest.fixture
def served(shared_client_server: Live) -> Iterator[Live]:
    """A server whose fake model says what the test wants."""
    running = shared_client_server
    running.runner.reset()
    running.engine.core._kv.clear_cache()
    yield running
    running.runner.reset()
    running.wait_idle()
