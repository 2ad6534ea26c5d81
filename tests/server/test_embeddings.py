"""`/v1/embeddings`: shapes, inputs, extras, limits, and the life of a request of many parts.

The fake model's states are four numbers that any change of a prompt changes.
"""

from __future__ import annotations

import base64
import struct
from typing import Any

import openai
import pytest
from helpers.fake_engine import HIDDEN
from helpers.fake_service import make_engine, tokenizer
from helpers.live_server import Live, live, ok, wait_for
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

PATH = "/v1/embeddings"


def embed(served: Live, text: Any = "hello", **body: Any) -> dict[str, Any]:
    return ok(served.post(PATH, input=text, **body))


def vectors(answer: dict[str, Any]) -> list[list[float]]:
    assert [item["index"] for item in answer["data"]] == list(range(len(answer["data"])))
    return [item["embedding"] for item in answer["data"]]


def length(vector: list[float]) -> float:
    return sum(x * x for x in vector) ** 0.5


def refused(served: Live, status: int = 400, **body: Any) -> dict[str, Any]:
    """The error of a request that must fail; the next request must work."""
    response = served.post(PATH, **{"input": "hello", **body})
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    embed(served)
    return error


def test_shape_of_an_answer(served: Live) -> None:
    answer = embed(served, "hello you")
    (item,) = answer.pop("data")
    assert set(item) == {"object", "index", "embedding"}
    assert item["object"] == "embedding"
    assert len(item["embedding"]) == HIDDEN
    count = len(tokenizer().encode("hello you"))
    usage = {"prompt_tokens": count, "total_tokens": count}
    assert answer == {"object": "list", "model": "synthetic", "usage": usage}


@pytest.mark.parametrize(
    ("text", "count"),
    [("a b", 1), (["a", "b"], 2), ([65, 66], 1), ([[65, 66], [67]], 2), (["one"], 1), ([5], 1)],
)
def test_every_form_of_input(served: Live, text: Any, count: int) -> None:
    assert len(vectors(embed(served, text))) == count


def test_inputs_keep_their_order_and_do_not_touch_each_other(served: Live) -> None:
    texts = [f"text number {i} " + "and so on " * (i % 7) for i in range(40)]
    together = embed(served, texts)
    alone = [embed(served, text) for text in texts]
    assert vectors(together) == [vectors(answer)[0] for answer in alone]
    assert together["usage"]["prompt_tokens"] == sum(a["usage"]["prompt_tokens"] for a in alone)


def test_token_ids_are_the_text(served: Live) -> None:
    ids = tokenizer().encode("hello you")
    assert vectors(embed(served, ids)) == vectors(embed(served, "hello you"))


def test_vectors_have_unit_length_unless_told_otherwise(served: Live) -> None:
    (unit,) = vectors(embed(served))
    (raw,) = vectors(embed(served, normalize=False))
    assert length(unit) == pytest.approx(1, rel=1e-6)
    assert length(raw) != pytest.approx(1, rel=1e-3)
    assert [x / length(raw) for x in raw] == pytest.approx(unit, rel=1e-6)


def test_base64_holds_the_same_numbers(served: Live) -> None:
    (want,) = vectors(embed(served))
    (text,) = vectors(embed(served, encoding_format="base64"))
    got = struct.unpack(f"<{HIDDEN}f", base64.b64decode(text))  # type: ignore[arg-type]
    assert list(got) == want


def test_pooling_can_be_asked_for(served: Live) -> None:
    text = "one two three"
    assert vectors(embed(served, text)) == vectors(embed(served, text, pooling="mean"))
    assert vectors(embed(served, text)) != vectors(embed(served, text, pooling="last"))


def test_one_token_is_its_own_mean(served: Live) -> None:
    assert vectors(embed(served, [65], pooling="mean")) == vectors(
        embed(served, [65], pooling="last")
    )


def test_truncation_keeps_the_last_tokens_and_usage_counts_those(served: Live) -> None:
    ids = tokenizer().encode("hello you there")
    answer = embed(served, ids, truncate_prompt_tokens=3)
    assert vectors(answer) == vectors(embed(served, ids[-3:]))
    assert answer["usage"]["prompt_tokens"] == 3
    assert vectors(embed(served, ids, truncate_prompt_tokens=1000)) == vectors(embed(served, ids))
    long = [5 + i % 90 for i in range(700)]
    assert embed(served, long, truncate_prompt_tokens=-1)["usage"]["prompt_tokens"] == 512


def test_dimensions_may_only_be_the_models_own(served: Live) -> None:
    size = served.engine.intake.embedding_size
    embed(served, dimensions=size)
    error = refused(served, dimensions=size // 2)
    assert error["param"] == "dimensions"
    assert str(size) in error["message"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": None}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["fine", ""]}, "input"),
        ({"input": [[]]}, "input"),
        ({"input": [1, "a"]}, "input"),
        ({"input": [1.5]}, "input"),
        ({"input": [True]}, "input"),
        ({"input": {"text": "a"}}, "input"),
        ({"input": 5}, "input"),
        ({"input": [0, 10**7]}, "input"),
        ({"input": [-1]}, "input"),
        ({"input": ["a"] * 2049}, "input"),
        ({"input": [5] * 513}, "input"),
        ({"input": [[5], [5] * 513]}, "input"),
        ({"encoding_format": "int8"}, "encoding_format"),
        ({"dimensions": 0}, "dimensions"),
        ({"dimensions": "64"}, "dimensions"),
        ({"pooling": "cls"}, "pooling"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        ({"truncation_side": "right"}, "truncation_side"),
        ({"normalize": "yes"}, "normalize"),
        ({"priority": 2**40}, "priority"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"input": None, "messages": [{"role": "user", "content": "a"}]}, "messages"),
    ],
    ids=repr,
)
def test_bad_requests_are_refused_by_name(served: Live, body: dict[str, Any], param: str) -> None:
    error = refused(served, **body)
    assert error["param"] is not None
    assert error["param"].partition("[")[0] == param
    assert error["type"] == "invalid_request_error"


def test_too_long_an_input_is_named_with_its_place(served: Live) -> None:
    error = refused(served, input=[0, 10**7])
    assert str(10**7) in error["message"]
    assert "input[1]" in refused(served, input=["fine", ""])["message"]
    long = refused(served, input=[5] * 513)
    assert long["code"] == "context_length_exceeded"
    assert "512" in long["message"]


def test_an_unknown_model_is_not_found(served: Live) -> None:
    assert refused(served, 404, model="gpt-4")["code"] == "model_not_found"
    embed(served, model="tinyserve")


def test_a_whole_context_can_be_embedded(served: Live) -> None:
    assert embed(served, [5] * 512)["usage"]["prompt_tokens"] == 512


def test_states_that_are_not_numbers_fail_the_request_alone(served: Live) -> None:
    served.runner.nan_token = 77
    assert served.post(PATH, input=[[5, 6], [7, 77]]).status_code == 500
    embed(served, [[5, 6], [7, 8]])


def test_a_client_that_leaves_takes_all_its_inputs_along(served: Live) -> None:
    served.runner.gate.clear()
    import http.client
    import json

    host, _, port = served.base_url.removeprefix("http://").partition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=20)
    body = json.dumps({"input": [[5 + i] * 30 for i in range(60)]})
    connection.request("POST", PATH, body, {"content-type": "application/json"})
    wait_for(lambda: served.bridge.num_open == 60)
    connection.close()
    wait_for(lambda: served.bridge.num_open == 0)
    served.runner.gate.set()
    served.wait_idle()


def test_many_inputs_are_one_request_in_the_queue() -> None:
    with live(make_engine(server={"max_queued_requests": 1})) as served:
        assert len(vectors(embed(served, ["a b c"] * 300))) == 300


def test_the_official_client(served: Live) -> None:
    with openai.OpenAI(base_url=f"{served.base_url}/v1", api_key="none") as client:
        default = client.embeddings.create(model="tinyserve", input=["hello", "you"])
        floats = client.embeddings.create(
            model="tinyserve", input=["hello", "you"], encoding_format="float"
        )
        assert [d.embedding for d in default.data] == [d.embedding for d in floats.data]
        assert default.usage.total_tokens == floats.usage.total_tokens > 0
        with pytest.raises(openai.BadRequestError, match="dimensions"):
            client.embeddings.create(model="tinyserve", input="hello", dimensions=1)


def test_the_document_describes_the_body(served: Live) -> None:
    document = ok(served.client.get("/openapi.json"))
    content = document["paths"][PATH]["post"]["requestBody"]["content"]
    assert {"input", "encoding_format", "dimensions"} <= set(
        content["application/json"]["schema"]["properties"]
    )


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    value=st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)  # no JSON
        | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=2),
        max_leaves=6,
    )
)
def test_whatever_the_input_it_is_answered_or_refused(served: Live, value: Any) -> None:
    response = served.post(PATH, input=value)
    assert response.status_code in (200, 400), response.text
    if response.status_code == 400:
        assert response.json()["error"]["message"]
