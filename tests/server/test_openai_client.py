"""The official `openai` client against a running server."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest
from helpers.fake_service import make_engine
from helpers.live_server import Live, live
from helpers.slow_gate import LateGate


@pytest.fixture
def client(served: Live) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.base_url}/v1", api_key="none", max_retries=0) as made:
        yield made


def test_completions(served: Live, client: openai.OpenAI) -> None:
    served.runner.says("a fine day")
    answer = client.completions.create(model="tinyserve", prompt="x", max_tokens=30, logprobs=2)
    assert answer.choices[0].text == "a fine day"
    assert answer.choices[0].logprobs is not None
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    stream = client.completions.create(model="tinyserve", prompt="x", max_tokens=30, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == "a fine day"


def test_chat(served: Live, client: openai.OpenAI) -> None:
    served.runner.says("well, hello 😀")
    answer = client.chat.completions.create(
        model="tinyserve",
        messages=[{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        logprobs=True,
        top_logprobs=2,
        n=2,
        extra_body={"top_k": 5, "min_p": 0.1},
    )
    assert [choice.message.content for choice in answer.choices] == ["well, hello 😀"] * 2
    assert answer.choices[0].logprobs is not None
    assert answer.choices[0].logprobs.content is not None
    assert len(answer.choices[0].logprobs.content[0].top_logprobs) == 2


def test_chat_stream_with_usage(served: Live, client: openai.OpenAI) -> None:
    served.runner.says("well, hello")
    stream = client.chat.completions.create(
        model="tinyserve",
        messages=[{"role": "user", "content": "hi"}],
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == "well, hello"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens > 1


def test_leaving_a_stream_early(served: Live, client: openai.OpenAI) -> None:
    with client.completions.create(
        model="tinyserve",
        prompt="x",
        max_tokens=400,
        stream=True,
        extra_body={"ignore_eos": True},
    ) as stream:
        next(iter(stream))
    served.wait_idle()


def test_models(client: openai.OpenAI) -> None:
    (model,) = client.models.list()
    assert client.models.retrieve(model.id).id == model.id
    answer = client.completions.create(model=model.id, prompt="x", max_tokens=1)
    assert answer.model == model.id


def test_errors_have_the_clients_types(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="tinyserve", prompt="x", temperature=-1)
    assert caught.value.param == "temperature"
    with pytest.raises(openai.NotFoundError) as missing:
        client.completions.create(model="gpt-4", prompt="x")
    assert missing.value.code == "model_not_found"


def test_an_error_in_the_middle_of_a_stream_is_raised() -> None:
    with live(make_engine(), check_idle=False) as served:
        served.runner.says("a" * 100)
        served.runner.gate = LateGate(3)  # or all might be there before the client has read any
        url = f"{served.base_url}/v1"
        with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
            stream = client.completions.create(
                model="tinyserve", prompt="x", max_tokens=100, stream=True
            )
            next(iter(stream))
            served.runner.error = RuntimeError("the model fell over")
            served.runner.gate.set()
            with pytest.raises(openai.APIError, match="engine has stopped"):
                list(stream)


def test_a_wrong_key_is_an_authentication_error() -> None:
    with live(make_engine(server={"api_key": "secret"})) as served:
        url = f"{served.base_url}/v1"
        with openai.OpenAI(base_url=url, api_key="secret", max_retries=0) as right:
            assert len(list(right.models.list())) == 1
        with (
            openai.OpenAI(base_url=url, api_key="wrong", max_retries=0) as wrong,
            pytest.raises(openai.AuthenticationError),
        ):
            wrong.models.list()
