"""A stream and a whole answer of the same request are equal, whatever the request.

Text, token ids, logprobs, usage, finish and stop reasons. And after any request, good or bad, the
next one works, the blocks are back and the gauges are at zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from helpers.fake_service import make_engine, tokenizer
from helpers.live_server import Live, live, ok, wait_for
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tinyserve.config import TinyServeConfig
from tinyserve.engine.build import build_engine

TEXT = st.text(min_size=1, max_size=12)
IDS = st.lists(st.integers(3, 511), min_size=1, max_size=40)
NEAR_TEXT = st.sampled_from(["a", "e", " ", "\n", "th", "é", "x" * 50, "<|im_end|>", "."])
SHARED = {
    "n": st.integers(1, 4),
    "temperature": st.sampled_from([0.0, 0.7, 1.5]),
    "max_tokens": st.integers(0, 25),
    "min_tokens": st.integers(0, 5),
    "ignore_eos": st.booleans(),
    "stop": st.one_of(NEAR_TEXT, st.lists(NEAR_TEXT, max_size=4)),
    "include_stop_str_in_output": st.booleans(),
    "stop_token_ids": st.lists(st.integers(3, 511), max_size=60),
    "skip_special_tokens": st.booleans(),
    "return_tokens_as_token_ids": st.booleans(),
    "bad_words": st.lists(NEAR_TEXT, max_size=3),
    "top_k": st.sampled_from([-1, 0, 1, 7]),
    "truncate_prompt_tokens": st.integers(1, 9),
    "priority": st.integers(-2, 2),
}


def bodies(must: dict[str, Any], may: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    fixed = {**must, "return_token_ids": st.just(True), "seed": st.integers(0, 9)}
    return st.fixed_dictionaries(fixed, optional={**SHARED, **may})


COMPLETIONS = bodies(
    {"prompt": st.one_of(TEXT, IDS, st.lists(TEXT, min_size=1, max_size=3))},
    {"echo": st.booleans(), "logprobs": st.integers(0, 5), "add_special_tokens": st.booleans()},
)
MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant"]), "content": TEXT}),
    min_size=1,
    max_size=3,
)
CHATS = bodies({"messages": MESSAGES}, {"logprobs": st.just(True)}).flatmap(
    lambda body: st.fixed_dictionaries(
        {name: st.just(value) for name, value in body.items()},
        optional={"top_logprobs": st.integers(0, 5)} if "logprobs" in body else {},
    )
)
REQUESTS = st.one_of(
    st.tuples(st.just("/v1/completions"), COMPLETIONS),
    st.tuples(st.just("/v1/chat/completions"), CHATS),
)


@pytest.fixture(scope="module")
def fake() -> Iterator[Live]:
    engine = make_engine(
        cache={"num_blocks": 64, "num_swap_blocks": 8}, scheduler={"max_model_len": 160}
    )
    with live(engine) as served:
        yield served


@pytest.fixture(scope="module")
def synthetic() -> Iterator[Live]:
    """A small random model that really computes."""
    config = TinyServeConfig.from_dict(
        {
            "model": {"name": "synthetic", "threads": 1},
            "cache": {"num_blocks": 64},
            "scheduler": {"max_model_len": 160},
        }
    )
    with live(build_engine(config), check_idle=False) as served:
        yield served


def joined(chunks: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """The choices of a stream, put together as a client does."""
    choices: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for part in chunk["choices"]:
            empty = {"text": "", "token_ids": [], "logprobs": None, "finish_reason": None}
            choice = choices.setdefault(part["index"], {**empty, "stop_reason": None})
            assert choice["finish_reason"] is None, "a chunk after the last of its choice"
            choice["text"] += part.get("text") or part.get("delta", {}).get("content") or ""
            choice["token_ids"] += part.get("token_ids") or []
            choice["finish_reason"] = part["finish_reason"]
            choice["stop_reason"] = part.get("stop_reason")
            for name, values in (part["logprobs"] or {}).items():
                choice["logprobs"] = choice["logprobs"] or {}
                if values is not None:
                    choice["logprobs"].setdefault(name, []).extend(values)
    return choices


def plain(choice: dict[str, Any]) -> dict[str, Any]:
    """A choice of a whole answer in the same form."""
    logprobs = choice["logprobs"]
    if logprobs is not None:
        logprobs = {name: values for name, values in logprobs.items() if values is not None}
    return {
        "text": choice["text"] if "text" in choice else choice["message"]["content"],
        "token_ids": choice["token_ids"],
        "logprobs": logprobs,
        "finish_reason": choice["finish_reason"],
        "stop_reason": choice.get("stop_reason"),
    }


def assert_equal_both_ways(served: Live, path: str, body: dict[str, Any]) -> None:
    served.engine.core._kv.clear_cache()  # so that cached_tokens are the same too
    response = served.post(path, **body)
    if response.status_code != 200:
        assert response.status_code == 400, response.text
        again = served.post(path, **body, stream=True)
        assert (again.status_code, again.json()) == (400, response.json())
    else:
        whole = ok(response)
        served.engine.core._kv.clear_cache()
        options = {"include_usage": True}
        *chunks, last = served.stream(path, **body, stream_options=options)
        choices = joined(chunks)
        assert last["choices"] == []
        assert last["usage"] == whole["usage"]
        assert sorted(choices) == [choice["index"] for choice in whole["choices"]]
        for choice in whole["choices"]:
            assert choices[choice["index"]] == plain(choice)
    assert_well(served)


def assert_well(served: Live) -> None:
    bridge = served.bridge
    wait_for(lambda: bridge.num_open == 0 and not served.engine.core.has_work())
    wait_for(lambda: bridge.stats.num_running + bridge.stats.num_waiting == 0)
    wait_for(lambda: bridge.stats.num_swapped == 0)
    stats = bridge.stats
    assert stats.num_free_blocks + stats.num_cached_blocks == stats.num_total_blocks
    assert stats.num_free_swap_blocks == stats.num_total_swap_blocks
    served.engine.core._kv.check()
    assert served.client.get("/health").json()["status"] == "ok"


RELAXED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)


@RELAXED
@given(request=REQUESTS)
def test_streams_equal_whole_answers(fake: Live, request: tuple[str, dict[str, Any]]) -> None:
    assert_equal_both_ways(fake, *request)


@settings(RELAXED, max_examples=15)
@given(request=REQUESTS)
def test_streams_equal_whole_answers_of_a_real_model(
    synthetic: Live, request: tuple[str, dict[str, Any]]
) -> None:
    assert_equal_both_ways(synthetic, *request)


@settings(RELAXED, max_examples=30)
@given(request=REQUESTS)
def test_the_text_is_what_the_tokens_say(fake: Live, request: tuple[str, dict[str, Any]]) -> None:
    """STR-04: the text built token by token is the decoding of all tokens."""
    path, body = request
    for name in ("stop", "stop_token_ids", "echo", "include_stop_str_in_output", "min_tokens"):
        body.pop(name, None)
    answer = fake.post(path, **body)
    if answer.status_code != 200:
        return
    skip = body.get("skip_special_tokens", True)
    for choice in answer.json()["choices"]:
        ids = choice["token_ids"]
        if choice["finish_reason"] == "stop":
            ids = ids[:-1]  # EOS is not shown
        expected = tokenizer().decode(ids, skip_special_tokens=skip)
        assert plain(choice)["text"] == expected
