"""Takes the README's screenshots: `python tests/browser/screenshots.py`.

Of the default model, under a little load. Written to docs/screenshots/. Needs what the tests of the
page need.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tinyserve.pytest_plugin import start_server, stop_server

FOLDER = Path(__file__).parent.parent.parent / "docs" / "screenshots"
SERVER = [
    *("--model", "default", "--served-model-name", "SmolLM2-135M-Instruct"),
    *("--num-blocks", "576", "--max-num-seqs", "12"),
]
TALK = (
    "What is the difference between a list and a tuple in Python? Answer in two sentences.",
    "Give me three tips for a first visit to Lisbon, as a numbered list.",
)
RULES = "You answer briefly and clearly, and you say so where you are not sure. " * 6
QUESTIONS = (
    "Tell me a story about a lighthouse.",
    "How do plants make sugar from light?",
    "List ten rivers of Europe.",
    "What is a prime number?",
    "Write a letter to a friend who has moved to the sea.",
    "Why is the sky blue, and why is the evening red?",
)


@dataclass(frozen=True)
class Shot:
    """One picture: where it is stored, and what is on it."""

    name: str
    view: str
    scheme: str
    size: tuple[int, int]
    scale: float = 1
    is_talk: bool = False


SHOTS = (
    Shot("engine-dark", "engine", "dark", (1440, 900)),
    Shot("both-light", "split", "light", (1440, 900), is_talk=True),
    Shot("phone", "engine", "light", (390, 844)),
)


@contextlib.contextmanager
def load(url: str, *, clients: int) -> Iterator[None]:
    """Clients that ask one question after the other, some with several choices, until the end."""
    over = threading.Event()

    def ask(number: int) -> None:
        draw = random.Random(number)
        headers = {"X-Client-ID": f"team-{number % 5}"}
        with httpx.Client(base_url=url, timeout=120, headers=headers) as client:
            while not over.is_set():
                question = draw.choice(QUESTIONS)
                body = {
                    "messages": [
                        {"role": "system", "content": RULES},
                        {"role": "user", "content": question},
                    ],
                    "max_tokens": draw.choice([60, 150, 400]),
                    "n": draw.choice([1, 1, 3]),
                    "seed": draw.randrange(1 << 31),
                }
                with contextlib.suppress(httpx.HTTPError):
                    client.post("/v1/chat/completions", json=body)
                over.wait(draw.random())

    threads = [threading.Thread(target=ask, args=(i,), daemon=True) for i in range(clients)]
    for thread in threads:
        thread.start()
    yield
    over.set()


def take(browser: Browser, url: str, shot: Shot, folder: Path, seconds: float) -> None:
    width, height = shot.size
    page = browser.new_page(
        viewport={"width": width, "height": height},
        color_scheme=shot.scheme,
        device_scale_factor=shot.scale,
    )
    if shot.is_talk:
        page.goto(f"{url}/#chat")
        talk(page)
    page.goto(f"{url}/#{shot.view}")
    page.mouse.move(0, 0)
    time.sleep(1 if shot.is_talk else seconds)  # charts fill
    page.screenshot(path=folder / f"{shot.name}.png")
    page.close()


def talk(page: Page) -> None:
    for label, value in (("Seed", "8"), ("Temperature", "0.2"), ("Most tokens", "200")):
        page.locator("#settings-open").click()
        page.get_by_label(label).fill(value)
        page.get_by_role("button", name="Done").click()
    for number, question in enumerate(TALK):
        page.get_by_label("Message", exact=True).fill(question)
        page.keyboard.press("Enter")
        answer = page.locator(".message.assistant").nth(number)
        expect(answer).to_have_attribute("aria-busy", "false", timeout=120_000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--seconds", type=float, default=75, help="of load before the pictures")
    parser.add_argument("--clients", type=int, default=7)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as logs:
        process, url = start_server(SERVER, Path(logs) / "server.log")
        try:
            with sync_playwright() as playwright, load(url, clients=arguments.clients):
                browser = playwright.chromium.launch(
                    executable_path=shutil.which("chromium"),
                    args=["--headless", "--no-sandbox", "--disable-gpu"],
                )
                for shot in SHOTS:
                    take(browser, url, shot, arguments.folder, arguments.seconds)
                browser.close()
        finally:
            stop_server(process)


if __name__ == "__main__":
    main()
