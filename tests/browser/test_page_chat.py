"""The chat in a browser: round trips, stopping, editing, settings, what is kept."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from browser_page import Pages, Turnstile, answers, expect_answer, say
from helpers.live_server import Live, wait_for
from playwright.sync_api import Page, Request, Route, expect

LONG = "one two three four five six seven eight nine ten " * 5


def sent(page: Page) -> list[dict[str, Any]]:
    """The bodies of the chat requests that the page makes from now on."""
    bodies: list[dict[str, Any]] = []

    def note(request: Request) -> None:
        if request.url.endswith("/v1/chat/completions"):
            bodies.append(json.loads(request.post_data or ""))

    page.on("request", note)
    return bodies


def answered_with(**reply: Any) -> Callable[[Route], None]:
    """What the server is made to answer instead of its own."""
    return lambda route: route.fulfill(**reply)


@pytest.fixture(autouse=True)
def provoked(pages: Pages) -> None:
    pages.allowed = ("Failed to load resource",)  # the console's word for a refused request


def test_an_answer_streams_and_its_figures_are_shown(page: Page, served: Live) -> None:
    served.runner.says(LONG)
    served.runner.gate = Turnstile(30)
    say(page, "Count.")
    expect(page.locator(".message.user .body")).to_have_text("Count.")
    answer = answers(page)
    expect(answer).to_have_attribute("aria-busy", "true")
    expect(answer.locator(".body")).to_contain_text("one two")
    assert len(answer.locator(".body").inner_text()) < len(LONG.strip())  # long before its end
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    served.runner.gate.set()
    answer = expect_answer(page, LONG.strip())
    for part in ("tok/s", "first token", " in", " out"):
        expect(answer.locator(".stats")).to_contain_text(part)
    expect(page.get_by_role("button", name="Stop")).to_be_hidden()
    expect(page.locator("#announcer")).to_contain_text("Answer complete")
    models = served.client.get("/v1/models").json()["data"]
    expect(page.locator("#model-name")).to_have_text(models[0]["id"])


def test_the_figures_are_the_servers(page: Page, served: Live) -> None:
    served.runner.says("some words to count")
    for expected_cached in (False, True):
        page.get_by_role("button", name="New chat").click()
        say(page, "The same question, long enough for a few blocks of the cache.")
        text = expect_answer(page, "some words to count").locator(".stats").inner_text()
        whole = served.chat("The same question, long enough for a few blocks of the cache.")
        usage = whole["usage"]
        assert f"{usage['completion_tokens']} out" in text
        assert f"{usage['prompt_tokens']} in" in text
        assert ("cached" in text) == expected_cached


@pytest.mark.parametrize("way", ["button", "escape"])
def test_stop_keeps_the_text_and_frees_the_request(page: Page, served: Live, way: str) -> None:
    served.runner.says(LONG)
    served.runner.gate = Turnstile(30)
    say(page, "Count.")
    expect(answers(page).locator(".body")).to_contain_text("one two")
    if way == "button":
        page.get_by_role("button", name="Stop").click()
    else:
        page.keyboard.press("Escape")
    expect(answers(page)).to_have_attribute("aria-busy", "false")
    expect(answers(page).locator(".stats")).to_contain_text("stopped")
    served.runner.gate.set()
    wait_for(lambda: served.bridge.num_open == 0)
    served.wait_idle()
    text = answers(page).locator(".body").inner_text()
    assert text
    assert LONG.startswith(text)
    assert len(text) < len(LONG.strip())
    served.runner.reset()
    served.runner.says("fine")
    say(page, "And now?")
    expect_answer(page, "fine")


def test_a_request_that_waits_can_be_stopped(page: Page, served: Live) -> None:
    served.runner.gate.clear()
    say(page, "Hello")
    expect(answers(page)).to_have_class("message assistant running thinking")
    page.get_by_role("button", name="Stop").click()
    expect(answers(page)).to_have_attribute("aria-busy", "false")
    served.runner.gate.set()
    wait_for(lambda: served.bridge.num_open == 0)


def test_the_whole_conversation_is_sent_but_not_what_failed(page: Page, served: Live) -> None:
    bodies = sent(page)
    served.runner.says("first answer")
    say(page, "one")
    expect_answer(page, "first answer")
    page.route("**/v1/chat/completions", lambda route: route.abort(), times=1)
    say(page, "lost")
    expect(answers(page).last.locator(".error")).to_contain_text("cannot be reached")
    served.runner.says("third answer")
    say(page, "three")
    expect_answer(page, "third answer")
    assert bodies[-1]["messages"] == [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "first answer"},
        {"role": "user", "content": "three"},
    ]
    assert bodies[-1]["stream_options"]["include_usage"] is True


def test_a_message_can_be_edited_and_sent_again(page: Page, served: Live) -> None:
    bodies = sent(page)
    for question, answer in (("first", "alpha"), ("second", "beta")):
        served.runner.says(answer)
        say(page, question)
        expect_answer(page, answer)
    served.runner.says("gamma")
    message = page.locator(".message.user").first
    message.hover()
    message.get_by_role("button", name="Edit").click()
    box = page.get_by_label("Edit the message")
    expect(box).to_have_value("first")
    box.press("Escape")  # and thought better of it
    expect(message.locator(".body")).to_be_visible()
    message.get_by_role("button", name="Edit").click()
    box.fill("changed")
    box.press("Enter")
    expect_answer(page, "gamma")
    expect(page.locator(".message")).to_have_count(2)
    assert bodies[-1]["messages"] == [{"role": "user", "content": "changed"}]


def test_an_answer_can_be_asked_for_again(page: Page, served: Live) -> None:
    served.runner.says("alpha")
    say(page, "Hello")
    expect_answer(page, "alpha")
    served.runner.says("beta")
    answers(page).get_by_role("button", name="Again", exact=True).click()
    expect_answer(page, "beta")
    expect(page.locator(".message")).to_have_count(2)


def test_a_cut_answer_goes_on_where_it_stopped(page: Page, served: Live) -> None:
    bodies = sent(page)
    served.runner.says("alpha beta gamma")
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Most tokens").fill("3")
    page.get_by_role("button", name="Done").click()
    say(page, "Hello")
    answer = answers(page)
    expect(answer.locator(".stats")).to_contain_text("cut at the token limit")
    before = answer.locator(".body").inner_text()
    served.runner.says(" and on")
    answer.get_by_role("button", name="Go on").click()
    expect(answer.locator(".body")).to_contain_text(before)
    expect(answer).to_have_attribute("aria-busy", "false")
    wait_for(lambda: len(bodies) == 2)
    assert bodies[-1]["continue_final_message"] is True
    assert bodies[-1]["messages"][-1] == {"role": "assistant", "content": before}
    assert len(answer.locator(".body").inner_text()) > len(before)


def test_settings_are_sent_and_kept_and_bad_ones_are_not(page: Page, served: Live) -> None:
    bodies = sent(page)
    served.runner.says("fine")
    expect(page.locator("[name=temperature]")).to_have_attribute("placeholder", "0.2")
    say(page, "none set")
    expect_answer(page, "fine")
    names = {"temperature", "top_p", "top_k", "min_p", "max_tokens", "seed", "stop"}
    suited = {"temperature": 0.2, "top_p": 0.9}  # what suits the default model
    assert {name: bodies[0][name] for name in names & set(bodies[0])} == suited
    page.get_by_role("button", name="Settings").click()
    values = {
        "Temperature": "0.5", "Top p": "0.9", "Top k": "40", "Min p": "0.05", "Most tokens": "50",
        "Seed": "7", "Repetition penalty": "1.1", "System prompt": "Be brief.",
        "Stop strings": "END\n\\n\\n",
    }  # fmt: skip
    for label, value in values.items():
        page.get_by_label(label).fill(value)
    page.get_by_role("button", name="Done").click()
    page.reload()
    say(page, "all set")
    expect_answer(page, "fine")
    body = bodies[-1]
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    wanted = {
        "temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.05, "max_tokens": 50, "seed": 7,
        "repetition_penalty": 1.1, "stop": ["END", "\n\n"],
    }  # fmt: skip
    assert {name: body[name] for name in wanted} == wanted
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Temperature").fill("9")
    page.get_by_role("button", name="Done").click()
    expect(page.locator("#settings")).to_be_visible()  # the form shows what is wrong
    page.get_by_role("button", name="Clear all").click()
    page.get_by_role("button", name="Done").click()
    say(page, "cleared")
    expect_answer(page, "fine", index=1)
    assert {name: bodies[-1][name] for name in names & set(bodies[-1])} == suited


def test_conversations_are_kept_in_the_browser(page: Page, served: Live) -> None:
    served.runner.says("**kept**")
    say(page, "Remember me")
    expect_answer(page, "kept")
    page.get_by_role("button", name="New chat").click()
    expect(page.locator(".message")).to_have_count(0)
    expect(page.locator("#welcome")).to_be_visible()
    page.reload()
    expect(page.locator(".message")).to_have_count(0)
    page.get_by_role("button", name="Remember me", exact=True).click()
    expect_answer(page, "kept")
    expect(answers(page).locator("strong")).to_have_text("kept")
    page.get_by_role("button", name="Delete Remember me").click()
    page.get_by_role("button", name="Delete?").or_(page.locator(".sure")).click()
    expect(page.locator("#conversations li")).to_have_count(0)
    expect(page.locator(".message")).to_have_count(0)
    page.reload()
    expect(page.locator("#conversations li")).to_have_count(0)


def test_leaving_keeps_what_came(page: Page, served: Live) -> None:
    served.runner.says(LONG)
    served.runner.gate = Turnstile(30)
    say(page, "Half a story")
    expect(answers(page).locator(".body")).to_contain_text("one two")
    page.reload()
    served.runner.gate.set()
    page.get_by_role("button", name="Half a story", exact=True).click()
    expect(answers(page).locator(".body")).to_contain_text("one two")
    expect(answers(page).locator(".stats")).to_contain_text("stopped")
    expect(answers(page).get_by_role("button", name="Go on")).to_be_visible()
    wait_for(lambda: served.bridge.num_open == 0)


def test_two_conversations_are_answered_at_once(page: Page, served: Live) -> None:
    served.runner.says(LONG)
    served.runner.gate = Turnstile(30)
    say(page, "The first")
    expect(answers(page).locator(".body")).to_contain_text("one")
    page.get_by_role("button", name="New chat").click()
    say(page, "The second")
    wait_for(lambda: served.bridge.num_open == 2)
    served.runner.gate.set()
    expect_answer(page, LONG.strip())
    page.get_by_role("button", name="The first", exact=True).click()
    expect_answer(page, LONG.strip())


def test_a_conversation_goes_on_in_another_tab(pages: Pages, page: Page, served: Live) -> None:
    served.runner.says("fine")
    say(page, "One")
    expect_answer(page, "fine")
    other = pages.tab(page.context, served.base_url)
    other.get_by_role("button", name="One", exact=True).click()
    expect_answer(other, "fine")
    say(page, "Two")
    expect(other.locator(".message.user .body")).to_have_text(["One", "Two"])
    expect_answer(other, "fine", index=1)
    say(other, "Three")
    expect(page.locator(".message.user .body")).to_have_text(["One", "Two", "Three"])
    expect_answer(page, "fine", index=2)
    page.reload()
    page.get_by_role("button", name="One", exact=True).click()
    expect(page.locator(".message")).to_have_count(6)


def test_a_deleted_conversation_does_not_come_back(page: Page, served: Live) -> None:
    served.runner.says("short")
    say(page, "Short lived")
    expect_answer(page, "short")
    served.runner.says(LONG)
    served.runner.gate = Turnstile(30)
    say(page, "More")
    expect(answers(page).last.locator(".body")).to_contain_text("one")
    page.get_by_role("button", name="Delete Short lived").click()
    page.locator(".sure").click()
    expect(page.locator(".message")).to_have_count(0)
    served.runner.gate.set()
    wait_for(lambda: served.bridge.num_open == 0)
    expect(page.locator("#conversations li")).to_have_count(0)


def test_old_conversations_make_room(page: Page) -> None:
    kept = page.evaluate(
        """async () => {
            const store = await import("/web/store.js");
            const big = "x".repeat(150_000);
            for (let i = 0; i < 80; i += 1) {
              const conversation = store.newConversation();
              conversation.title = String(i);
              conversation.messages = [{ role: "user", content: i % 3 ? "small" : big }];
              if (!store.saveConversation(conversation)) return "not kept";
              await new Promise((resolve) => setTimeout(resolve, 2)); // `updated` tells them apart
            }
            return store.conversations().map(({ title }) => title);
        }"""
    )
    assert kept[0] == "79"
    assert 10 < len(kept) <= 50
    assert kept == [str(number) for number in range(79, 79 - len(kept), -1)]


def test_storage_full_of_nonsense_is_no_trouble(pages: Pages, served: Live) -> None:
    served.runner.says("fine")
    page = pages.open(served.base_url)
    page.evaluate(
        """() => {
            for (const value of ["{", "null", "7", "[]", '{"id": 1}',
                                 '{"id": "a", "updated": 1, "messages": [{}]}'])
              localStorage.setItem(`tinyserve.chat.${value.length}`, value);
            for (const name of ["settings", "theme", "view"])
              localStorage.setItem(`tinyserve.${name}`, "[1");
        }"""
    )
    page.reload()
    expect(page.locator("#conversations li")).to_have_count(0)
    say(page, "Hello")
    expect_answer(page, "fine")


def test_without_storage_the_page_says_so_and_works(pages: Pages, served: Live) -> None:
    served.runner.says("fine")
    page = pages.open(served.base_url)
    page.context.add_init_script(
        "Storage.prototype.setItem = () => { throw new DOMException('no', 'QuotaExceededError'); };"
        "Storage.prototype.getItem = () => { throw new DOMException('no', 'SecurityError'); };"
    )
    page.reload()
    say(page, "Hello")
    expect_answer(page, "fine")
    expect(page.locator("#not-kept")).to_be_visible()


def test_copying(page: Page, served: Live) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    served.runner.says("Say\n```python\nprint(1)\n```")
    say(page, "Code, please")
    expect(answers(page).locator("pre")).to_have_text("print(1)")
    expect(answers(page)).to_have_attribute("aria-busy", "false")
    page.get_by_role("button", name="Copy python").click()
    expect(page.locator(".copy")).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == "print(1)"
    page.locator(".copy").dblclick()
    expect(page.locator(".copy")).to_have_text(
        "Copy"
    )  # after a while, however often it was pressed
    answers(page).get_by_role("button", name="Copy", exact=True).click()
    expect(page.locator("#announcer")).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == "Say\n```python\nprint(1)\n```"


# The Enter that takes up what an input method proposes, as Chromium and Firefox tell of it, and as
# Safari does: once the composition has ended.
COMPOSED = [{"isComposing": True}, {"keyCode": 229}]


@pytest.mark.parametrize("how", COMPOSED, ids=["composing", "safari"])
def test_an_input_methods_enter_sends_nothing(
    page: Page, served: Live, how: dict[str, Any]
) -> None:
    event = {"key": "Enter", "bubbles": True, "cancelable": True, **how}
    served.runner.says("fine")
    box = page.get_by_label("Message", exact=True)
    box.fill("かんじ")
    box.dispatch_event("keydown", event)
    expect(box).to_have_value("かんじ")
    expect(page.locator(".message")).to_have_count(0)
    page.keyboard.press("Enter")
    expect_answer(page, "fine")
    page.get_by_role("button", name="Edit", exact=True).click()
    edited = page.get_by_label("Edit the message")
    edited.fill("漢字")
    edited.dispatch_event("keydown", event)
    expect(edited).to_have_value("漢字")
    edited.press("Enter")
    expect(page.locator(".message.user .body")).to_have_text("漢字")
    expect_answer(page, "fine")


ERRORS = [
    (400, {"message": "temperature must be cold"}, {}, "temperature must be cold"),
    (429, {"message": "full"}, {"Retry-After": "7"}, "about 7 s"),
    (503, {"message": "the model is still loading"}, {}, "still loading"),
    (500, {"message": "internal server error"}, {}, "The server failed"),
    (408, {"message": "too long"}, {}, "took too long"),
]


def test_errors_in_plain_words_and_another_try(page: Page, served: Live) -> None:
    served.runner.says("now it works")
    for status, error, headers, words in ERRORS:
        reply = {"status": status, "headers": headers, "body": json.dumps({"error": error})}
        page.route("**/v1/chat/completions", answered_with(**reply), times=1)
        page.get_by_role("button", name="New chat").click()
        say(page, "Hello")
        expect(answers(page).locator(".error")).to_contain_text(words)
        page.get_by_role("button", name="Try again").click()
        expect_answer(page, "now it works")
        expect(page.locator(".message")).to_have_count(2)


def test_the_servers_own_refusal_is_shown(page: Page, served: Live) -> None:
    say(page, "far too long for this model " * 200)
    expect(answers(page).locator(".error")).to_contain_text("The request was refused:")
    served.runner.says("fine")
    say(page, "short")
    expect_answer(page, "fine")


STREAMS = {
    "an error event": 'data: {"choices":[{"index":0,"delta":{"content":"half"}}]}\n\n'
    'data: {"error":{"message":"the engine died"}}\n\n',
    "an end that is none": 'data: {"choices":[{"index":0,"delta":{"content":"half"}}]}\n\n',
    "an event cut in two": 'data: {"choices":[{"index":0,"delta":{"content":"half"}}]}\n\n'
    'data: {"cho',
}


def test_a_broken_stream_never_looks_complete(page: Page) -> None:
    for body in STREAMS.values():
        page.route("**/v1/chat/completions", answered_with(body=body), times=1)
        page.get_by_role("button", name="New chat").click()
        say(page, "Hello")
        expect(answers(page).locator(".error")).to_contain_text("The answer broke off")
        expect(answers(page).locator(".body")).to_have_text("half")


# A connection that breaks in the midst of an answer, as when the server is killed.
BREAK_OFF = """() => {
  const real = window.fetch;
  const said = 'data: {"choices":[{"index":0,"delta":{"content":"half"}}]}\\n\\n';
  const body = () => new ReadableStream({
    start: (control) => control.enqueue(new TextEncoder().encode(said)),
    pull: (control) => setTimeout(() => control.error(new TypeError("network error")), 100),
  }, { highWaterMark: 0 });
  window.fetch = async (path, options) =>
    path.endsWith("chat/completions") ? new Response(body()) : real(path, options);
}"""


def test_a_lost_connection_is_called_one(page: Page) -> None:
    page.evaluate(BREAK_OFF)
    say(page, "Hello")
    error = answers(page).locator(".error")
    expect(error).to_contain_text("The answer broke off: the connection to the server was lost.")
    expect(answers(page).locator(".body")).to_have_text("half")


def test_reasoning_and_tool_calls_are_shown_folded(page: Page) -> None:
    deltas: list[dict[str, Any]] = [
        {"role": "assistant", "content": ""},
        {"reasoning_content": "First I "},
        {"reasoning_content": "think."},
        {"content": "Then I speak."},
        {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "look", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"at": '}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '"<b>"}'}}]},
    ]
    lines = [json.dumps({"choices": [{"index": 0, "delta": delta}]}) for delta in deltas]
    body = "".join(f": ping\r\n\r\ndata: {line}\r\n\r\n" for line in lines) + "data:[DONE]\r\n\r\n"
    page.route("**/v1/chat/completions", answered_with(body=body))
    say(page, "Hello")
    expect_answer(page, "Then I speak.")
    reasoning = page.locator(".reasoning")
    expect(reasoning.locator("div")).to_be_hidden()
    reasoning.locator("summary").click()
    expect(reasoning.locator("div")).to_have_text("First I think.")
    page.locator(".tool-call summary").click()
    expect(page.locator(".tool-call summary")).to_have_text("Tool call: look")
    expect(page.locator(".tool-call pre")).to_have_text('{"at": "<b>"}')


def test_who_reads_above_is_left_there(page: Page, served: Live) -> None:
    served.runner.says("line\n\n" * 30)
    say(page, "Go")
    expect(answers(page)).to_have_attribute("aria-busy", "false")
    log = page.locator("#messages")
    at_end = "(log) => log.scrollHeight - log.scrollTop - log.clientHeight < 2"
    assert log.evaluate(at_end)
    served.runner.gate = Turnstile(40)
    say(page, "More")
    expect(answers(page).last.locator(".body")).to_contain_text("line")
    assert log.evaluate(at_end)
    log.evaluate("(log) => { log.scrollTop = 0; }")
    expect(page.get_by_role("button", name="Latest")).to_be_visible()
    served.runner.gate.set()
    expect(answers(page).last).to_have_attribute("aria-busy", "false")
    assert log.evaluate("(log) => log.scrollTop") == 0
    page.get_by_role("button", name="Latest").click()
    assert log.evaluate(at_end)
