"""The official `anthropic` client on `/v1/messages`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from helpers.live_server import Live

HELLO: Any = [{"role": "user", "content": "hello"}]
TOOL: Any = {
    "name": "get_weather",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    },
}


@pytest.fixture
def client(served: Live) -> Iterator[Any]:
    import anthropic

    with anthropic.Anthropic(base_url=served.base_url, api_key="none", max_retries=0) as made:
        yield made


def test_messages(served: Live, client: Any) -> None:
    served.runner.says("well, hello")
    message = client.messages.create(
        model="tinyserve",
        max_tokens=50,
        messages=HELLO,
        system="be brief",
        extra_body={"temperature": 0.5},  # the newest client has no such parameter of its own
    )
    assert [block.text for block in message.content] == ["well, hello"]
    assert (message.role, message.stop_reason) == ("assistant", "end_turn")
    assert message.usage.output_tokens > 1


def test_stream(served: Live, client: Any) -> None:
    served.runner.says("well, hello 😀")
    with client.messages.stream(model="tinyserve", max_tokens=50, messages=HELLO) as stream:
        text = "".join(stream.text_stream)
        message = stream.get_final_message()
    assert text == "well, hello 😀"
    assert message.content[0].text == text
    assert message.stop_reason == "end_turn"


def test_the_end_has_a_reason(served: Live, client: Any) -> None:
    served.runner.says("one two three END four")
    cut = client.messages.create(model="tinyserve", max_tokens=2, messages=HELLO)
    assert cut.stop_reason == "max_tokens"
    stopped = client.messages.create(
        model="tinyserve", max_tokens=50, messages=HELLO, stop_sequences=["END"]
    )
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "END")
    assert stopped.content[0].text == "one two three "


def test_tools(served: Live, client: Any, weather_call: str) -> None:
    served.runner.says(f"Let me see.\n{weather_call}")
    asked: Any = {"model": "tinyserve", "max_tokens": 200, "tools": [TOOL]}
    message = client.messages.create(messages=HELLO, **asked)
    assert message.stop_reason == "tool_use"
    text, call = message.content
    assert (text.type, call.type, call.name) == ("text", "tool_use", "get_weather")
    assert call.input == {"city": "Paris", "days": 2}

    with client.messages.stream(messages=HELLO, **asked) as stream:
        streamed = stream.get_final_message()
    assert streamed.content[1].input == call.input
    assert streamed.stop_reason == "tool_use"

    served.runner.says("two dry days")
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "dry"}
    turns = [
        *HELLO,
        {"role": "assistant", "content": message.content},
        {"role": "user", "content": [result]},
    ]
    answer = client.messages.create(messages=turns, **asked)
    assert answer.content[0].text == "two dry days"


def test_tool_runner(served: Live, client: Any, weather_call: str) -> None:
    """It asks for a thread that the server keeps, and does without one when it is told to."""
    import anthropic

    if not hasattr(client.beta.messages, "tool_runner"):
        pytest.skip("this client has no tool runner")
    asked: list[tuple[str, int]] = []

    @anthropic.beta_tool
    def get_weather(city: str, days: int) -> str:
        """The weather of some days in a city."""
        asked.append((city, days))
        served.runner.says("two dry days")
        return "dry"

    served.runner.says(weather_call)
    runner = client.beta.messages.tool_runner(
        model="tinyserve", max_tokens=200, tools=[get_weather], messages=HELLO
    )
    first, last = list(runner)
    assert asked == [("Paris", 2)]
    assert last.content[0].text == "two dry days"
    used = [message.usage for message in (first, last)]
    length = [usage.input_tokens + (usage.cache_read_input_tokens or 0) for usage in used]
    assert length[1] > length[0] + used[0].output_tokens  # the second turn came with the first


def test_count_tokens(served: Live, client: Any) -> None:
    served.runner.says("well")
    counted = client.messages.count_tokens(model="tinyserve", messages=HELLO)
    message = client.messages.create(model="tinyserve", max_tokens=5, messages=HELLO)
    assert counted.input_tokens == message.usage.input_tokens


def test_errors_have_the_clients_types(served: Live, client: Any) -> None:
    import anthropic

    with pytest.raises(anthropic.BadRequestError):
        client.messages.create(model="tinyserve", max_tokens=-1, messages=HELLO)
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(model="no-such-model", max_tokens=5, messages=HELLO)


def test_models(served: Live, client: Any) -> None:
    (listed,) = client.models.list()
    told = client.models.retrieve(listed.id)
    assert (listed.type, listed.id, listed.display_name) == ("model", told.id, told.id)
    assert listed.created_at == told.created_at
    assert int(listed.created_at.timestamp()) == served.state.ready()[0].created
    page = client.models.list(limit=1)
    assert (page.has_more, page.first_id, page.last_id) == (False, told.id, told.id)


def test_responses_have_a_request_id(served: Live, client: Any) -> None:
    import anthropic

    message = client.messages.create(model="tinyserve", max_tokens=5, messages=HELLO)
    assert message._request_id == message.id
    with pytest.raises(anthropic.BadRequestError) as refused:
        client.messages.create(model="tinyserve", max_tokens=-1, messages=HELLO)
    assert refused.value.request_id
