"""What the tests of the page do to it: open it, say something, read the answer."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Any

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Locator, Page, expect

# Reported to the console by the browser itself; a broken policy also is an error there.
WATCH_POLICY = """
addEventListener("securitypolicyviolation", (event) => {
  console.error(`policy: ${event.violatedDirective} ${event.blockedURI}`);
});
"""


expect.set_options(timeout=20_000)  # a hang guard; machines that test are busy


@dataclass
class Pages:
    """Pages that one test has opened, and what they complained of."""

    browser: Browser
    allowed: tuple[str, ...] = ()  # complaints that the test provokes
    contexts: list[BrowserContext] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def open(
        self, url: str, *, view: str = "chat", size: tuple[int, int] = (1440, 900), **options: Any
    ) -> Page:
        context = self.browser.new_context(
            viewport={"width": size[0], "height": size[1]}, reduced_motion="reduce", **options
        )
        context.add_init_script(WATCH_POLICY)
        context.set_default_timeout(15_000)
        self.contexts.append(context)
        return self.tab(context, url, view)

    def tab(self, context: BrowserContext, url: str, view: str = "chat") -> Page:
        page = context.new_page()
        page.on("console", self._note)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        if url != "about:blank":
            page.goto(f"{url}/#{view}")
        return page

    def close(self) -> None:
        for context in self.contexts:
            context.close()
        unexpected = [
            text for text in self.complaints if not any(known in text for known in self.allowed)
        ]
        assert not unexpected

    def _note(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)


class Pace(threading.Event):
    """A gate for `SpeakingRunner` at which each step takes a moment, so that streams last."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def wait(self, timeout: float | None = None) -> bool:
        time.sleep(self.seconds)
        return True


class Turnstile(threading.Event):
    """A gate for `SpeakingRunner` that lets some steps through, then none until it is set."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self._steps = threading.Semaphore(steps)

    def set(self) -> None:
        super().set()
        self._steps.release(1_000_000)

    def wait(self, timeout: float | None = None) -> bool:
        return self._steps.acquire(timeout=timeout)


def say(page: Page, text: str) -> None:
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")


def answers(page: Page) -> Locator:
    return page.locator(".message.assistant")


def expect_answer(page: Page, text: str, index: int = -1) -> Locator:
    """Wait until the answer is whole and is `text`."""
    answer = answers(page).nth(index) if index >= 0 else answers(page).last
    expect(answer).to_have_attribute("aria-busy", "false")
    expect(answer.locator(".body")).to_have_text(text)
    return answer
