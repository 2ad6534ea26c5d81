"""LiteLLM, as its users and its proxy call other servers: `openai/` and `hosted_vllm/`."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.fake_engine import HIDDEN
from helpers.live_server import Live

MESSAGES = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def litellm() -> Any:
    import litellm

    return litellm


@pytest.fixture(params=["openai", "hosted_vllm"])
def where(request: pytest.FixtureRequest, served: Live) -> dict[str, Any]:
    """How a call names the server."""
    return {
        "model": f"{request.param}/tinyserve",
        "api_base": f"{served.base_url}/v1",
        "api_key": "none",
        "num_retries": 0,
    }


def test_completion(served: Live, litellm: Any, where: dict[str, Any]) -> None:
    served.runner.says("well, hello")
    answer = litellm.completion(messages=MESSAGES, max_tokens=50, temperature=0.5, **where)
    assert answer.choices[0].message.content == "well, hello"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens > 1
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_stream(served: Live, litellm: Any, where: dict[str, Any]) -> None:
    served.runner.says("well, hello 😀")
    options = {"include_usage": True}
    chunks = list(
        litellm.completion(messages=MESSAGES, stream=True, stream_options=options, **where)
    )
    assert (
        "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "well, hello 😀"
    )
    whole = litellm.stream_chunk_builder(chunks, messages=MESSAGES)
    assert whole.choices[0].message.content == "well, hello 😀"
    assert whole.choices[0].finish_reason == "stop"


def test_text_completion(served: Live, litellm: Any, where: dict[str, Any]) -> None:
    served.runner.says("a fine day")
    provider = where["model"].partition("/")[0]
    if provider == "openai":
        where = {**where, "model": "text-completion-openai/tinyserve"}
    answer = litellm.text_completion(prompt="today is", max_tokens=50, **where)
    assert answer.choices[0].text == "a fine day"


def test_embedding(served: Live, litellm: Any, where: dict[str, Any]) -> None:
    answer = litellm.embedding(input=["hello", "you"], **where)
    rows = [item["embedding"] for item in answer.data]
    assert [len(row) for row in rows] == [HIDDEN, HIDDEN]
    assert rows[0] != rows[1]
    assert answer.usage.prompt_tokens > 0


def test_an_error_keeps_its_meaning(served: Live, litellm: Any, where: dict[str, Any]) -> None:
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(messages=[{"role": "user", "content": "a b " * 3000}], **where)
    with pytest.raises(litellm.BadRequestError):
        litellm.completion(messages=MESSAGES, temperature=-1, **where)
    name = where["model"].partition("/")[0] + "/no-such-model"
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(messages=MESSAGES, **{**where, "model": name})
