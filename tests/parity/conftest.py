"""The reference (transformers on torch), loud where it is absent: skipped with a banner at the end.

`TINYSERVE_REQUIRE_REFERENCE=1` turns its absence into a failure; continuous integration sets it.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest

MISSING = [name for name in ("torch", "transformers") if not importlib.util.find_spec(name)]
REASON = f"reference absent ({' and '.join(MISSING)} not installed): pip install -e '.[hf]'"
HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not MISSING:
        return
    if os.environ.get("TINYSERVE_REQUIRE_REFERENCE") == "1":
        raise pytest.UsageError(f"TINYSERVE_REQUIRE_REFERENCE is set: {REASON}")
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.skip(reason=REASON))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if MISSING:
        terminalreporter.section("parity with Hugging Face was NOT tested", red=True, bold=True)
        terminalreporter.line(REASON)


@pytest.fixture(scope="session")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from parity_cases import Cases

    return Cases(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(params=["numpy", "native"])
def backend(request: pytest.FixtureRequest) -> str:
    """Every parity test runs on both; without a compiled library, on numpy alone."""
    from tinyserve.errors import ConfigError
    from tinyserve.kernels.select import choose_backend

    try:
        choose_backend(wanted=request.param)
    except ConfigError as error:
        pytest.skip(f"native back end absent: {error}")
    name: str = request.param
    return name
