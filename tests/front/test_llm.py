"""The offline API over a fake model: inputs, outputs, streams; bad input leaves no trace."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
from helpers.fake_service import assert_idle, make_engine, runner_of, tokenizer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tinyserve import LLM, SamplingParams, TinyServeConfig
from tinyserve.engine import llm as llm_module
from tinyserve.errors import ConfigError, RequestError, TinyServeError

HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture
def llm() -> Iterator[LLM]:
    with LLM.from_engine(make_engine()) as made:
        yield made
    assert_idle(made.engine)
    assert not made._core.inboxes


def says(llm: LLM, text: str) -> None:
    runner_of(llm.engine).says(text)


def test_one_output_for_each_prompt(llm: LLM) -> None:
    says(llm, "well")
    (output,) = llm.generate("hello")
    assert (output.text, output.finish_reason, output.prompt) == ("well", "stop", "hello")
    assert output.token_ids[:-1] == tokenizer().encode("well")
    assert output.prompt_token_ids == tokenizer().encode("hello")
    assert output.logprobs is None
    assert [o.text for o in llm.generate(["a", "b", "c"])] == ["well"] * 3
    assert [o.prompt_token_ids for o in llm.generate([[65, 66], [67]])] == [[65, 66], [67]]
    assert len(llm.generate([65, 66])) == 1


def test_choices_logprobs_and_prompt_logprobs(llm: LLM) -> None:
    params = SamplingParams(n=3, logprobs=2, prompt_logprobs=1, max_tokens=4, ignore_eos=True)
    (output,) = llm.generate([[65, 66, 67]], params)
    assert [choice.index for choice in output.outputs] == [0, 1, 2]
    assert all(len(c.token_ids) == len(c.logprobs or []) == 4 for c in output.outputs)
    assert output.logprobs is output.outputs[0].logprobs
    assert output.prompt_logprobs is not None
    assert len(output.prompt_logprobs) == 3
    assert output.prompt_logprobs[0] is None


def test_an_answer_without_tokens_has_the_logprobs_of_none(llm: LLM) -> None:
    """As over HTTP: an empty list where they were asked for."""
    for asked in ({}, {"prompt_logprobs": 1}):
        (output,) = llm.generate("hello", {"max_tokens": 0, "logprobs": 1, "n": 2, **asked})
        assert [choice.logprobs for choice in output.outputs] == [[], []]
    assert llm.generate("hello", {"max_tokens": 0})[0].logprobs is None


def test_params_for_each_prompt(llm: LLM) -> None:
    says(llm, "x" * 40)
    outputs = llm.generate(["a", "b", "c"], [{"max_tokens": 2}, SamplingParams(max_tokens=3), None])
    assert [len(o.token_ids) for o in outputs] == [2, 3, 16]
    for wrong in ([{"max_tokens": 2}], "greedy", [1, 2, 3], 5):
        with pytest.raises(RequestError, match="params"):
            llm.generate(["a", "b", "c"], wrong)  # type: ignore[arg-type]


def test_model_defaults_apply_to_what_is_left_out() -> None:
    engine = make_engine(model={"override_generation_config": {"max_tokens": 2, "top_k": 3}})
    llm = LLM.from_engine(engine)
    runner_of(engine).says("x" * 40)
    assert len(llm.generate("a")[0].token_ids) == 2
    assert len(llm.generate("a", {"max_tokens": 5})[0].token_ids) == 5
    assert len(llm.generate("a", SamplingParams())[0].token_ids) == 16  # all explicit
    assert engine.intake.params({"temperature": 0}).top_k == 3


def test_a_length_that_nobody_named_fits_the_room() -> None:
    """LIM-01: as over HTTP, each prompt by itself; one that was named is refused."""
    with LLM.from_engine(make_engine(scheduler={"max_model_len": 32})) as llm:
        long, short = [65] * 30, [66]
        fields: dict[str, Any] = {"ignore_eos": True}
        sizes = [len(o.token_ids) for o in llm.generate([long, short], fields)]
        assert sizes == [2, 16]
        assert [len(o.token_ids) for o in llm.generate([long, short], [fields] * 2)] == sizes
        assert sum(len(delta.token_ids) for delta in llm.stream(long, fields)) == 2
        for named in (SamplingParams(), {"max_tokens": 16}, {"min_tokens": 3}):
            with pytest.raises(RequestError, match="32 tokens"):
                llm.generate([long, short], named)
        with pytest.raises(RequestError, match="32 tokens"):
            llm.generate([[65] * 32])
        assert_idle(llm.engine)


def test_chat_and_stop_strings(llm: LLM) -> None:
    says(llm, "one. two.")
    (output,) = llm.chat(HELLO, {"stop": "."})
    assert (output.text, output.outputs[0].stop_reason) == ("one", ".")
    assert len(llm.chat([HELLO, HELLO])) == 2
    longer = llm.chat(
        [*HELLO, {"role": "assistant", "content": "It is"}], continue_final_message=True
    )
    assert tokenizer().decode(longer[0].prompt_token_ids).endswith("It is")


@pytest.mark.parametrize(
    "prompts",
    [
        "",
        [],
        [[]],
        [""],
        ["a", ""],
        [1, "a"],
        [-1],
        [512],
        [True],
        [1.5],
        None,
        5,
        {"a": 1},
        [[1], "a"],
    ],
)
def test_bad_prompts_leave_no_trace(llm: LLM, prompts: Any) -> None:
    with pytest.raises(RequestError):
        llm.generate(prompts)
    assert not llm.engine.core.has_work()
    assert len(llm.generate("next")) == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": float("nan")},
        {"top_p": 2},
        {"max_tokens": -1},
        {"nonsense": 1},
        {"stop_token_ids": [10**6]},
        {"max_tokens": 600},
        {"n": 0},
        {"stop": 5},
        {"stop": {"a": 1}},
        {"stop_token_ids": 5},
        {"stop_token_ids": "12"},
        {"bad_words": "abc"},  # once the words a, b and c
        {"bad_words": b"abc"},
        {"allowed_token_ids": "12"},
        {"ignore_eos": "false"},
        {"skip_special_tokens": None},
        {"include_stop_str_in_output": 1},
    ],
)
def test_bad_params_leave_no_trace(llm: LLM, fields: dict[str, Any]) -> None:
    with pytest.raises(RequestError):
        llm.generate(["good", "good"], [{"max_tokens": 1}, fields])
    assert not llm.engine.core.has_work()
    with pytest.raises(RequestError):
        llm.stream("a", fields)
    assert len(llm.generate("next")) == 1


@pytest.mark.parametrize("tools", [5, "f", {"a": 1}, [5]])
def test_bad_tools(llm: LLM, tools: Any) -> None:
    for call in (llm.chat, llm.stream_chat):
        with pytest.raises(RequestError, match="tools"):
            call(HELLO, tools=tools)


@pytest.mark.parametrize(
    "messages",
    [[], [[]], [{"role": "x", "content": "a"}], ["hi"], [5], 5, "hi", HELLO[0], {0: HELLO[0]}],
)
def test_bad_messages(llm: LLM, messages: Any) -> None:
    with pytest.raises(RequestError):
        llm.chat(messages)
    assert len(llm.chat(HELLO, {"max_tokens": 1})) == 1


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    n=st.integers(1, 4),
    seed=st.integers(0, 1000),
    max_tokens=st.integers(0, 20),
    stop=st.none() | st.text("aeiou th", min_size=1, max_size=2),
)
def test_a_stream_is_the_whole_output_cut_up(
    llm: LLM, n: int, seed: int, max_tokens: int, stop: str | None
) -> None:
    fields = {"n": n, "seed": seed, "max_tokens": max_tokens, "stop": stop or [], "logprobs": 1}
    (whole,) = llm.generate("hello", fields)
    for choice in whole.outputs:
        deltas = [d for d in llm.stream("hello", fields) if d.index == choice.index]
        assert "".join(d.text for d in deltas) == choice.text
        assert [t for d in deltas for t in d.token_ids] == choice.token_ids
        assert [p for d in deltas for p in d.logprobs or []] == (choice.logprobs or [])
        assert [d.finish_reason for d in deltas if d.finish_reason] == [choice.finish_reason]


def test_streams_read_in_turns_do_not_mix(llm: LLM) -> None:
    fields = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}
    alone = [llm.generate(prompt, fields)[0].text for prompt in ("one", "two")]
    streams = [llm.stream(prompt, fields) for prompt in ("one", "two")]
    texts = ["", ""]
    while streams[0]._left or streams[1]._left:
        for i, stream in enumerate(streams):
            texts[i] += next(stream).text if stream._left else ""
    assert texts == alone
    assert llm.generate("one", fields)[0].text == alone[0]


def test_generate_while_a_stream_is_open(llm: LLM) -> None:
    fields = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}
    expected = llm.generate("one", fields)[0].text
    with llm.stream("one", fields) as stream:
        text = next(stream).text
        llm.generate("two", fields)
        text += "".join(delta.text for delta in stream)
    assert text == expected


def test_leaving_a_stream_frees_it(llm: LLM) -> None:
    fields = {"max_tokens": 100, "ignore_eos": True}
    with llm.stream("a", fields) as stream:
        next(stream)
    assert not llm.engine.core.has_work()
    dropped = llm.stream("a", fields)
    assert llm.engine.core.has_work()
    del dropped  # never read at all
    gc.collect()
    assert not llm.engine.core.has_work()


def test_interrupting_a_batch_aborts_it(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = runner_of(llm.engine)
    runner.error = KeyboardInterrupt()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["a", "b"])
    runner.error = None
    assert not llm.engine.core.has_work()
    assert len(llm.generate("next")) == 1


def test_logits_that_are_not_numbers(llm: LLM) -> None:
    runner_of(llm.engine).nan_token = 65
    with pytest.raises(TinyServeError, match="NaN"):
        llm.generate([[65], [66]])
    assert len(llm.generate([[66]], SamplingParams(max_tokens=1))) == 1  # more might be the 65


def test_configuration_of_an_llm(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[TinyServeConfig] = []

    def fake_build(config: TinyServeConfig) -> Any:
        asked.append(config)
        return make_engine()

    monkeypatch.setattr(llm_module, "build_engine", fake_build)
    LLM()
    LLM("some/model")
    LLM(model="x", config={"cache": {"block_size": 8}}, max_model_len=64, threads=1)
    LLM(config=TinyServeConfig(), kv_cache_memory="1GiB")
    assert [config.model.name for config in asked] == ["default", "some/model", "x", "default"]
    assert asked[2].cache.block_size == 8
    assert (asked[2].scheduler.max_model_len, asked[2].model.threads) == (64, 1)
    assert (asked[3].cache.num_blocks, asked[3].cache.kv_cache_memory) == (None, 1 << 30)
    with pytest.raises(ConfigError, match="did you mean 'max_model_len'"):
        LLM(max_modle_len=5)
    with pytest.raises(ConfigError, match="config must be"):
        LLM(config=5)  # type: ignore[arg-type]
