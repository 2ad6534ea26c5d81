"""Limits at the door: each refusal is a 400 that names the field, and the next request works."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from helpers.fake_service import make_engine
from helpers.live_server import Live, live, ok, wait_for

from tinyserve.config import TinyServeConfig
from tinyserve.engine.build import build_engine
from tinyserve.server import limits
from tinyserve.server.deltas import DeltaMaker
from tinyserve.server.dialects.openai.completion_writer import CompletionWriter
from tinyserve.server.limits import MAX_SCORES
from tinyserve.server.session import Session

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
CHAT_BODY = {"messages": [{"role": "user", "content": "hello"}]}
BODIES: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt": "x"},
    CHAT: CHAT_BODY,
    RESPONSES: {"input": "x"},
    MESSAGES: {**CHAT_BODY, "max_tokens": 2},
}


@pytest.fixture(scope="module")
def synthetic() -> Iterator[Live]:
    """A small random model that really computes."""
    config = TinyServeConfig.from_dict(
        {"model": {"name": "synthetic", "threads": 1}, "cache": {"num_blocks": 256}}
    )
    with live(build_engine(config), check_idle=False) as served:
        yield served


def refused(served: Live, path: str, **body: Any) -> dict[str, Any]:
    response = served.post(path, **body)
    assert response.status_code == 400, response.text
    error: dict[str, Any] = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert served.runner.steps == 0  # nothing has reached the model
    return error


BOTH: list[tuple[str, dict[str, Any]]] = [
    ("n", {"n": 0}),
    ("n", {"n": -1}),
    ("n", {"n": 129}),
    ("n", {"n": 100_000}),
    ("n", {"n": 10**30}),
    ("n", {"n": 1.5}),
    ("stop", {"stop": ["x"] * 65}),
    ("stop", {"stop": ["x" * 1024] * 17}),
    ("stop", {"stop": "x" * 1025}),
    ("stop", {"stop": ["x" * 1025]}),
    ("stop", {"stop": [""]}),
    ("stop_token_ids", {"stop_token_ids": [1] * 1025}),
    ("stop_token_ids", {"stop_token_ids": [-1]}),
    ("stop_token_ids", {"stop_token_ids": [10**6], "min_tokens": 2}),
    ("bad_words", {"bad_words": ["x"] * 513}),
    ("bad_words", {"bad_words": ["x" * 257]}),
    ("bad_words", {"bad_words": [""]}),
    ("logit_bias", {"logit_bias": {str(i): 1 for i in range(1025)}}),
    ("logit_bias", {"logit_bias": {"1": 101}}),
    ("logit_bias", {"logit_bias": {"x": 1}}),
    ("logit_bias", {"logit_bias": {"512": 1}}),
    ("allowed_token_ids", {"allowed_token_ids": []}),
    ("allowed_token_ids", {"allowed_token_ids": [512]}),
    ("allowed_token_ids", {"allowed_token_ids": [1] * ((1 << 17) + 1)}),
    ("min_tokens", {"min_tokens": 6, "max_tokens": 5}),
    ("seed", {"seed": 10**400}),
    ("priority", {"priority": 2**31}),
    ("cache_salt", {"cache_salt": ""}),
    ("cache_salt", {"cache_salt": "x" * 1025}),
    ("prompt_logprobs", {"prompt_logprobs": 21}),
    ("prompt_logprobs", {"prompt_logprobs": -1}),
    ("truncate_prompt_tokens", {"truncate_prompt_tokens": 0}),
]


@pytest.mark.parametrize(("field", "body"), BOTH)
def test_sam_10_mem_05_limits_of_both_routes(
    served: Live, field: str, body: dict[str, Any]
) -> None:
    """SAM-10, MEM-05."""
    assert refused(served, COMPLETIONS, prompt="x", **body)["param"] == field
    assert refused(served, CHAT, **CHAT_BODY, **body)["param"] == field
    served.complete(max_tokens=1)


@pytest.mark.parametrize(
    ("field", "body"),
    [
        ("logprobs", {"logprobs": 21}),
        ("logprobs", {"logprobs": -1}),
        ("best_of", {"best_of": 21}),
        ("best_of", {"best_of": 0}),
        ("best_of", {"best_of": -1}),
        ("best_of", {"n": 3, "best_of": 2}),
        ("best_of", {"n": 25, "best_of": 25}),
        ("best_of", {"best_of": 2, "stream": True}),
        ("suffix", {"suffix": "and so on"}),
        ("prompt", {"prompt": ["x"] * 1025}),
        ("prompt", {"prompt": ["x"] * 20, "n": 60}),
        ("prompt", {"prompt": ["x"] * 60, "best_of": 20}),
        ("prompt", {"prompt": []}),
    ],
)
def test_sam_07_limits_of_completions(served: Live, field: str, body: dict[str, Any]) -> None:
    """SAM-07."""
    assert refused(served, COMPLETIONS, **{"prompt": "x", **body})["param"] == field
    served.complete(max_tokens=1)


def test_log_01_limits_of_top_logprobs(served: Live) -> None:
    """LOG-01."""
    for value in (-1, 21):
        error = refused(served, CHAT, **CHAT_BODY, logprobs=True, top_logprobs=value)
        assert error["param"] == "top_logprobs"
    assert refused(served, CHAT, **CHAT_BODY, top_logprobs=5)["param"] == "top_logprobs"


@pytest.mark.parametrize(
    ("path", "field", "ours"),
    [
        (COMPLETIONS, "max_completion_tokens", "max_tokens"),
        (COMPLETIONS, "max_new_tokens", "max_tokens"),
        (COMPLETIONS, "n_predict", "max_tokens"),
        (CHAT, "max_output_tokens", "max_tokens"),
        (CHAT, "stop_sequences", "stop"),
        (CHAT, "repeat_penalty", "repetition_penalty"),
        (COMPLETIONS, "n_probs", "logprobs"),
        (CHAT, "min_new_tokens", "min_tokens"),
        (CHAT, "num_return_sequences", "n"),
        (CHAT, "n_probs", "logprobs"),
        (COMPLETIONS, "stop_strings", "stop"),
        (COMPLETIONS, "grammar_string", "grammar"),
        (COMPLETIONS, "return_full_text", "echo"),
        (COMPLETIONS, "top_n_tokens", "logprobs"),
        (CHAT, "no_stop_trim", "include_stop_str_in_output"),
        (CHAT, "n_cmpl", "n"),
        (CHAT, "text", "response_format"),
        (CHAT, "output_format", "response_format"),
        (CHAT, "system", "a system message"),
        (CHAT, "instructions", "a system message"),
        (MESSAGES, "instructions", "a system message"),
        (RESPONSES, "system", "a system message"),
        (RESPONSES, "format", "response_format"),
        (RESPONSES, "max_tokens", "max_output_tokens"),
        (RESPONSES, "max_completion_tokens", "max_output_tokens"),
        (RESPONSES, "repeat_penalty", "repetition_penalty"),
        (MESSAGES, "max_output_tokens", "max_tokens"),
    ],
)
def test_sam_13_a_field_by_another_servers_name(
    served: Live, path: str, field: str, ours: str
) -> None:
    """Ignored, the answer was longer, or another, than had been asked for."""
    response = served.post(path, **BODIES[path], **{field: 5})
    assert response.status_code == 400
    message = response.json()["error"]["message"]
    assert field in message
    assert ours in message


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    ("field", "value", "nothing"),
    [
        ("use_beam_search", True, False),
        ("typical_p", 0.5, 1.0),
        ("mirostat", 2, 0),
        ("no_repeat_ngram_size", 3, 0),
        ("guidance_scale", 1.5, 1),
        ("dry_multiplier", 0.8, 0),
        ("xtc_probability", 0.5, 0.0),
        ("dynatemp_range", 1.5, 0),
        ("stop_regex", "a+", None),
        ("prompt_embeds", ["AAAA"], []),
        ("logits_processors", ["x"], None),
        ("lora_path", "x", ""),
        ("lora", [{"id": 0, "scale": 1.0}], []),
        ("top_n_sigma", 1.5, -1),
        ("t_max_predict_ms", 500, -1),
        ("documents", [{"text": "a fact"}], []),
        ("thinking_token_budget", 64, -1),
        ("thinking_token_budget", 0, -1),
        ("n_predict", 0, None),
        ("max_new_tokens", 0, None),
        ("truncation_side", "right", "left"),
        ("logprob_token_ids", [5], []),
        ("token_ids_logprob", [5], None),
        ("repetition_detection", {"max_pattern_size": 3}, None),
        ("watermarking", True, False),
        ("no_stop_trim", True, False),
        ("n_cmpl", 2, 1),
        ("lora", [{"id": 0, "scale": 1}], []),
        ("smoothing_factor", 0.3, 0),
        ("repeat_penalty", 1.1, 1.0),
        ("num_return_sequences", 2, 1),
        ("n_probs", 5, 0),
    ],
)
def test_sam_13_samplers_that_are_not_served_are_refused_unless_they_are_off(
    served: Live, path: str, field: str, value: Any, nothing: Any
) -> None:
    response = served.post(path, **BODIES[path], **{field: value})
    assert response.status_code == 400
    assert field in response.json()["error"]["message"]
    for neutral in (nothing, None):
        assert served.post(path, **BODIES[path], **{field: neutral}).status_code == 200


def test_sam_07_best_of_is_for_completions(served: Live) -> None:
    response = served.post(CHAT, **BODIES[CHAT], best_of=3)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "best_of"


def test_values_at_the_limits_are_served(served: Live) -> None:
    served.complete(n=128, max_tokens=1)
    served.complete(["x"] * 128, n=8, max_tokens=1)
    served.complete(best_of=20, max_tokens=1)
    served.complete(suffix="", max_tokens=1)
    served.complete(stop=["x" * 1024] * 16, max_tokens=1)
    served.complete(bad_words=["x" * 200] * 512, max_tokens=1)
    served.complete(logit_bias={str(i): 1 for i in range(512)}, max_tokens=1)
    served.complete(logprobs=20, prompt_logprobs=20, max_tokens=1)


def test_mem_05_logprobs_that_would_have_to_be_kept_are_bounded(served: Live) -> None:
    """MEM-05."""
    long = [65] * 400
    error = refused(served, COMPLETIONS, prompt=[long] * 300, prompt_logprobs=20, max_tokens=1)
    assert error["param"] == "prompt_logprobs"
    assert str(MAX_SCORES) in error["message"]
    error = refused(served, COMPLETIONS, prompt=[long] * 300, logprobs=20, echo=True, max_tokens=1)
    assert error["param"] in ("prompt_logprobs", "logprobs")
    many = {"prompt": [[65]] * 8, "n": 128, "logprobs": 20, "max_tokens": 500}
    assert refused(served, COMPLETIONS, **many)["param"] == "logprobs"
    served.complete(long, prompt_logprobs=20, max_tokens=1)


@pytest.mark.parametrize(
    ("fields", "stream"),
    [
        ({"echo": True, "logprobs": 20}, False),
        ({"echo": True, "logprobs": 20}, True),
        ({"prompt_logprobs": 20}, False),
    ],
)
def test_mem_05_a_prompts_logprobs_count_for_each_choice(
    served: Live, fields: dict[str, Any], stream: bool
) -> None:
    """MEM-05: 128 choices showed a prompt of two million logprobs 128 times."""
    body = {"prompt": [[65] * 400] * 8, "max_tokens": 0, "stream": stream, **fields}
    error = refused(served, COMPLETIONS, **body, n=40)
    assert error["param"] in fields
    assert str(MAX_SCORES) in error["message"]
    response = served.post(COMPLETIONS, **body, n=1)
    assert response.status_code == 200


def test_mem_05_a_chat_shows_its_prompts_logprobs_once(
    served: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_SCORES", 10_000)
    body = {"messages": [{"role": "user", "content": "x" * 300}], "prompt_logprobs": 20}
    answer = ok(served.post(CHAT, **body, n=8, max_tokens=1))
    assert 10_000 / 8 < len(answer["prompt_logprobs"]) * 21 <= 10_000


@pytest.mark.parametrize("stream", [False, True])
def test_con_19_scores_of_long_prompts_are_not_made_on_the_event_loop(
    served: Live, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    """CON-19: nobody else was answered meanwhile. And choices of one prompt share its scores."""
    threads: dict[str, list[str]] = {"loop": [], "made": [], "written": []}

    def spy(kind: type, name: str, what: str) -> None:
        plain = getattr(kind, name)

        def spied(*args: Any) -> Any:
            threads[what].append(threading.current_thread().name)
            return plain(*args)

        monkeypatch.setattr(kind, name, spied)

    spy(Session, "open", "loop")
    spy(DeltaMaker, "_scored_prompt", "made")
    spy(CompletionWriter, "logprobs", "written")
    body = {"prompt": [65] * 400, "n": 3, "echo": True, "logprobs": 20, "max_tokens": 0}
    if stream:
        chunks = served.stream(COMPLETIONS, **body)
        choices = [chunk["choices"][0] for chunk in chunks]
    else:
        choices = served.complete(**body)["choices"]
    assert [len(choice["logprobs"]["tokens"]) for choice in choices] == [400] * 3
    assert [len(names) for names in threads.values()] == [1, 1, 3]
    assert not {*threads["loop"]} & {*threads["made"], *threads["written"]}


def test_messages_that_quote_the_request_are_cut(served: Live) -> None:
    response = served.post(COMPLETIONS, model="m" * 100_000, prompt="x")
    assert response.status_code == 404
    assert len(response.content) < 3000


# -- best_of --------------------------------------------------------------------------------------


@pytest.mark.parametrize("echo", [False, True])
@pytest.mark.parametrize("logprobs", [None, 2])
def test_best_of_shows_the_likeliest_of_what_was_made(
    synthetic: Live, echo: bool, logprobs: int | None
) -> None:
    prompts = ["the sun", "a longer prompt about rain"]
    body = {"prompt": prompts, "seed": 7, "max_tokens": 6, "echo": echo, "temperature": 1.5}
    all_made = ok(synthetic.post(COMPLETIONS, **body, n=5, logprobs=2))
    made = all_made["choices"]
    best = ok(synthetic.post(COMPLETIONS, **body, n=2, best_of=5, logprobs=logprobs))
    assert [choice["index"] for choice in best["choices"]] == [0, 1, 2, 3]
    for i, prompt in enumerate(prompts):
        num_echoed = len(synthetic.engine.intake.encode(prompt)) if echo else 0

        def mean(choice: dict[str, Any], num_echoed: int = num_echoed) -> float:
            scores = choice["logprobs"]["token_logprobs"][num_echoed:]
            return math.fsum(scores) / len(scores)

        ranked = sorted(made[5 * i : 5 * i + 5], key=mean, reverse=True)[:2]
        shown = best["choices"][2 * i : 2 * i + 2]
        assert [c["text"] for c in shown] == [c["text"] for c in ranked]
        expected = [None, None] if logprobs is None else [c["logprobs"] for c in ranked]
        assert [c["logprobs"] for c in shown] == expected
    assert best["usage"]["completion_tokens"] == all_made["usage"]["completion_tokens"]
    assert best["usage"]["prompt_tokens"] == all_made["usage"]["prompt_tokens"]


def test_best_of_equal_to_n_changes_nothing(synthetic: Live) -> None:
    body = {"prompt": "the sun", "seed": 7, "max_tokens": 6, "n": 3}
    plain, best = (ok(synthetic.post(COMPLETIONS, **body, **b)) for b in ({}, {"best_of": 3}))
    assert best["choices"] == plain["choices"]
    assert best["usage"] == plain["usage"]


def test_best_of_without_a_token(served: Live) -> None:
    answer = served.complete("hello", n=2, best_of=4, max_tokens=0, echo=True)
    assert [choice["text"] for choice in answer["choices"]] == ["hello"] * 2


# -- the queue ------------------------------------------------------------------------------------


def test_the_queue_is_bounded_in_tokens() -> None:
    engine = make_engine(scheduler={"max_num_seqs": 1}, server={"max_queued_tokens": 100})
    with live(engine) as served:
        served.runner.gate.clear()
        opened = [served.open({"prompt": [65], "max_tokens": 1})]
        wait_for(lambda: served.runner.steps == 1)
        opened.append(served.open({"prompt": [[65] * 30] * 3, "max_tokens": 1}))
        wait_for(lambda: served.bridge.num_queued == 3)
        response = served.post(COMPLETIONS, prompt=[65] * 11)
        assert response.status_code == 429
        assert int(response.headers["retry-after"]) >= 1
        error = response.json()["error"]
        assert (error["type"], error["code"]) == ("rate_limit_error", "queue_full")
        assert "90 prompt tokens" in error["message"]
        opened.append(served.open({"prompt": [65] * 10, "max_tokens": 1}))
        wait_for(lambda: served.bridge.num_queued == 4)
        served.runner.gate.set()
        assert [c.getresponse().status for c in opened] == [200] * 3
