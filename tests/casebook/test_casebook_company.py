"""The casebook on company: many requests in a tiny pool answer as each alone in a large one."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from helpers.live_server import Live, ok
from helpers.metrics import scrape

PATH, CHAT = "/v1/completions", "/v1/chat/completions"
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"enum": ["caf\u00e9", "\u65e5\u672c"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
TEXT = "a river, a river, the river of the time and of the river"

Request = tuple[str, dict[str, Any]]


def completions() -> list[Request]:
    """Every feature that keeps state between steps, some long enough to be preempted."""
    kinds: list[dict[str, Any]] = [
        {"logprobs": 3},
        {"temperature": 0},
        {"presence_penalty": 1.5, "frequency_penalty": 0.5},
        {"repetition_penalty": 1.3},
        {"n": 3, "logprobs": 1},
        {"stop": ["ing", "er "], "temperature": 0},
        {"stop": ["e"], "min_tokens": 12, "include_stop_str_in_output": True},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
        {"structured_outputs": {"regex": "[a-z ]{30,60}"}, "n": 2},
        {"bad_words": ["the", "a"], "logit_bias": {"201": -100}},
        {"echo": True, "logprobs": 2, "temperature": 0},
        {"prompt": ["one", "two", "three"], "n": 2},
    ]
    base = {"prompt": TEXT, "temperature": 1.0, "max_tokens": 40, "return_token_ids": True}
    return [(PATH, {**base, "seed": i, **kind}) for i, kind in enumerate(kinds * 2)]


def seen(answer: dict[str, Any]) -> tuple[Any, ...]:
    """What must not depend on company: all but names, times and cache hits."""
    usage = {k: v for k, v in answer["usage"].items() if k != "prompt_tokens_details"}
    return answer["choices"], usage


def ask_all(served: Live, requests: Sequence[Request], at_once: int) -> list[Any]:
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(lambda r: seen(ok(served.post(r[0], **r[1]))), requests))


def test_preempted_and_speculated_answers_are_the_same(roomy: Live, tight: Live) -> None:
    """CON-09, GD-12, SPEC-01, SPEC-07, SPEC-08: text, ids, logprobs, usage, to the bit."""
    requests = completions()
    alone = ask_all(roomy, requests, 1)
    before = scrape(tight.client)
    together = ask_all(tight, requests, 12)
    for (_, body), expected, got in zip(requests, alone, together, strict=True):
        assert got == expected, body
    after = scrape(tight.client)
    for name in ("num_preemptions_total", "spec_decode_num_accepted_tokens_total"):
        assert after(f"vllm:{name}") > before(f"vllm:{name}")


def test_no_token_is_streamed_twice_after_a_preemption(roomy: Live, tight: Live) -> None:
    """CON-09: streams too."""

    def stream(request: Request) -> dict[int, str]:
        texts: dict[int, str] = {}
        for chunk in tight.stream(request[0], **request[1]):
            (choice,) = chunk["choices"]
            texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
        return texts

    requests = completions()[:12]
    with ThreadPoolExecutor(12) as pool:
        streamed = list(pool.map(stream, requests))
    for request, texts in zip(requests, streamed, strict=True):
        whole = ok(roomy.post(request[0], **request[1]))["choices"]
        assert texts == {choice["index"]: choice["text"] for choice in whole}


def test_prompts_of_very_different_lengths(roomy: Live, tight: Live) -> None:
    """CON-18: one joins half-way, one ends early; each as if alone."""
    lengths = (1, 7, 64, 150, 1, 16, 4, 5)
    requests = [
        (PATH, {"prompt": [3 + (i * n) % 400 for i in range(n)], "temperature": 0, "logprobs": 0,
                "max_tokens": 2 + n % 30, "return_token_ids": True})
        for n in lengths
    ]  # fmt: skip
    assert ask_all(tight, requests, 8) == ask_all(roomy, requests, 1)


def test_scored_texts_of_responses_end_where_the_text_does(roomy: Live, tight: Live) -> None:
    """SPEC-01, SPEC-08: an end token, or what a stop string cuts off, may come in one step with
    text or in one of its own; neither is part of the text.
    """
    base = {"input": TEXT, "include": ["message.output_text.logprobs"], "max_output_tokens": 40}
    kinds: list[dict[str, Any]] = [
        {"structured_outputs": {"regex": "(river, ){3,6}end"}},
        {"structured_outputs": {"choice": ["a river, a river, a river"]}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
        {"stop": ["e", "in"]},
        {"stop": ["er "], "include_stop_str_in_output": True},
    ]

    def ask(served: Live, body: dict[str, Any]) -> Any:
        (message,) = ok(served.post("/v1/responses", **base, **body))["output"]
        return message["content"]

    bodies = [{**kind, "seed": seed} for seed in range(3) for kind in kinds]
    alone = [ask(roomy, body) for body in bodies]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda body: ask(tight, body), bodies))
    for body, expected, got in zip(bodies, alone, together, strict=True):
        assert got == expected, body
        (part,) = expected
        spelled = [bytes(entry["bytes"]) for entry in part["logprobs"]]
        whole, without_last = (
            b"".join(s).decode(errors="replace") for s in (spelled, spelled[:-1])
        )
        assert whole.startswith(part["text"]), body
        assert len(without_last) < max(len(part["text"]), 1), body
