"""The OpenAPI document against the server, by schemathesis: what is documented is what happens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from helpers.fake_service import make_engine
from helpers.fuzz_bodies import ALIASES
from helpers.live_server import Live, live
from hypothesis import HealthCheck, given, settings

schemathesis = pytest.importorskip("schemathesis")
checks = pytest.importorskip("schemathesis.specs.openapi.checks")

# A schema cannot say what depends on the model: its vocabulary, context, and chat template.
BEYOND = [checks.positive_data_acceptance]
FAST = 15  # examples of each operation
SLOW = 200
KEY = {"Authorization": "Bearer key"}


@pytest.fixture(scope="module")
def guarded() -> Iterator[Live]:
    engine = make_engine(
        server={"api_key": ["key"], "request_timeout_s": 20}, scheduler={"max_model_len": 64}
    )
    with live(engine) as served:
        yield served


@pytest.fixture(scope="module")
def document(guarded: Live) -> Any:
    return schemathesis.openapi.from_url(f"{guarded.base_url}/openapi.json", headers=KEY)


def validate(document: Any, guarded: Live, max_examples: int, **generation: Any) -> int:
    """Try every operation; how many there are. Raises on the first that is not as documented."""
    operations = [result.ok() for result in document.get_all_operations()]
    operations = [operation for operation in operations if operation.path not in ALIASES]
    if generation["generation_mode"] is schemathesis.GenerationMode.NEGATIVE:
        operations = [operation for operation in operations if operation.body]
    for operation in operations:

        @settings(max_examples=max_examples, deadline=None, suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy(**generation))
        def run(case: Any) -> None:
            case.call_and_validate(headers=KEY, timeout=60, excluded_checks=BEYOND)

        run()
        assert guarded.bridge.death is None
        guarded.wait_idle()
    return len(operations)


MODES = ["POSITIVE", "NEGATIVE"]


@pytest.mark.parametrize("mode", MODES)
def test_the_document_is_true(document: Any, guarded: Live, mode: str) -> None:
    generation = {"generation_mode": getattr(schemathesis.GenerationMode, mode)}
    assert validate(document, guarded, FAST, **generation) >= 8


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mode", MODES)
def test_the_document_is_true_of_many_requests(document: Any, guarded: Live, mode: str) -> None:
    generation = {"generation_mode": getattr(schemathesis.GenerationMode, mode)}
    validate(document, guarded, SLOW, **generation)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "x", "max_tokens": 1}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}),
        ("/v1/responses", {"input": "x", "max_output_tokens": 1}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}),
    ],
)
def test_the_documented_bounds_are_the_real_ones(
    guarded: Live, path: str, body: dict[str, Any]
) -> None:
    document = guarded.client.get("/openapi.json", headers=KEY).json()
    content = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
    checked = 0
    for name, declared in content["schema"]["properties"].items():
        for number in declared.get("anyOf", [declared]) if name != "prompt" else ():
            for edge, beyond in (("minimum", -1), ("maximum", 1)):
                if number.get(edge) is None or name == "truncate_prompt_tokens":
                    continue
                bound = int(number[edge]) if number["type"] == "integer" else number[edge]
                for value, expected in ((bound, 200), (bound + beyond, 400)):
                    is_chat = path == "/v1/chat/completions"
                    extra = {"logprobs": True} if is_chat and name == "top_logprobs" else {}
                    request = {**body, **extra, name: value}
                    response = guarded.client.post(path, json=request, headers=KEY)
                    assert response.status_code == expected, (name, value, response.text)
                    checked += 1
    assert checked >= 32
