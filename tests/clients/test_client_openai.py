"""The official `openai` client's helpers: parsing into types, streams with tools, responses.

Its plain calls are tested in tests/server/test_openai_client.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import openai
import pytest
from helpers.fake_engine import HIDDEN
from helpers.live_server import Live
from pydantic import BaseModel

HELLO: Any = [{"role": "user", "content": "hello"}]


class Weather(BaseModel):
    city: Literal["Paris", "Rome"]
    rain: bool


class GetWeather(BaseModel):
    """The weather of some days in a city."""

    city: str
    days: int


def client_of(served: Live) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{served.base_url}/v1", api_key="none", max_retries=0)


@pytest.fixture
def client(served: Live) -> Iterator[openai.OpenAI]:
    with client_of(served) as made:
        yield made


@pytest.fixture
def chance(random_model: Live) -> Iterator[openai.OpenAI]:
    """A client of the model that draws at random."""
    with client_of(random_model) as made:
        yield made


@pytest.mark.parametrize("seed", range(3))
def test_parse_gives_the_type(chance: openai.OpenAI, seed: int) -> None:
    answer = chance.chat.completions.parse(
        model="tinyserve", messages=HELLO, response_format=Weather, seed=seed
    )
    assert answer.choices[0].finish_reason == "stop"
    assert isinstance(answer.choices[0].message.parsed, Weather)


def test_stream_helper_parses_on_the_way(chance: openai.OpenAI) -> None:
    with chance.chat.completions.stream(
        model="tinyserve", messages=HELLO, response_format=Weather, seed=4
    ) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert isinstance(final.choices[0].message.parsed, Weather)


@pytest.mark.parametrize("parallel", [False, True])
def test_a_tool_that_must_be_called_has_arguments_of_its_type(
    chance: openai.OpenAI, parallel: bool
) -> None:
    answer = chance.chat.completions.parse(
        model="tinyserve",
        messages=HELLO,
        tools=[openai.pydantic_function_tool(Weather)],
        tool_choice="required",
        parallel_tool_calls=parallel,
        seed=5,
    )
    calls = answer.choices[0].message.tool_calls or []
    assert calls
    assert parallel or len(calls) == 1
    assert all(isinstance(call.function.parsed_arguments, Weather) for call in calls)


def test_stream_helper_with_tools(served: Live, client: openai.OpenAI, weather_call: str) -> None:
    served.runner.says(weather_call.replace("get_weather", "GetWeather"))
    tool = openai.pydantic_function_tool(GetWeather)
    with client.chat.completions.stream(model="tinyserve", messages=HELLO, tools=[tool]) as stream:
        done = [e for e in stream if e.type == "tool_calls.function.arguments.done"]
        final = stream.get_final_completion()
    assert [event.name for event in done] == ["GetWeather"]
    (call,) = final.choices[0].message.tool_calls or []
    assert call.function.parsed_arguments == GetWeather(city="Paris", days=2)


def test_responses(served: Live, client: openai.OpenAI) -> None:
    served.runner.says("well, hello 😀")
    answer = client.responses.create(model="tinyserve", input="hello", instructions="be brief")
    assert answer.output_text == "well, hello 😀"
    assert answer.status == "completed"
    with client.responses.stream(model="tinyserve", input="hello") as stream:
        text = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert text == final.output_text == "well, hello 😀"


def test_responses_parse(chance: openai.OpenAI) -> None:
    answer = chance.responses.parse(model="tinyserve", input="hello", text_format=Weather)
    assert isinstance(answer.output_parsed, Weather)


def test_embeddings(served: Live, client: openai.OpenAI) -> None:
    answer = client.embeddings.create(model="tinyserve", input=[[5, 6, 7], [8]])
    assert [len(item.embedding) for item in answer.data] == [HIDDEN, HIDDEN]
    assert answer.usage.prompt_tokens == 4


def test_raw_responses(served: Live, client: openai.OpenAI) -> None:
    served.runner.says("well")
    raw = client.chat.completions.with_raw_response.create(
        model="tinyserve", messages=HELLO, extra_headers={"x-request-id": "abc"}
    )
    assert raw.headers["x-request-id"] == "abc"
    assert raw.parse().choices[0].message.content == "well"
    answer = client.chat.completions.create(model="tinyserve", messages=HELLO)
    assert answer._request_id == answer.id
    with pytest.raises(openai.NotFoundError) as refused:
        client.chat.completions.create(model="no-such-model", messages=HELLO)
    assert refused.value.request_id


def test_many_at_once_with_the_asynchronous_client(served: Live) -> None:
    import asyncio

    async def ask_all() -> list[str | None]:
        async with openai.AsyncOpenAI(
            base_url=f"{served.base_url}/v1", api_key="none", max_retries=0
        ) as client:
            asked = [
                client.chat.completions.create(model="tinyserve", messages=HELLO) for _ in range(20)
            ]
            return [answer.choices[0].message.content for answer in await asyncio.gather(*asked)]

    served.runner.says("well")
    assert asyncio.run(ask_all()) == ["well"] * 20
