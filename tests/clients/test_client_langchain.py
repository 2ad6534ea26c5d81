"""LangChain's ChatOpenAI and OpenAIEmbeddings, pointed at this server."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.fake_engine import HIDDEN
from helpers.live_server import Live


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
