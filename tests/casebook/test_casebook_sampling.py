"""The casebook on sampling and logprobs, on a model that really computes."""

from __future__ import annotations

import math
from typing import Any

import pytest
from helpers.live_server import Live, ok

PATH, CHAT = "/v1/completions", "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello"}]
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 7, "logprobs": 5}


@pytest.mark.parametrize("temperature", [1e-3, 1e-4, 1e-5, 1e-6, 1e-12, 1e-300, 5e-324])
def test_tiny_temperatures_are_greedy(roomy: Live, temperature: float) -> None:
    """SAM-01: no overflow, no token 0 for ever; logprobs are finite and those of the raw logits."""
    greedy = roomy.complete("hello", **GREEDY)["choices"][0]
    for seed in (1, 2):
        body = {**GREEDY, "temperature": temperature, "seed": seed}
        assert roomy.complete("hello", **body)["choices"][0] == greedy
    assert all(math.isfinite(p) for p in greedy["logprobs"]["token_logprobs"])


@pytest.mark.parametrize("top_p", [0, 5e-324, 1e-30, 1e-4])
def test_tiny_top_p_keeps_the_likeliest(roomy: Live, top_p: float) -> None:
    """SAM-02: 0 is greedy too."""
    greedy = roomy.complete("hello", **GREEDY)["choices"][0]["text"]
    for temperature in (1, 100):
        body = {"temperature": temperature, "top_p": top_p, "max_tokens": 7, "seed": 3}
        assert roomy.complete("hello", **body)["choices"][0]["text"] == greedy


@pytest.mark.parametrize("field", ["min_p", "top_k"])
def test_the_other_filters_keep_the_likeliest_too(roomy: Live, field: str) -> None:
    """SAM-02, for its kin: min_p 1 and top_k 1."""
    greedy = roomy.complete("hello", **GREEDY)["choices"][0]["text"]
    body = {"temperature": 100, field: 1, "max_tokens": 7}
    assert roomy.complete("hello", **body)["choices"][0]["text"] == greedy


def test_top_p_out_of_range_is_named(roomy: Live) -> None:
    """SAM-02"""
    for top_p in (1.0001, -0.1, -5e-324):
        refused = roomy.post(PATH, prompt="x", top_p=top_p)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "top_p")
    roomy.complete("x", top_p=1, max_tokens=1)


SAMPLED: dict[str, Any] = {"temperature": 1.0, "seed": 5, "max_tokens": 24, "ignore_eos": True}


@pytest.mark.parametrize(
    "changed",
    [
        {"seed": 6},
        {"temperature": 0},
        {"temperature": 0.2},
        {"top_k": 2},
        {"top_p": 0.05},
        {"min_p": 0.9},
        {"presence_penalty": 2.0},
        {"frequency_penalty": 2.0},
        {"repetition_penalty": 5.0},
        {"logit_bias": {"70": 100}},
        {"allowed_token_ids": [70, 71]},
        {"stop": ["e"]},
        {"stop_token_ids": list(range(200, 400))},
        {"max_tokens": 3},
        {"bad_words": ["e", "th", "wh", "an", "a", "o"]},
        {"structured_outputs": {"choice": ["yes", "no"]}},
        {"prompt": "another"},
    ],
)
@pytest.mark.parametrize("path", [PATH, CHAT])
def test_every_accepted_field_has_an_effect(roomy: Live, path: str, changed: Any) -> None:
    """SAM-13: a field that is taken and then forgotten leaves the answer as it was."""
    if path == CHAT and "prompt" in changed:
        changed = {"messages": [{"role": "user", "content": "another"}]}
    base = {**SAMPLED, **({"prompt": "hello"} if path == PATH else {"messages": HELLO})}
    texts = []
    for body in (base, {**base, **changed}):
        choice = ok(roomy.post(path, **body))["choices"][0]
        texts.append(choice["text"] if path == PATH else choice["message"]["content"])
    assert texts[0] != texts[1]


def test_n_and_seed_have_an_effect(roomy: Live) -> None:
    """SAM-13"""
    answer = roomy.complete("hello", **SAMPLED, n=2)
    texts = [choice["text"] for choice in answer["choices"]]
    assert len(set(texts)) == 2
    assert roomy.complete("hello", **SAMPLED)["choices"][0]["text"] == texts[0]


@pytest.mark.parametrize(
    "key", ["1_0", " 5", "5 ", "+5", "05", "5.0", "5e0", "\u0663", "", "x", "true"]
)
@pytest.mark.parametrize("path", [PATH, CHAT])
def test_logit_bias_names_ids_as_json_does(roomy: Live, path: str, key: str) -> None:
    """SAM-10: what Python's int() happens to read ("1_0" as 10) is no token id."""
    refused = roomy.post(path, prompt="x", messages=HELLO, logit_bias={key: 1})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "logit_bias")


def test_the_two_shapes_of_logprobs(roomy: Live) -> None:
    """LOG-03: each route has its own, whole and streamed."""
    completion = roomy.complete("hello", **GREEDY)["choices"][0]["logprobs"]
    assert set(completion) == {"tokens", "token_logprobs", "top_logprobs", "text_offset"}
    assert all(isinstance(top, dict) and len(top) == 5 for top in completion["top_logprobs"])
    body = {"messages": HELLO, "temperature": 0, "max_tokens": 3, "logprobs": True}
    whole = ok(roomy.post(CHAT, **body, top_logprobs=2))["choices"][0]["logprobs"]
    chunks = roomy.stream(CHAT, **body, top_logprobs=2)
    parts = [c["choices"][0]["logprobs"] for c in chunks if c["choices"][0]["logprobs"]]
    assert [entry for part in parts for entry in part["content"]] == whole["content"]
    for entry in whole["content"]:
        assert set(entry) == {"token", "logprob", "bytes", "top_logprobs"}
        assert all(set(top) == {"token", "logprob", "bytes"} for top in entry["top_logprobs"])
        assert entry["top_logprobs"][0]["logprob"] == entry["logprob"]  # greedy: the likeliest


@pytest.mark.parametrize(
    "changed",
    [
        {"temperature": 0.5, "top_k": 5},
        {"temperature": 2.0, "top_p": 0.1},
        {"presence_penalty": 2.0, "repetition_penalty": 3.0},
        {"logit_bias": {"70": 100}},
        {"allowed_token_ids": [70, 71]},
    ],
)
def test_logprobs_are_of_the_raw_distribution(roomy: Live, changed: dict[str, Any]) -> None:
    """LOG-09: whatever was drawn, and from whatever part of it."""
    raw = roomy.complete("hello", temperature=0, max_tokens=1, logprobs=20)["choices"][0]
    (expected,) = raw["logprobs"]["top_logprobs"]
    body = {"max_tokens": 1, "logprobs": 20, "seed": 9, **changed}
    got = roomy.complete("hello", **body)["choices"][0]["logprobs"]
    top = got["top_logprobs"][0]
    assert {token: top[token] for token in expected} == expected
    assert sum(math.exp(p) for p in expected.values()) < 1
    assert max(expected.values()) < 0
    # The drawn token scores as it does when it is part of the prompt.
    token = roomy.complete("hello", return_token_ids=True, **body)["choices"][0]["token_ids"]
    ids = ok(roomy.post("/tokenize", prompt="hello"))["tokens"]
    scored = roomy.complete([*ids, *token], echo=True, logprobs=0, max_tokens=0)["choices"][0]
    assert scored["logprobs"]["token_logprobs"][-1] == got["token_logprobs"][0]
