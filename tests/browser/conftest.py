"""The page in Debian's or any other Chromium, by Playwright; a loud word where there is none.

`TINYSERVE_REQUIRE_BROWSER=1` turns its absence into a failure. One browser serves the session; each
test has a context of its own: nothing is kept from one to the next. A test fails where the page
wrote an error to the console, raised, or broke its own security policy.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from helpers.fake_service import make_engine
from helpers.live_server import Live, live

if TYPE_CHECKING:
    from browser_page import Pages

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
MISSING = [
    name
    for name, is_there in (
        ("playwright", importlib.util.find_spec("playwright") is not None),
        ("chromium", CHROMIUM is not None),
    )
    if not is_there
]
HOW = "pip install -e '.[dev,clients]' and, say, apt-get install chromium"
REASON = f"{' and '.join(MISSING)} not installed: {HOW}"
HERE = Path(__file__).parent
# These files cannot even be read without it.
collect_ignore_glob = ["test_*.py"] if "playwright" in MISSING else []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not MISSING:
        return
    if os.environ.get("TINYSERVE_REQUIRE_BROWSER") == "1":
        raise pytest.UsageError(f"TINYSERVE_REQUIRE_BROWSER is set: {REASON}")
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.skip(reason=REASON))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if MISSING:
        terminalreporter.section("the web page was NOT tested", red=True, bold=True)
        terminalreporter.line(REASON)


@pytest.fixture(scope="session")
def playwright_browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    playwright = sync_playwright().start()
    browser = playwright.chromium.launch(
        executable_path=CHROMIUM, args=["--headless", "--no-sandbox", "--disable-gpu"]
    )
    loop = asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    yield browser, loop
    asyncio._set_running_loop(loop)
    browser.close()
    playwright.stop()


@pytest.fixture
def browser(playwright_browser: tuple[Any, asyncio.AbstractEventLoop]) -> Iterator[Any]:
    """The browser, for the length of a test.

    Playwright's synchronous face leaves an event loop running on this thread. It is put away
    between tests, or no other test could run one of its own.
    """
    browser, loop = playwright_browser
    asyncio._set_running_loop(loop)
    yield browser
    asyncio._set_running_loop(None)


@pytest.fixture(scope="session")
def page_server() -> Iterator[Live]:
    with live(make_engine(cache={"num_blocks": 256})) as running:
        yield running


@pytest.fixture
def served(page_server: Live) -> Iterator[Live]:
    gate = page_server.runner.gate
    page_server.runner.reset()
    page_server.engine.core._kv.clear_cache()
    yield page_server
    page_server.runner.gate.set()
    page_server.runner.gate = gate
    page_server.runner.reset()
    page_server.wait_idle()


@pytest.fixture
def pages(browser: Any) -> Iterator[Pages]:
    """Opens pages anywhere; closed at the end, and checked."""
    from browser_page import Pages

    opened = Pages(browser)
    yield opened
    opened.close()


@pytest.fixture
def page(pages: Pages, served: Live) -> Any:
    """The page of a server with a fake model, 1440 x 900."""
    return pages.open(served.base_url)
