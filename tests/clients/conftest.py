"""Official and popular clients against a running server; loud where they are absent.

`TINYSERVE_REQUIRE_CLIENTS=1` turns their absence into a failure; continuous integration sets it.
Nothing here leaves the machine: what the clients would fetch or report is turned off.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.fake_service import make_engine
from helpers.live_server import Live, live

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


# Writes a conversation and the tools at hand as models of the Qwen family read them.
TEMPLATE = (
    "{% if tools %}Tools:{% for tool in tools %} {{ tool | tojson }}{% endfor %}\n{% endif %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content or '' }}"
    "{% for call in m.tool_calls or [] %}<tool_call>\n{{ call.function | tojson }}\n</tool_call>"
    "{% endfor %}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


@pytest.fixture(scope="session")
def shared_client_server() -> Iterator[Live]:
    engine = make_engine(
        model={"chat_template": TEMPLATE, "tool_call_parser": "hermes"},
        scheduler={"max_model_len": 2048},
        cache={"num_blocks": 2048},
        server={"max_body_size": 1 << 20},
    )
    with live(engine) as running:
        yield running


@pytest.fixture
def served(shared_client_server: Live) -> Iterator[Live]:
    """A server whose fake model says what the test wants."""
    running = shared_client_server
    running.runner.reset()
    running.engine.core._kv.clear_cache()
    yield running
    running.runner.reset()
    running.wait_idle()
