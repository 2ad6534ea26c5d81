"""The page for everybody: the key, the keyboard, small screens, themes, contrast."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from browser_page import Pages, Turnstile, answers, expect_answer, say
from helpers.fake_service import make_engine
from helpers.live_server import Live, live
from playwright.sync_api import Page, expect

PHONE = (360, 740)
SIZES = [PHONE, (390, 844), (820, 1180), (1024, 768), (1440, 900)]
MARKDOWN = (
    "# Title\n\n" + "word " * 30 + "\n\n"
    "```python\n" + "x = 'a long line that does not fit' " * 6 + "\n```\n\n"
    "| a | b | c | d | e | f |\n|---|---|---|---|---|---|\n" + "| some long cell " * 6 + "|\n\n"
    "https://example.org/" + "a" * 120 + "\n\n" + "unbroken" * 30
)  # fmt: skip


@pytest.fixture(scope="module")
def locked_server() -> Iterator[Live]:
    with live(make_engine(server={"api_key": ["sesame"]})) as running:
        yield running


@pytest.fixture
def locked(locked_server: Live) -> Live:
    locked_server.runner.reset()
    locked_server.runner.says("come in")
    return locked_server


# --- the key --------------------------------------------------------------------------------------


def give_key(page: Page, key: str, *, remember: bool = False) -> None:
    page.get_by_label("Key", exact=True).fill(key)
    if remember:
        page.get_by_label("Remember it on this device").check()
    page.get_by_role("button", name="Use it").click()


def test_the_page_asks_for_the_key_and_goes_on(pages: Pages, locked: Live) -> None:
    pages.allowed = ("Failed to load resource",)
    page = pages.open(locked.base_url, view="split")
    expect(page.locator("#key-reason")).to_have_text("This server asks for an API key.")
    give_key(page, "wrong")
    expect(page.locator("#key-reason")).to_have_text("The key was not accepted.")
    give_key(page, "sesame")
    expect(page.locator("#key-dialog")).to_be_hidden()
    expect(page.locator("#engine-facts")).to_contain_text("tinyserve")
    expect(page.locator("#engine-error")).to_be_hidden()
    say(page, "Hello")
    expect_answer(page, "come in")
    page.reload()  # kept for the tab
    say(page, "Hello")
    expect_answer(page, "come in")
    other = pages.tab(page.context, locked.base_url)  # and not beyond it
    expect(other.locator("#key-dialog")).to_be_visible()
    give_key(other, "sesame", remember=True)
    expect(other.locator("#model-name")).not_to_have_text("connecting…")
    third = pages.tab(page.context, locked.base_url)
    say(third, "Hello")
    expect_answer(third, "come in")
    third.get_by_role("button", name="API key").click()
    third.get_by_role("button", name="Forget the key").click()
    expect(third.locator("#key-reason")).to_have_text("This server asks for an API key.")
    assert third.evaluate("JSON.stringify([localStorage, sessionStorage])").count("sesame") == 0


def test_a_key_refused_later_is_asked_for_and_the_message_is_sent(
    pages: Pages, locked: Live
) -> None:
    pages.allowed = ("Failed to load resource",)
    page = pages.open(locked.base_url)
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#model-name")).to_have_text("key needed")
    say(page, "Hello")
    give_key(page, "sesame")
    expect_answer(page, "come in")
    expect(page.locator(".message")).to_have_count(2)


def test_without_a_key_the_message_can_be_tried_again(pages: Pages, locked: Live) -> None:
    pages.allowed = ("Failed to load resource",)
    page = pages.open(locked.base_url)
    expect(page.locator("#key-dialog")).to_be_visible()
    page.keyboard.press("Escape")
    say(page, "Hello")
    expect(page.locator("#key-dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(answers(page).locator(".error")).to_contain_text("asks for an API key")
    page.get_by_role("button", name="Try again").click()
    give_key(page, "ключ")  # a header cannot hold it
    expect(answers(page).locator(".error")).to_contain_text("cannot be sent")
    page.get_by_role("button", name="Try again").click()
    give_key(page, "sesame")
    expect_answer(page, "come in")


# --- the keyboard ---------------------------------------------------------------------------------


def focused(page: Page) -> str:
    name: str = page.evaluate("document.activeElement.id || document.activeElement.tagName")
    return name


def test_by_keyboard_alone(page: Page, served: Live) -> None:
    served.runner.says("fine " * 40)
    skip = page.locator(".skip")
    for _ in range(30):
        page.keyboard.press("Shift+Tab")
        if skip.evaluate("(link) => link === document.activeElement"):
            break
    assert skip.evaluate("(link) => link.getBoundingClientRect().top") >= 0  # it comes into sight
    page.keyboard.press("Enter")
    assert focused(page) == "prompt"
    page.keyboard.type("first line")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("second line")
    served.runner.gate = Turnstile(20)
    page.keyboard.press("Enter")
    expect(page.locator(".message.user .body")).to_have_text("first line\nsecond line")
    expect(answers(page).locator(".body")).to_contain_text("fine")
    page.keyboard.press("Escape")
    expect(answers(page).locator(".stats")).to_contain_text("stopped")
    served.runner.gate.set()
    assert focused(page) == "prompt"
    page.get_by_role("button", name="Settings").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#settings")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#settings")).to_be_hidden()
    assert focused(page) == "settings-open"


def test_everything_that_acts_can_be_reached_and_has_a_name(page: Page, served: Live) -> None:
    served.runner.says("fine\n```\ncode\n```")
    say(page, "Hello")
    expect(answers(page)).to_have_attribute("aria-busy", "false")
    page.get_by_role("link", name="Both").click()
    expect(page.locator("#engine-facts")).to_contain_text("tinyserve")
    unnamed = page.evaluate(
        """() => [...document.querySelectorAll("button, a, input, select, textarea, [tabindex]")]
            .filter((each) => each.checkVisibility() && !(each.ariaLabel || each.textContent.trim()
              || each.labels?.length || each.id === "engine"))
            .map((each) => each.outerHTML)"""
    )
    assert not unnamed
    page.evaluate("document.activeElement.blur()")
    reached = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.add(
            page.evaluate("document.activeElement.id || document.activeElement.textContent")
        )
    for name in ("theme", "settings-open", "new-chat", "prompt", "pause", "messages", "Copy"):
        assert name in reached
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    page.locator("#theme").focus()
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Tab")
    assert page.evaluate(outline) != "none"


def test_a_stream_is_announced_once_it_is_whole(page: Page, served: Live) -> None:
    log = page.get_by_role("log")
    expect(log).to_have_attribute("aria-label", "Messages")
    served.runner.says("fine " * 40)
    served.runner.gate = Turnstile(20)
    say(page, "Hello")
    expect(answers(page).locator(".body")).to_contain_text("fine")
    expect(answers(page)).to_have_attribute("aria-busy", "true")
    served.runner.gate.set()
    expect(answers(page)).to_have_attribute("aria-busy", "false")
    expect(page.locator("#announcer")).to_have_text(re.compile(r"^Answer complete, \d+ tokens\.$"))


# --- sizes and themes -----------------------------------------------------------------------------

OVERFLOW = """() => {
  const wide = document.documentElement.clientWidth;
  const keeps = (node) => ["auto", "scroll", "hidden"].includes(getComputedStyle(node).overflowX);
  const isKept = (node) => node && (keeps(node) || isKept(node.parentElement));
  const out = [...document.querySelectorAll("body *")].filter((each) => each.checkVisibility()
    && each.getBoundingClientRect().right > wide + 1 && !isKept(each.parentElement));
  const homes = [...document.querySelectorAll("html, #messages, #engine, #chat")];
  const moving = homes.filter((each) => each.scrollWidth > each.clientWidth + 1);
  return [...out, ...moving].map((each) => each.id || each.outerHTML.slice(0, 80));
}"""


@pytest.mark.parametrize("size", SIZES, ids=lambda size: str(size[0]))
def test_nothing_scrolls_sideways(pages: Pages, served: Live, size: tuple[int, int]) -> None:
    served.runner.says(MARKDOWN)
    page = pages.open(served.base_url, size=size)
    assert page.evaluate(OVERFLOW) == []
    say(page, "An answer with " + "everything" * 12)
    expect(answers(page)).to_have_attribute("aria-busy", "false")
    assert page.evaluate(OVERFLOW) == []
    page.get_by_role("link", name="Engine").click()
    expect(page.locator("#engine-facts")).to_contain_text("tinyserve")
    assert page.evaluate(OVERFLOW) == []
    page.get_by_role("link", name="Chat").click()
    page.get_by_role("button", name="Settings").or_(page.locator("#settings-open")).first.click()
    assert page.evaluate(OVERFLOW) == []


def test_a_phone_has_one_view_at_a_time_and_the_list_over_it(pages: Pages, served: Live) -> None:
    served.runner.says("fine")
    page = pages.open(served.base_url, view="split", size=PHONE, has_touch=True, is_mobile=True)
    expect(page.locator("#chat")).to_be_visible()
    expect(page.locator("#engine")).to_be_hidden()
    expect(page.get_by_role("link", name="Both")).to_be_hidden()
    say(page, "Hello from a phone")
    expect_answer(page, "fine")
    expect(page.locator("#history")).to_be_hidden()
    page.get_by_role("button", name="Conversations").click()
    expect(page.locator("#history")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#history")).to_be_hidden()
    page.get_by_role("button", name="Conversations").click()
    page.get_by_role("button", name="Hello from a phone", exact=True).click()
    expect(page.locator("#history")).to_be_hidden()
    page.get_by_role("link", name="Engine").click()
    expect(page.locator("#engine")).to_be_visible()
    expect(page.locator("#chat")).to_be_hidden()
    boxes = page.evaluate(
        """() => [...document.querySelectorAll("header a, header button")]
            .filter((each) => each.checkVisibility())
            .map((each) => each.getBoundingClientRect().height)"""
    )
    assert min(boxes) >= 24  # WCAG 2.2, 2.5.8


BACKGROUND = "getComputedStyle(document.body).backgroundColor"


def brightness(page: Page) -> float:
    red, green, blue = map(int, re.findall(r"\d+", page.evaluate(BACKGROUND))[:3])
    return (red + green + blue) / 765


def test_the_theme_follows_the_system_until_one_is_chosen(pages: Pages, served: Live) -> None:
    page = pages.open(served.base_url, color_scheme="dark")
    assert brightness(page) < 0.3
    page.emulate_media(color_scheme="light")
    assert brightness(page) > 0.7
    button = page.locator("#theme")
    for theme, is_bright in (("light", True), ("dark", False)):
        button.click()
        expect(button).to_have_attribute("aria-label", f"Theme: {theme}. Change")
        assert (brightness(page) > 0.5) == is_bright
    page.reload()
    assert brightness(page) < 0.3
    button.click()
    assert brightness(page) > 0.7


CONTRAST = """() => {
  const pen = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {
    pen.clearRect(0, 0, 1, 1);
    pen.fillStyle = colour;
    pen.fillRect(0, 0, 1, 1);
    return [...pen.getImageData(0, 0, 1, 1).data];
  };
  const linear = (value) => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  const sum = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const light = (colour) => sum(colour.map((value) => value / 255));
  const ground = (node) => {
    for (; node; node = node.parentElement) {
      const colour = rgba(getComputedStyle(node).backgroundColor);
      if (colour[3] === 255) return colour;
    }
    return [255, 255, 255];
  };
  const poor = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const { parentElement: home, textContent } = walker.currentNode;
    if (!textContent.trim() || !home.checkVisibility()) continue;
    if (home.closest("template, .visually-hidden, :disabled")) continue;
    const style = getComputedStyle(home);
    const a = light(rgba(home instanceof SVGElement ? style.fill : style.color));
    const b = light(ground(home));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) poor.push(`${ratio.toFixed(2)} ${textContent.trim().slice(0, 40)}`);
  }
  return poor;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out(pages: Pages, served: Live, scheme: Any) -> None:
    """WCAG 2.2, 1.4.3: at least 4.5 to 1, for everything on the page."""
    served.runner.says(
        "# a\n> quote\n\n**b** `c` [d](https://e.org)\n\n- e\n\n| f |\n|-|\n| g |\n\n```py\nh\n```"
    )
    page = pages.open(served.base_url, view="split", color_scheme=scheme)
    assert page.evaluate(CONTRAST) == []
    say(page, "Hello")
    expect(answers(page)).to_have_attribute("aria-busy", "false")
    page.route("**/v1/chat/completions", lambda route: route.fulfill(body=""), times=1)
    say(page, "Fail")
    expect(answers(page).last.locator(".error")).to_be_visible()
    expect(page.locator("#engine-facts")).to_contain_text("tinyserve")
    assert page.evaluate(CONTRAST) == []
    page.get_by_role("button", name="Settings").click()
    assert page.evaluate(CONTRAST) == []


def test_who_wants_less_movement_gets_none(page: Page, served: Live) -> None:
    served.runner.says("fine " * 40)
    served.runner.gate = Turnstile(20)
    say(page, "Hello")
    expect(answers(page).locator(".body")).to_contain_text("fine")
    assert page.evaluate("document.getAnimations().length") == 0
    page.emulate_media(reduced_motion="no-preference")
    assert page.evaluate("document.getAnimations().length") > 0  # the cursor
    page.keyboard.press("Escape")


def test_the_page_works_below_a_proxys_prefix(pages: Pages, served: Live) -> None:
    """Every address of the page is relative."""
    page = pages.open("about:blank")

    def forward(route: Any) -> None:
        route.continue_(url=route.request.url.replace("/deep/prefix/", "/"))

    page.route("**/deep/prefix/**", forward)
    served.runner.says("fine")
    page.goto(f"{served.base_url}/deep/prefix/#chat")
    say(page, "Hello")
    expect_answer(page, "fine")
