"""`/v1/completions` whole: shapes, prompts, choices, echo, logprobs, limits.

Casebook ids in names.
"""

from __future__ import annotations

from typing import Any

import pytest
from helpers.fake_service import make_engine, tokenizer
from helpers.live_server import Live, live, ok

from tinyserve.server.deltas import ScoredToken
from tinyserve.server.dialects.openai.completion_writer import CompletionWriter
from tinyserve.server.dialects.openai.writer import WriterOptions
from tinyserve.server.writer import Identity

PATH = "/v1/completions"


def refused(served: Live, status: int = 400, **body: Any) -> dict[str, Any]:
    """The error of a request that must fail; the next request must work."""
    response = served.post(PATH, **{"prompt": "hello", **body})
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    served.complete(max_tokens=1)
    return error


def test_shape_of_an_answer(served: Live) -> None:
    served.runner.says("a fine day")
    answer = served.complete("hello", max_tokens=50)
    assert answer["object"] == "text_completion"
    assert answer["id"].startswith("cmpl-")
    assert answer["model"] == "synthetic"
    (choice,) = answer["choices"]
    assert choice == {"index": 0, "text": "a fine day", "logprobs": None, "finish_reason": "stop"}
    num_prompt = len(tokenizer().encode("hello"))
    num_output = len(tokenizer().encode("a fine day")) + 1  # EOS was generated too
    assert answer["usage"]["prompt_tokens"] == num_prompt
    assert answer["usage"]["completion_tokens"] == num_output
    assert answer["usage"]["total_tokens"] == num_prompt + num_output


def test_default_is_sixteen_tokens(served: Live) -> None:
    served.runner.says("x" * 40)
    answer = served.complete()
    assert answer["usage"]["completion_tokens"] == 16
    assert answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("prompt", "count"),
    [("a b", 1), (["a", "b"], 2), ([65, 66], 1), ([[65, 66], [67]], 2), (["one"], 1), ([5], 1)],
)
def test_lim_04_every_form_of_prompt(served: Live, prompt: Any, count: int) -> None:
    """LIM-04."""
    answer = served.complete(prompt, max_tokens=2, temperature=0)
    assert [choice["index"] for choice in answer["choices"]] == list(range(count))


def test_choices_of_several_prompts_are_numbered_by_prompt(served: Live) -> None:
    answer = served.complete(["a", "b"], n=2, max_tokens=3, temperature=0, ignore_eos=True)
    texts = [choice["text"] for choice in answer["choices"]]
    assert texts[0] == texts[1] != texts[2] == texts[3]
    assert answer["usage"]["completion_tokens"] == 12
    assert answer["usage"]["prompt_tokens"] == 2


@pytest.mark.parametrize("prompt", ["", [""], [], [[]], None, ["a", ""]])
def test_lim_03_empty_prompts_are_refused(served: Live, prompt: Any) -> None:
    """LIM-03."""
    assert refused(served, prompt=prompt)["param"] == "prompt"


@pytest.mark.parametrize(
    "prompt", [[0, 10**7], [-1], [[1, 2], [512]], [1, "a"], [1.5], [True], {"a": 1}, 5, [[1], "a"]]
)
def test_lim_04_bad_token_ids_are_refused(served: Live, prompt: Any) -> None:
    """LIM-04."""
    assert refused(served, prompt=prompt)["param"] == "prompt"


def test_sam_07_choices(served: Live) -> None:
    """SAM-07."""
    greedy = served.complete(n=3, temperature=0, max_tokens=5)
    assert len({choice["text"] for choice in greedy["choices"]}) == 1
    for n in (0, -1, 1.5, 100_000, "2", True):
        assert refused(served, n=n)["param"] == "n"
    assert refused(served, n=3, best_of=2)["param"] == "best_of"
    assert refused(served, best_of=2, stream=True)["param"] == "best_of"
    served.complete(n=2, best_of=2, max_tokens=1)


def test_sam_06_unseeded_requests_differ_and_seeded_ones_do_not(served: Live) -> None:
    """SAM-06."""

    def outputs(**body: Any) -> list[tuple[int, ...]]:
        answer = served.complete(max_tokens=9, ignore_eos=True, return_token_ids=True, **body)
        return [tuple(choice["token_ids"]) for choice in answer["choices"]]

    assert len({outputs()[0] for _ in range(4)}) == 4
    (seeded,) = {outputs(seed=7)[0] for _ in range(4)}
    several = outputs(n=4, seed=7)
    assert len(set(several)) == 4
    assert several[0] == seeded


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("top_p", 1.0001),
        ("top_p", -0.1),
        ("temperature", -1),
        ("temperature", "hot"),
        ("max_tokens", -1),
        ("max_tokens", 1.5),
        ("min_p", 2),
        ("presence_penalty", 3),
        ("stop", [1]),
        ("stop", [""]),
        ("logit_bias", {"600": 1}),
        ("logit_bias", {"x": 1}),
        ("logit_bias", {"5": 500}),
        ("stop_token_ids", [10**6]),
        ("stop_token_ids", [-1]),
        ("allowed_token_ids", []),
        ("allowed_token_ids", [512]),
        ("bad_words", [""]),
        ("seed", 2**80),
        ("logprobs", 21),
        ("logprobs", -1),
        ("logprobs", True),
        ("prompt_logprobs", 21),
        ("truncate_prompt_tokens", 0),
        ("cache_salt", ""),
        ("priority", 2**40),
        ("suffix", "x"),
        ("ignore_eos", "yes"),
        ("stream", "false"),
        ("stream_options", {"include_usage": True}),
        ("echo", 1),
    ],
)
def test_wrong_fields_are_named(served: Live, field: str, value: Any) -> None:
    assert (refused(served, **{field: value})["param"] or "").startswith(field)


def test_sam_08_min_tokens_above_max_tokens(served: Live) -> None:
    """SAM-08."""
    assert refused(served, min_tokens=5, max_tokens=4)["param"] == "min_tokens"


def test_sam_08_min_tokens_holds_against_eos_and_stop_strings(served: Live) -> None:
    """SAM-08."""
    served.runner.says("ab")
    answer = served.complete(min_tokens=20, max_tokens=20, stop=["b"])
    assert answer["usage"]["completion_tokens"] == 20


@pytest.mark.parametrize("raw", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_sam_04_numbers_that_are_none(served: Live, raw: str) -> None:
    """SAM-04."""
    for field in ("temperature", "presence_penalty"):
        body = f'{{"prompt": "a", "{field}": {raw}}}'
        response = served.client.post(
            PATH, content=body, headers={"content-type": "application/json"}
        )
        assert response.status_code == 400
        assert response.json()["error"]["param"] == field


def test_sam_04_nan_logits_fail_that_request_alone(served: Live) -> None:
    """SAM-04."""
    served.runner.nan_token = 65
    response = served.post(PATH, prompt=[65], max_tokens=5)
    assert response.status_code == 500
    assert "NaN" in response.json()["error"]["message"]
    served.complete([66], max_tokens=1)


def test_sam_10_str_10_special_token_as_stop_string(served: Live) -> None:
    """SAM-10, STR-10."""
    served.runner.script = [65, 66, 1, 67]  # 1 is <|im_start|>, not an EOS
    answer = served.complete(max_tokens=10, stop=["<|im_start|>"])
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["choices"][0]["stop_reason"] == "<|im_start|>"
    assert answer["usage"]["completion_tokens"] == 3


def test_str_06_stop_inside_a_token(served: Live) -> None:
    """STR-06."""
    served.runner.says("the other")
    assert served.complete(stop="e", max_tokens=20)["choices"][0]["text"] == "th"
    included = served.complete(stop="e", max_tokens=20, include_stop_str_in_output=True)
    assert included["choices"][0]["text"] == "the"


def test_log_02_logprobs_zero_is_not_none(served: Live) -> None:
    """LOG-02."""
    served.runner.says("ab")
    none = served.complete(max_tokens=2, logprobs=None)["choices"][0]["logprobs"]
    assert none is None
    zero = served.complete(max_tokens=2, logprobs=0)["choices"][0]["logprobs"]
    assert zero["tokens"] == ["a", "b"]
    assert len(zero["token_logprobs"]) == 2
    assert [set(top) for top in zero["top_logprobs"]] == [{"a"}, {"b"}]
    five = served.complete(max_tokens=2, logprobs=5)["choices"][0]["logprobs"]
    assert all(len(top) == 5 for top in five["top_logprobs"])


def test_log_04_of_tokens_that_read_alike_the_likeliest_is_told() -> None:
    """LOG-04: byte tokens and padded vocabularies have them."""
    unknown = (600, 601)
    writer = CompletionWriter(tokenizer(), Identity("cmpl-1", 0, "m", "f"), WriterOptions())
    scored = [
        ScoredToken(65, -3.0, ((unknown[0], -0.1), (66, -2.0), (unknown[1], -2.5)), 0),
        ScoredToken(unknown[1], -2.5, ((unknown[0], -0.1),), 1),
    ]
    first, second = writer.logprobs(scored)["top_logprobs"]
    texts = [tokenizer().token_text(i) for i in (66, 65)]
    assert list(first.items()) == [("", -0.1), (texts[0], -2.0), (texts[1], -3.0)]
    assert second == {"": -0.1}


def test_log_04_parts_of_characters_can_be_told_apart(served: Live) -> None:
    """LOG-04."""
    served.runner.says("😀")
    logprobs = served.complete(max_tokens=10, logprobs=1)["choices"][0]["logprobs"]
    parts = logprobs["tokens"][:-1]
    assert parts == ["bytes:\\xf0", "bytes:\\x9f", "bytes:\\x98", "bytes:\\x80"]
    assert logprobs["text_offset"] == [0, 0, 0, 0, 1]


def test_log_04_offsets_after_a_character_that_lacks_bytes(served: Live) -> None:
    """LOG-04: what followed it was told to begin where it does, or, after a prompt, too late."""
    encode, said = tokenizer().encode, tokenizer().encode("a😀b", add_special_tokens=False)
    served.runner.script = [*said[:3], *encode("bc", add_special_tokens=False)]
    choice = served.complete(max_tokens=5, logprobs=0)["choices"][0]
    assert choice["text"] == "a\ufffdbc"
    assert choice["logprobs"]["text_offset"] == [0, 1, 1, 2, 3]
    served.runner.says("bc")
    choice = served.complete(said[:3], max_tokens=2, logprobs=0, echo=True)["choices"][0]
    assert choice["text"] == "a\ufffdbc"
    assert choice["logprobs"]["text_offset"] == [0, 1, 1, 2, 3]


def test_log_06_echo_joins_up(served: Live) -> None:
    """LOG-06."""
    answer = served.complete(
        "\n1. Carol has 20", echo=True, logprobs=1, max_tokens=5, temperature=0, ignore_eos=True
    )
    choice = answer["choices"][0]
    logprobs = choice["logprobs"]
    assert choice["text"].startswith("\n1. Carol has 20")
    assert logprobs["token_logprobs"][0] is None
    assert logprobs["top_logprobs"][0] is None
    num_prompt = answer["usage"]["prompt_tokens"]
    assert all(value is not None for value in logprobs["token_logprobs"][1:])
    assert "".join(logprobs["tokens"][:num_prompt]) == "\n1. Carol has 20"
    for i in range(num_prompt + 1):
        assert logprobs["text_offset"][i] == len("".join(logprobs["tokens"][:i]))


def test_log_06_special_tokens_of_the_prompt_are_echoed_and_counted(served: Live) -> None:
    """LOG-06: offsets passed over what the prompt spelled, so that later ones were too small."""
    prompt = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>"
    body = {"echo": True, "logprobs": 0, "max_tokens": 2, "temperature": 0, "ignore_eos": True}
    for options in ({}, {"skip_special_tokens": False}):
        choice = served.complete(prompt, **body, **options)["choices"][0]
        tokens, offsets = choice["logprobs"]["tokens"], choice["logprobs"]["text_offset"]
        assert tokens.count("<|im_start|>") == 2
        assert "".join(tokens) == choice["text"]
        assert offsets == [len("".join(tokens[:i])) for i in range(len(tokens))]
    ids = tokenizer().encode(prompt)
    choice = served.complete(ids, **body)["choices"][0]  # nothing spelled: they do not show
    assert choice["text"].startswith("user\nhi\n")
    assert choice["logprobs"]["text_offset"][:2] == [0, 0]


@pytest.mark.parametrize(("of_prompt", "of_echo"), [(1, 3), (3, 1), (0, 2), (2, 0)])
def test_log_08_two_fields_that_score_the_prompt_do_not_mix(
    served: Live, of_prompt: int, of_echo: int
) -> None:
    """LOG-08: each shows as many likeliest tokens as it was asked for, and the token itself."""
    body = {"max_tokens": 0, "echo": True, "logprobs": of_echo}
    both = served.complete("quick brown", **body, prompt_logprobs=of_prompt)["choices"][0]
    assert (
        both.pop("prompt_logprobs")
        == (
            served.complete("quick brown", max_tokens=0, prompt_logprobs=of_prompt)["choices"][0][
                "prompt_logprobs"
            ]
        )
    )
    assert both == served.complete("quick brown", **body)["choices"][0]


@pytest.mark.parametrize("prompt", ["Your answer: Yes", "Y"])
def test_log_07_scoring_without_generating(served: Live, prompt: str) -> None:
    """LOG-07."""
    answer = served.complete(prompt, max_tokens=0, echo=True, logprobs=1)
    choice = answer["choices"][0]
    assert choice["text"] == prompt
    assert choice["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 0
    assert len(choice["logprobs"]["tokens"]) == answer["usage"]["prompt_tokens"]
    bare = served.complete(prompt, max_tokens=0)
    assert bare["choices"][0]["text"] == ""
    assert bare["choices"][0]["finish_reason"] == "length"


def test_log_08_prompt_logprobs_ignore_the_prefix_cache(served: Live) -> None:
    """LOG-08."""
    body = {"echo": True, "logprobs": 3, "max_tokens": 1, "temperature": 0}
    first = served.complete("the quick brown fox jumps over it", **body)
    second = served.complete("the quick brown fox jumps over it", **body)
    assert first["choices"] == second["choices"]
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_str_16_first_token_is_the_stop(served: Live) -> None:
    """STR-16."""
    served.runner.says("\nmore")
    answer = served.complete("Q: hello world \nA: ", stop=["\n"], max_tokens=10, logprobs=10)
    choice = answer["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("", "stop")
    assert len(choice["logprobs"]["tokens"]) == answer["usage"]["completion_tokens"] == 1


def test_cached_prefix_is_reported(served: Live) -> None:
    prompt = "people say that " * 8
    assert served.complete(prompt)["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert served.complete(prompt)["usage"]["prompt_tokens_details"]["cached_tokens"] > 8
    salted = served.complete(prompt, cache_salt="mine")
    assert salted["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_lim_01_context_messages_name_the_numbers(served: Live) -> None:
    """LIM-01."""
    for prompt, max_tokens in (([65] * 8, 505), ([65] * 513, 1), ([65] * 512, None)):
        error = refused(served, prompt=prompt, max_tokens=max_tokens)
        assert error["code"] == "context_length_exceeded"
        assert error["type"] == "invalid_request_error"
        assert "512" in error["message"]
        assert str(len(prompt)) in error["message"]
    served.complete([65] * 8, max_tokens=504, temperature=0)


def test_lim_02_prompt_longer_than_a_step_is_chunked(served: Live) -> None:
    """LIM-02."""
    served.runner.says("good")
    assert served.complete([70] * 300, max_tokens=20)["choices"][0]["text"] == "good"


def test_lim_09_ends_at_the_context(served: Live) -> None:
    """LIM-09."""
    chat = served.chat("go on", ignore_eos=True, temperature=0)
    assert chat["usage"]["total_tokens"] == 512
    assert chat["choices"][0]["finish_reason"] == "length"


def test_lim_12_truncation_only_on_request(served: Live) -> None:
    """LIM-12."""
    answer = served.complete([65] * 600, truncate_prompt_tokens=10, max_tokens=1)
    assert answer["usage"]["prompt_tokens"] == 10


def test_pool_smaller_than_the_context() -> None:
    with live(make_engine(cache={"num_blocks": 8})) as served:
        error = refused(served, prompt=[65] * 30, max_tokens=10)
        assert error["code"] == "context_length_exceeded"
        assert "cache.num_blocks" in error["message"]
        chat = served.chat("a", temperature=0, ignore_eos=True)
        assert chat["usage"]["total_tokens"] == 33  # the last token needs no KV


def test_chat_12_models(served: Live) -> None:
    """CHAT-12."""
    listed = ok(served.client.get("/v1/models"))
    (model,) = listed["data"]
    assert listed["object"] == "list"
    assert (model["id"], model["object"], model["max_model_len"]) == ("synthetic", "model", 512)
    for name in ("synthetic", "tinyserve"):
        assert ok(served.client.get(f"/v1/models/{name}"))["id"] == name
        assert served.complete(model=name, max_tokens=1)["model"] == "synthetic"
    assert served.complete(model="", max_tokens=1)["model"] == "synthetic"
    missing = served.client.get("/v1/models/who/else")
    assert missing.status_code == 404
    assert missing.json()["error"]["code"] == "model_not_found"
    assert refused(served, 404, model="gpt-4")["param"] == "model"


def test_served_names_may_hold_slashes() -> None:
    engine = make_engine(server={"served_model_name": ["org/one", "two", "two"]})
    with live(engine) as served:
        for path in ("/v1/models/org/one", "/v1/models/org/one/"):
            assert ok(served.client.get(path))["id"] == "org/one"
        assert served.complete(model="two", max_tokens=1)["model"] == "two"
        assert served.complete(max_tokens=1)["model"] == "org/one"


def test_load_03_model_defaults_fill_only_what_is_left_out() -> None:
    """LOAD-03."""
    engine = make_engine(model={"override_generation_config": {"max_tokens": 3}})
    with live(engine) as served:
        served.runner.says("x" * 30)
        assert served.complete()["usage"]["completion_tokens"] == 3
        assert served.complete(max_tokens=5)["usage"]["completion_tokens"] == 5
        assert served.complete(max_tokens=None)["usage"]["completion_tokens"] == 3


def test_token_ids_on_request(served: Live) -> None:
    served.runner.says("ab")
    answer = served.complete([70, 71], return_token_ids=True, max_tokens=5, prompt_logprobs=1)
    choice = answer["choices"][0]
    assert choice["prompt_token_ids"] == [70, 71]
    assert tokenizer().decode(choice["token_ids"]) == "ab"
    assert choice["prompt_logprobs"][0] is None
    assert choice["prompt_logprobs"][1]["71"]["rank"] == 1
    for chunk in served.stream(PATH, prompt=[70, 71], max_tokens=5):
        assert not {"token_ids", "prompt_token_ids"} & set(chunk["choices"][0])
    named = served.complete(max_tokens=1, logprobs=0, return_tokens_as_token_ids=True)
    assert named["choices"][0]["logprobs"]["tokens"][0].startswith("token_id:")


def test_n_may_exceed_the_seats() -> None:
    with live(make_engine(scheduler={"max_num_seqs": 2})) as served:
        answer = served.complete(n=7, max_tokens=4, seed=1, ignore_eos=True)
        assert len(answer["choices"]) == 7
        assert answer["usage"]["completion_tokens"] == 28
