"""The live view of the engine in a browser: what it shows is what the engine says."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from browser_page import Pace, Pages, say
from helpers.live_server import Live
from playwright.sync_api import Page, Route, expect

LONG = "word " * 200
LATENCY = {"p50": 0.0123, "p99": 1.5, "count": 9}


def a_state(**changes: Any) -> dict[str, Any]:
    """A state with two requests that share a block; keys of `changes` replace whole entries."""
    rows = [
        {
            "id": f"request-{name}-0123456789",
            "choice": choice,
            "client": "id:somebody",
            "state": state,
            "priority": 0,
            "prompt_tokens": 40,
            "output_tokens": 7,
            "computed_tokens": computed,
            "cached_tokens": 10,
            "num_blocks": 2,
            "age_s": 75.2,
        }
        for name, choice, state, computed in (("a", 0, "waiting", 20), ("b", 1, "running", 47))
    ]
    state: dict[str, Any] = {
        "model": "m", "version": "1.2.3", "fingerprint": "ts1-abc", "time": 1000.0,
        "uptime_s": 3700, "kernels": "avx2", "threads": 2,
        "settings": {"max_num_seqs": 16, "max_num_batched_tokens": 512, "max_model_len": 4096,
                     "block_size": 16, "policy": "continuous", "kv_cache_dtype": "f16",
                     "prefix_caching": True},
        "queue": {"depth": 3, "waiting": 1, "running": 1, "swapped": 0},
        "requests": rows, "num_requests": 5,
        "blocks": {"total": 8, "block_size": 16, "free": 3, "cached": 2, "swap_total": 4,
                   "swap_used": 1, "owners": [0, 0, 1, -2, -2, -1, -1, -1],
                   "refs": [2, 1, 1, 0, 0, 0, 0, 0]},
        "counters": {"steps": 100, "prompt_tokens": 1000, "generation_tokens": 500,
                     "prefix_query_tokens": 200, "prefix_hit_tokens": 50, "preemptions_swap": 2,
                     "preemptions_recompute": 1, "cow_copies": 4, "swapped_out_blocks": 3,
                     "swapped_in_blocks": 3, "draft_tokens": 10, "accepted_tokens": 5,
                     "requests": {"stop": 3, "length": 1, "abort": 0, "error": 0}},
        "latency": {"ttft_s": LATENCY, "inter_token_s": {"p50": None, "p99": None, "count": 0}},
    }  # fmt: skip
    return {**state, **changes}


@pytest.fixture(autouse=True)
def read_back(pages: Pages) -> None:
    pages.allowed = ("willReadFrequently",)  # the browser's advice to who reads a canvas: the tests


class Stub:
    """Answers /engine/state: each time with the next of `states`, the last one for ever."""

    def __init__(self, *states: dict[str, Any]) -> None:
        self.states = list(states)
        self.asked = 0

    def __call__(self, route: Route) -> None:
        self.asked += 1
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        route.fulfill(content_type="application/json", body=json.dumps(state))


SET_HIDDEN = """(value) => {
  Object.defineProperty(document, "hidden", { value, configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
}"""


def until(page: Page, condition: Callable[[], bool]) -> None:
    """Wait, while the page's requests go on being answered."""
    for _ in range(400):
        if condition():
            return
        page.wait_for_timeout(50)
    raise AssertionError("timed out")


def tile(page: Page, label: str) -> Any:
    return page.locator("#tiles > div").filter(has=page.get_by_text(label, exact=True))


def colours(page: Page) -> list[list[int]]:
    """The colour at the middle of each of the first eight cells of the grid."""
    found: list[list[int]] = page.evaluate(
        """() => {
            const canvas = document.querySelector("#blocks canvas");
            const pen = canvas.getContext("2d");
            const scale = canvas.width / canvas.clientWidth;
            const at = (x, y) => [...pen.getImageData(x * scale, y * scale, 1, 1).data.slice(0, 3)];
            return [0, 1, 2, 3, 4, 5, 6, 7].map((i) => at(i * 20 + 4, 4));
        }"""
    )
    return found


@pytest.fixture
def stubbed(pages: Pages, served: Live) -> tuple[Page, Stub]:
    page = pages.open("about:blank")
    stub = Stub(a_state())
    page.route("**/engine/state", stub)
    page.goto(f"{served.base_url}/#engine")
    expect(page.locator("#engine-facts")).to_contain_text("1.2.3")
    return page, stub


def test_real_requests_appear_and_go(page: Page, served: Live) -> None:
    served.runner.says(LONG)
    served.runner.gate = Pace(0.02)
    say(page, "Count.")
    page.get_by_role("link", name="Both").click()
    row = page.locator("#requests tbody tr")
    expect(row).to_have_count(1)
    expect(row.locator(".state")).to_have_text("running")
    expect(tile(page, "Running").locator("dd").first).to_have_text("1")
    expect(page.locator("#num-owned")).not_to_have_text("0")
    expect(page.locator("#pill")).to_contain_text("1 running")
    assert "256 blocks" in (page.locator("#blocks canvas").get_attribute("aria-label") or "")
    page.keyboard.press("Escape")
    expect(row).to_have_count(0)
    expect(page.locator("#num-owned")).to_have_text("0")
    expect(page.locator("#num-cached")).not_to_have_text("0")
    expect(page.locator("#requests-empty")).to_be_visible()


def test_figures(stubbed: tuple[Page, Stub]) -> None:
    page, _ = stubbed
    figures = {
        "Running": ("1", "of 16 seats"), "Waiting": ("4", "3 in the queue"),
        "Swapped": ("0", "1 of 4 blocks"), "Prefix hits": ("25%", "50 tokens"),
        "Preemptions": ("3", "2 swapped, 1 dropped"), "Copies on write": ("4", "blocks"),
    }  # fmt: skip
    for label, (value, note) in figures.items():
        assert tile(page, label).locator("dd").all_inner_texts() == [value, note]
    for name, number in {"owned": "3", "shared": "1", "cached": "2", "free": "3"}.items():
        expect(page.locator(f"#num-{name}")).to_have_text(number)
    facts = page.locator("#engine-facts")
    for text in ("up 1 h 1 m", "avx2, 2 threads", "50% of drafts", "3 stop, 1 length", "ts1-abc"):
        expect(facts).to_contain_text(text)
    expect(page.locator("#chart-ttft figcaption")).to_contain_text("p50 12 ms")
    expect(page.locator("#chart-ttft figcaption")).to_contain_text("p99 1.5 s")
    expect(page.locator("#chart-inter-token figcaption")).to_contain_text("p50 –")
    expect(page.locator("#chart-usage figcaption")).to_contain_text("owned 38%")


def test_the_table(stubbed: tuple[Page, Stub]) -> None:
    page, _ = stubbed
    rows = page.locator("#requests tbody tr")
    cells = [row.locator("td").all_inner_texts() for row in rows.all()]
    assert [[" ".join(text.split()) for text in row] for row in cells] == [  # what runs comes first
        ["request-…89 #1 id:somebody", "running", "40", "7", "2", "75 s"],
        ["request-…89 id:somebody", "waiting", "20 / 40", "7", "2", "75 s"],
    ]
    bars = rows.get_by_role("progressbar")
    assert [bar.get_attribute("aria-valuenow") for bar in bars.all()] == ["100", "50"]
    expect(page.locator("#requests-more")).to_have_text("and 3 more")


def test_the_grid_tells_owners_sharing_cached_and_free_apart(stubbed: tuple[Page, Stub]) -> None:
    page, _ = stubbed
    seen = colours(page)
    first, second, cached, free = seen[0], seen[2], seen[3], seen[5]
    assert seen == [first, first, second, cached, cached, free, free, free]
    assert len({tuple(colour) for colour in (first, second, cached, free)}) == 4
    dots = page.evaluate(
        """() => {
            const canvas = document.querySelector("#blocks canvas");
            const pen = canvas.getContext("2d");
            return [9, 29].map((x) => [...pen.getImageData(x, 9, 1, 1).data].join());
        }"""
    )
    assert dots[0] != dots[1]  # the shared one is marked


def test_a_block_is_read_by_pointer_and_by_keys(stubbed: tuple[Page, Stub]) -> None:
    page, _ = stubbed
    canvas = page.locator("#blocks canvas")
    canvas.hover(position={"x": 10, "y": 10})
    expect(page.locator("#blocks .tip")).to_have_text("Block 0: request-a-0123456789, shared by 2")
    page.mouse.move(0, 0)
    expect(page.locator("#blocks .tip")).to_be_hidden()
    canvas.focus()
    said = page.locator("#blocks [role=status]")
    for key, text in (
        ("ArrowRight", "Block 0: request-a-0123456789, shared by 2"),
        ("ArrowRight", "Block 1: request-a-0123456789"),
        ("ArrowRight", "Block 2: request-b-0123456789, choice 1"),
        ("ArrowRight", "Block 3: cached, nobody's"),
        ("End", "Block 7: free"),
        ("ArrowRight", "Block 7: free"),
        ("Home", "Block 0: request-a-0123456789, shared by 2"),
    ):
        page.keyboard.press(key)
        expect(said).to_have_text(text)
        expect(page.locator("#blocks .tip")).to_have_text(text)


def test_a_request_pointed_at_stands_out_in_the_grid(stubbed: tuple[Page, Stub]) -> None:
    page, _ = stubbed
    before = colours(page)
    page.locator("#requests tbody tr").nth(1).hover()
    marked = colours(page)
    assert marked[:2] == before[:2]
    assert all(now != then for now, then in zip(marked[2:], before[2:], strict=True))
    page.mouse.move(0, 0)
    assert colours(page) == before


def test_rates_come_from_differences_of_counters(pages: Pages, served: Live) -> None:
    page = pages.open("about:blank")
    counters = a_state()["counters"]
    later = {**counters, "steps": 140, "prompt_tokens": 1200, "generation_tokens": 580}
    page.route("**/engine/state", Stub(a_state(), a_state(time=1002.0, counters=later)))
    page.goto(f"{served.base_url}/#engine")
    expect(tile(page, "Generation").locator("dd").first).to_have_text("40")
    expect(tile(page, "Prompt").locator("dd").first).to_have_text("100")
    expect(page.locator("#chart-throughput figcaption")).to_contain_text("generation 40 tok/s")
    figure = page.locator("#chart-throughput svg")
    assert figure.locator("path.line-0").get_attribute("d")
    labels = figure.locator("text").all_text_contents()
    assert {"0", "−1 min", "−30 s", "now"} <= set(labels)
    figure.focus()
    page.keyboard.press("ArrowLeft")
    tip = page.locator("#chart-throughput .tip")
    expect(tip).to_contain_text("generation 40 tok/s, prompt 100 tok/s")


def test_a_server_that_was_started_again_begins_anew(pages: Pages, served: Live) -> None:
    page = pages.open("about:blank")
    fresh = {**a_state()["counters"], "steps": 1, "generation_tokens": 0}
    stub = Stub(a_state(), a_state(time=1001.0, counters=fresh))
    page.route("**/engine/state", stub)
    page.goto(f"{served.base_url}/#engine")
    until(page, lambda: stub.asked >= 2)
    expect(tile(page, "Generation").locator("dd").first).to_have_text("–")


def test_many_blocks_and_few(pages: Pages, served: Live) -> None:
    for total in (1, 100_000):
        page = pages.open("about:blank")
        blocks = {
            **a_state()["blocks"], "total": total, "free": total - 1, "cached": 0,
            "owners": [0] + [-1] * (total - 1), "refs": [1] + [0] * (total - 1),
        }  # fmt: skip
        page.route("**/engine/state", Stub(a_state(blocks=blocks)))
        page.goto(f"{served.base_url}/#engine")
        expect(page.locator("#num-owned")).to_have_text("1")
        seen = colours(page)
        assert seen[0] != [0, 0, 0]
        assert page.locator("#blocks canvas").evaluate("(canvas) => canvas.clientHeight") < 900
        page.close()


def test_errors_slow_it_down_and_it_recovers(pages: Pages, served: Live) -> None:
    pages.allowed += ("Failed to load resource",)
    page = pages.open(served.base_url, view="engine")
    expect(page.locator("#engine-facts")).to_contain_text("tinyserve")
    page.route("**/engine/state", lambda route: route.abort())
    error = page.locator("#engine-error")
    expect(error).to_contain_text("cannot be reached")
    expect(error).to_contain_text("Trying again in 2.0 s")
    expect(page.locator("#pill")).to_contain_text("no connection")
    page.unroute("**/engine/state")
    expect(error).to_be_hidden()
    expect(page.locator("#pill")).to_contain_text("idle")


def test_pause_and_a_hidden_tab_ask_for_nothing(stubbed: tuple[Page, Stub]) -> None:
    page, stub = stubbed
    page.get_by_role("button", name="Pause").click()
    page.wait_for_timeout(300)  # what was under way
    asked = stub.asked
    page.wait_for_timeout(1500)
    assert stub.asked == asked
    page.get_by_role("button", name="Resume").click()
    until(page, lambda: stub.asked > asked)
    page.evaluate(SET_HIDDEN, True)
    page.wait_for_timeout(300)
    asked = stub.asked
    page.wait_for_timeout(1500)
    assert stub.asked == asked
    page.evaluate(SET_HIDDEN, False)
    until(page, lambda: stub.asked > asked)


def test_a_server_without_the_route_is_said_so_once(pages: Pages, served: Live) -> None:
    pages.allowed += ("Failed to load resource",)
    page = pages.open("about:blank")
    asked: list[str] = []

    def refuse(route: Route) -> None:
        asked.append(route.request.url)
        route.fulfill(status=404, body='{"error": {"message": "Not Found"}}')

    page.route("**/engine/state", refuse)
    page.goto(f"{served.base_url}/#engine")
    expect(page.locator("#engine-error")).to_contain_text("does not tell")
    page.wait_for_timeout(1500)
    assert len(asked) <= 2  # once when the page began, at most once more when the model was known


def test_the_view_says_loading_and_then_shows(pages: Pages, served: Live) -> None:
    pages.allowed += ("Failed to load resource",)
    page = pages.open("about:blank")
    body = json.dumps({"error": {"message": "the model is still loading"}})
    for path in ("**/v1/models", "**/engine/state"):
        page.route(path, lambda route: route.fulfill(status=503, body=body), times=1)
    page.goto(f"{served.base_url}/#engine")
    expect(page.locator("#model-name")).to_have_text("loading…")
    models = served.client.get("/v1/models").json()["data"]
    expect(page.locator("#model-name")).to_have_text(models[0]["id"])
    expect(page.locator("#engine-error")).to_be_hidden()
    expect(page.locator("#engine-facts")).to_contain_text("tinyserve")


def test_swapped_and_queued_requests(pages: Pages, served: Live) -> None:
    page = pages.open("about:blank")
    states = ("queued", "swapped", "running", "waiting")
    template = a_state()["requests"][0]
    rows = [{**template, "id": name, "state": name, "num_blocks": 1} for name in states]
    page.route("**/engine/state", Stub(a_state(requests=rows, num_requests=4)))
    page.goto(f"{served.base_url}/#engine")
    expect(page.locator("#requests .state")).to_have_text(
        ["running", "swapped", "waiting", "queued"]
    )
