"""LiteLLM, as its users and its proxy call other servers: `openai/` and `hosted_vllm/`."""

from __future__ import annotations

import json
from typing import Any, Literal

import pytest
from helpers.fake_engine import HIDDEN
from helpers.live_server import Live
from pydantic import BaseModel

MESSAGES = [{"role": "user", "content": "hello"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        },
    },
}


class Weather(BaseModel):
    city: Literal["Paris", "Rome"]
    rain: bool


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


def test_tools(served: Live, litellm: Any, where: dict[str, Any], weather_call: str) -> None:
    served.runner.says(weather_call)
    answer = litellm.completion(messages=MESSAGES, tools=[TOOL], **where)
    (call,) = answer.choices[0].message.tool_calls
    assert answer.choices[0].finish_reason == "tool_calls"
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments) == {"city": "Paris", "days": 2}
    chunks = list(litellm.completion(messages=MESSAGES, tools=[TOOL], stream=True, **where))
    whole = litellm.stream_chunk_builder(chunks, messages=MESSAGES)
    (streamed,) = whole.choices[0].message.tool_calls
    assert streamed.function.name == "get_weather"
    assert json.loads(streamed.function.arguments) == json.loads(call.function.arguments)


def test_structured_output(random_model: Live, litellm: Any) -> None:
    answer = litellm.completion(
        model="hosted_vllm/tinyserve",
        api_base=f"{random_model.base_url}/v1",
        api_key="none",
        messages=MESSAGES,
        response_format=Weather,
        seed=7,
    )
    assert Weather.model_validate_json(answer.choices[0].message.content)


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
