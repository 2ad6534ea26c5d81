"""What may be handed to an `LLM`: iterables, arrays, mappings, and vLLM's names of arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.fake_service import assert_idle, make_engine, runner_of, tokenizer

from tinyserve import LLM, SamplingParams, TinyServeConfig
from tinyserve.errors import RequestError

HELLO = [{"role": "user", "content": "hello"}]
ONE = {"max_tokens": 1}


@pytest.fixture
def llm() -> Iterator[LLM]:
    with LLM.from_engine(make_engine()) as made:
        yield made
    assert_idle(made.engine)


class Column:
    """As a table of another library has it: no list, and no array either."""

    def __iter__(self) -> Iterator[str]:
        return iter(["one", "two"])


@pytest.mark.parametrize(
    "prompts",
    [
        lambda: (text for text in ("one", "two")),
        lambda: {"one": 1, "two": 2}.keys(),
        lambda: map(str, ["one", "two"]),
        lambda: np.array(["one", "two"]),
        lambda: np.array(["one", "two"], dtype=object),
        Column,
        lambda: [{"prompt": "one"}, {"prompt": "two"}],
        lambda: ({"prompt": text} for text in ("one", "two")),
        lambda: ["one", {"prompt": "two"}],
    ],
)
def test_texts_in_any_iterable(llm: LLM, prompts: Callable[[], Any]) -> None:
    outputs = llm.generate(prompts(), ONE)
    assert [output.prompt for output in outputs] == ["one", "two"]
    assert llm.embed(prompts()).shape[0] == 2


@pytest.mark.parametrize(
    "ids",
    [
        np.array([65, 66]),
        [np.int64(65), np.int32(66)],
        range(65, 67),
        (65, 66),
        np.array([[65, 66]], dtype=np.uint16),
        [np.array([65, 66])],
        [[np.int64(65), 66]],
        iter([65, 66]),
        {"prompt_token_ids": [65, 66]},
        {"prompt": "anything", "prompt_token_ids": np.array([65, 66])},
        [{"prompt_token_ids": (65, 66), "prompt": None}],
    ],
)
def test_ids_of_any_integer_type(llm: LLM, ids: Any) -> None:
    (output,) = llm.generate(ids, ONE)
    assert output.prompt_token_ids == [65, 66]
    assert all(type(token_id) is int for token_id in output.prompt_token_ids)


@pytest.mark.parametrize(
    "prompts",
    [
        b"abc",
        bytearray(b"abc"),
        iter([]),
        np.array([1.5]),
        np.array([True]),
        {},
        {"prompt": None},
        {"prompt": ""},
        {"prompt": [65]},
        {"prompt_token_ids": "65"},
        {"prompt_token_ids": []},
        {"prompt_token_ids": [[65]]},
        {"prompt": "a", "multi_modal_data": {}},
        [{"prompt": "a"}, {"text": "b"}],
        [{"prompt": "a"}, ["b", "c"]],
        [{"prompt": "a"}, 5],
    ],
)
def test_what_is_no_prompt(llm: LLM, prompts: Any) -> None:
    for call in (llm.generate, llm.embed):
        with pytest.raises(RequestError, match="prompts"):
            call(prompts)
    assert not llm.engine.core.has_work()


def test_conversations_and_parameters_in_any_iterable(llm: LLM) -> None:
    chats = np.empty(2, dtype=object)
    chats[:] = [HELLO, HELLO]
    for many in (chats, iter([HELLO, HELLO]), (tuple(HELLO), np.array(HELLO))):
        assert len(llm.chat(many, ONE)) == 2
    assert len(llm.chat(np.array(HELLO), ONE)) == 1
    params = (SamplingParams(max_tokens=n, ignore_eos=True) for n in (1, 2))
    assert [len(o.token_ids) for o in llm.generate(["a", "b"], params)] == [1, 2]


def test_numbers_of_numpy() -> None:
    params = SamplingParams(
        temperature=np.float32(0.5),  # type: ignore[arg-type]
        max_tokens=np.int64(4),  # type: ignore[arg-type]
        seed=np.uint8(7),  # type: ignore[arg-type]
        ignore_eos=np.bool_(True),  # type: ignore[arg-type]
        stop_token_ids=np.array([1, 2]),  # type: ignore[arg-type]
        logit_bias={np.int64(3): np.float32(1)},  # type: ignore[dict-item]
    )
    assert params == SamplingParams(
        temperature=0.5,
        max_tokens=4,
        seed=7,
        ignore_eos=True,
        stop_token_ids=(1, 2),
        logit_bias={3: 1.0},
    )
    assert type(params.max_tokens) is type(params.stop_token_ids[0]) is int
    with pytest.raises(RequestError, match="max_tokens"):
        SamplingParams(max_tokens=np.float64(4.0))  # type: ignore[arg-type]


def test_the_names_of_vllm(llm: LLM) -> None:
    runner_of(llm.engine).says("x" * 40)
    params = SamplingParams(temperature=0, max_tokens=3, logprobs=0)
    for (output,) in (
        llm.generate("a", sampling_params=params, use_tqdm=False),
        llm.generate(prompts=["a"], sampling_params=[params], use_tqdm=False),
        llm.chat(HELLO, sampling_params=params, use_tqdm=False, chat_template_kwargs={"x": 1}),
    ):
        assert output.outputs[0].text == "xxx"
        expected = sum(token.logprob or 0.0 for token in output.logprobs or [])
        assert output.outputs[0].cumulative_logprob == expected != 0
    assert llm.generate("a", ONE)[0].outputs[0].cumulative_logprob is None
    assert llm.embed(["a"], use_tqdm=False).shape[0] == 1
    (default,) = llm.generate("a", llm.get_default_sampling_params())
    assert len(default.token_ids) == 16
    assert llm.get_tokenizer().decode(llm.get_tokenizer().encode("hello")) == "hello"
    with pytest.raises(RequestError, match="the same"):
        llm.generate("a", params, sampling_params=params)


def test_a_chat_template_of_the_call(llm: LLM) -> None:
    template = "{{ messages[0].content }}{{ mark }}"
    options: dict[str, Any] = {"chat_template": template, "chat_template_kwargs": {"mark": "!"}}
    (output,) = llm.chat(HELLO, ONE, **options)
    assert tokenizer().decode(output.prompt_token_ids) == "hello!"
    assert len(list(llm.stream_chat(HELLO, ONE, **options))) == 1
    assert llm.chat(HELLO, ONE, chat_template=None)[0].prompt_token_ids != output.prompt_token_ids
    for wrong in ({"chat_template": 5}, {"template_kwargs": 5}):
        with pytest.raises(RequestError, match=next(iter(wrong))):
            llm.chat(HELLO, **wrong)


def test_an_argument_that_there_is_not(llm: LLM) -> None:
    for call, name in ((llm.chat, "chat"), (llm.stream_chat, "stream_chat")):
        with pytest.raises(TypeError, match=rf"^{name}\(\).*'nonsense'"):
            call(HELLO, nonsense=1)


def test_a_models_place_may_be_a_path() -> None:
    sections = {"model": {"name": Path("some") / "model.gguf"}}
    assert TinyServeConfig.from_dict(sections).model.name == "some/model.gguf"
    settings = TinyServeConfig().with_settings({"chat_template": Path("x.jinja")})
    assert settings.model.chat_template == "x.jinja"
