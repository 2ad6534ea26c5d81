"""LangChain's ChatOpenAI and OpenAIEmbeddings, pointed at this server."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from helpers.fake_engine import HIDDEN
from helpers.live_server import Live
from pydantic import BaseModel


@pytest.fixture
def chat(served: Live) -> Any:
    from langchain_openai import ChatOpenAI

    return ChatOpenAI(
        model="tinyserve",
        base_url=f"{served.base_url}/v1",
        api_key="none",
        max_retries=0,
        stream_usage=True,  # off by default for servers other than OpenAI's
    )


def test_invoke(served: Live, chat: Any) -> None:
    served.runner.says("well, hello")
    message = chat.invoke([("system", "be brief"), ("human", "hello")])
    assert message.content == "well, hello"
    assert message.response_metadata["finish_reason"] == "stop"
    assert message.usage_metadata["output_tokens"] > 1


def test_stream(served: Live, chat: Any) -> None:
    served.runner.says("well, hello 😀")
    chunks = list(chat.stream("hello"))
    assert len(chunks) > 2
    total = chunks[0]
    for chunk in chunks[1:]:
        total += chunk
    assert total.content == "well, hello 😀"
    assert total.usage_metadata["output_tokens"] > 1


def test_batch_and_several_choices(served: Live, chat: Any) -> None:
    from langchain_core.messages import HumanMessage

    served.runner.says("yes")
    assert [m.content for m in chat.batch(["a", "b", "c"])] == ["yes"] * 3
    result = chat.generate([[HumanMessage("hello")]], n=2, logprobs=True, top_logprobs=2)
    assert [generation.text for generation in result.generations[0]] == ["yes", "yes"]


class Weather(BaseModel):
    """The weather somewhere."""

    city: Literal["Paris", "Rome"]
    rain: bool


def get_weather(city: str, days: int) -> str:
    """The weather of some days in a city."""
    return f"{city}: {days}"


def test_tools(served: Live, chat: Any, weather_call: str) -> None:
    served.runner.says(weather_call)
    bound = chat.bind_tools([get_weather])
    message = bound.invoke("hello")
    (call,) = message.tool_calls
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Paris", "days": 2})
    assert message.response_metadata["finish_reason"] == "tool_calls"

    chunks = list(bound.stream("hello"))
    total = chunks[0]
    for chunk in chunks[1:]:
        total += chunk
    (streamed,) = total.tool_calls
    assert (streamed["name"], streamed["args"]) == (call["name"], call["args"])

    served.runner.says("two dry days")
    result = {"role": "tool", "content": "dry", "tool_call_id": call["id"]}
    answer = bound.invoke([("human", "hello"), message, result])
    assert answer.content == "two dry days"


def test_a_tool_that_must_be_called(chat_of_chance: Any) -> None:
    bound = chat_of_chance.bind_tools([Weather], tool_choice="Weather")
    (call,) = bound.invoke("hello").tool_calls
    assert Weather(**call["args"])


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output(chat_of_chance: Any, method: str) -> None:
    structured = chat_of_chance.with_structured_output(Weather, method=method)
    assert isinstance(structured.invoke("hello"), Weather)


@pytest.fixture
def chat_of_chance(random_model: Live) -> Any:
    from langchain_openai import ChatOpenAI

    return ChatOpenAI(
        model="tinyserve",
        base_url=f"{random_model.base_url}/v1",
        api_key="none",
        max_retries=0,
        seed=7,
    )


def test_embeddings(served: Live) -> None:
    from langchain_openai import OpenAIEmbeddings

    embeddings = OpenAIEmbeddings(
        model="tinyserve",
        base_url=f"{served.base_url}/v1",
        api_key="none",
        check_embedding_ctx_length=False,  # its default counts tokens with a tokenizer of OpenAI's
    )
    rows = embeddings.embed_documents(["hello", "you"])
    assert [len(row) for row in rows] == [HIDDEN, HIDDEN]
    assert embeddings.embed_query("hello") == rows[0]
