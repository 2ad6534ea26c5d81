"""Structured output over HTTP: every name it has, what is refused, and nobody delayed.

The fake model writes hashes, so that without a mask nothing here would come out right.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from typing import Any

import jsonschema
import openai
import pytest
from helpers.fake_service import make_engine, runner_of
from helpers.live_server import Live, live, ok
from pydantic import BaseModel

from tinyserve.text.grammar import Grammar
from tinyserve.text.grammar_spec import GrammarSpec

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
COLOUR = {"enum": ["red", "green", "café 😀"]}
SCHEMA = {
    "type": "object",
    "properties": {"colour": COLOUR, "count": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["colour", "count"],
}
GBNF = 'root ::= "x" [0-9] "y"'
LARK = 'start: "x" /[0-9]/ "y"'


def json_schema(schema: Any, **more: Any) -> dict[str, Any]:
    wrapped = {"name": "answer", "schema": schema, **more}
    return {"response_format": {"type": "json_schema", "json_schema": wrapped}}


def asked(path: str) -> dict[str, Any]:
    if path == CHAT:
        return {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 200}
    return {"prompt": "hello", "max_tokens": 200}


def texts(served: Live, path: str, **body: Any) -> list[str]:
    """The texts of the choices; each must have ended by itself."""
    choices = ok(served.post(path, **asked(path), **body))["choices"]
    assert {choice["finish_reason"] for choice in choices} == {"stop"}
    return [c["message"]["content"] if path == CHAT else c["text"] for c in choices]


def refused(served: Live, path: str = CHAT, status: int = 400, **body: Any) -> dict[str, Any]:
    """The error of a request that must fail, alike in a stream; the next request must work."""
    errors = []
    for is_stream in (False, True):
        response = served.post(path, **{**asked(path), **body}, stream=is_stream)
        assert response.status_code == status, response.text
        assert response.headers["content-type"].startswith("application/json")
        errors.append(response.json()["error"])
    assert errors[0] == errors[1]
    assert errors[0]["message"]
    served.complete(max_tokens=1)
    error: dict[str, Any] = errors[0]
    return error


def follows(text: str, schema: Any) -> bool:
    jsonschema.validate(json.loads(text), schema)
    return True


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    "body",
    [
        json_schema(SCHEMA),
        json_schema(SCHEMA, strict=True, description="A colour."),
        {"response_format": {"type": "json_object", "schema": SCHEMA}},
        {"response_format": {"type": "json_schema", "schema": SCHEMA}},
        {"structured_outputs": {"json": SCHEMA}},
        {"structured_outputs": {"json": json.dumps(SCHEMA)}},
        {"guided_json": SCHEMA},
        {"guided_json": json.dumps(SCHEMA), "guided_decoding_backend": "auto"},
        {"json_schema": SCHEMA},
        {"json_schema": json.dumps(SCHEMA)},
    ],
)
def test_gd_11_every_name_of_a_schema(served: Live, path: str, body: dict[str, Any]) -> None:
    (text,) = texts(served, path, **body)
    assert follows(text, SCHEMA)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    ("body", "pattern"),
    [
        ({"structured_outputs": {"regex": "[a-c]{3}é"}}, "[a-c]{3}é"),
        ({"guided_regex": "[a-c]{3}é"}, "[a-c]{3}é"),
        ({"regex": "[a-c]{3}é"}, "[a-c]{3}é"),
        ({"structured_outputs": {"choice": ["red", "日本"]}}, "red|日本"),
        ({"guided_choice": ["red", "日本"]}, "red|日本"),
        ({"structured_outputs": {"grammar": LARK}}, "x[0-9]y"),
        ({"structured_outputs": {"grammar": GBNF}}, "x[0-9]y"),
        ({"guided_grammar": GBNF}, "x[0-9]y"),
        ({"ebnf": GBNF}, "x[0-9]y"),
        ({"grammar": GBNF}, "x[0-9]y"),
    ],
)
def test_gd_11_every_name_of_the_others(
    served: Live, path: str, body: dict[str, Any], pattern: str
) -> None:
    (text,) = texts(served, path, **body)
    assert re.fullmatch(pattern, text)


@pytest.mark.parametrize(
    "body",
    [
        {"response_format": {"type": "json_object"}},
        {"structured_outputs": {"json_object": True}},
        {"structured_outputs": {"json_object": True, "disable_any_whitespace": True}},
    ],
)
def test_any_json_object(served: Live, body: dict[str, Any]) -> None:
    for seed in range(4):
        choice = ok(served.post(CHAT, **asked(CHAT), seed=seed, **body))["choices"][0]
        text = choice["message"]["content"]
        assert text.startswith("{")
        if choice["finish_reason"] == "stop":
            assert isinstance(json.loads(text), dict)


@pytest.mark.parametrize(
    "body",
    [
        {"response_format": {"type": "text"}},
        {"response_format": None, "structured_outputs": None, "guided_json": None},
        {"structured_outputs": {}},
        {"structured_outputs": {"json": None, "json_object": False}},
        {"guided_unknown": None},
    ],
)
def test_absent_is_absent(served: Live, body: dict[str, Any]) -> None:
    served.runner.says("plain words")
    assert texts(served, CHAT, **body) == ["plain words"]


def test_whitespace_as_the_request_wants_it(served: Live) -> None:
    compact = {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}}
    (text,) = texts(served, CHAT, **compact)
    assert text == json.dumps(json.loads(text), separators=(",", ":"), ensure_ascii=False)
    for body in (
        {"structured_outputs": {"json": SCHEMA, "whitespace_pattern": "[_]{0,2}"}},
        {"guided_json": SCHEMA, "guided_whitespace_pattern": "[_]{0,2}"},
    ):
        (text,) = texts(served, CHAT, **body)
        assert follows(text.replace("_", ""), SCHEMA)
        assert not re.search(r"[:,{]\s", text)


BAD_SCHEMA = {"type": "object", "properties": {"a": {"$ref": "#/missing"}}}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (json_schema(BAD_SCHEMA), "missing"),
        (json_schema("{}"), "object"),
        (json_schema(True), "object"),
        (json_schema(5), "object"),
        (json_schema(None), "missing"),
        (json_schema([SCHEMA]), "object"),
        (json_schema({"type": "array", "uniqueItems": True}), "uniqueItems"),
        (json_schema({"not": {"type": "string"}}), "not"),
        (json_schema(SCHEMA, strict="yes"), "strict"),
        (json_schema(SCHEMA, name=5), "name"),
        (json_schema(SCHEMA, shema={}), "shema"),
        ({"response_format": {"type": "json_schema"}}, "json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": "x"}}, "json_schema"),
        ({"response_format": {"type": "json_object", "schema": 5}}, "object"),
        ({"response_format": {"type": "xml"}}, "xml"),
        ({"response_format": {"type": None}}, "type"),
        ({"response_format": {"type": ["text"]}}, "type"),
        ({"response_format": {}}, "type"),
        ({"response_format": "json_object"}, "object"),
        ({"response_format": {"type": "structural_tag", "structures": []}}, "structural_tag"),
        ({"response_format": {"type": "text", "schema": SCHEMA}}, "schema"),
        ({"response_format": {"type": "json_object", "json_schema": {}}}, "json_schema"),
    ],
)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_gd_02_a_bad_response_format(
    served: Live, path: str, body: dict[str, Any], words: str
) -> None:
    error = refused(served, path, **body)
    assert error["param"] == "response_format"
    assert error["type"] == "invalid_request_error"
    assert words in error["message"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"structured_outputs": {"json": SCHEMA, "regex": "a"}}, "structured_outputs"),
        ({"structured_outputs": "json"}, "structured_outputs"),
        ({"structured_outputs": {"jason": SCHEMA}}, "structured_outputs.jason"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"structured_outputs": {"json": BAD_SCHEMA}}, "structured_outputs.json"),
        ({"guided_json": BAD_SCHEMA}, "guided_json"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_json": 5}, "guided_json"),
        ({"guided_regex": "(a"}, "guided_regex"),
        ({"guided_regex": ""}, "guided_regex"),
        ({"guided_regex": 5}, "guided_regex"),
        ({"guided_choice": "ab"}, "guided_choice"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_grammar": "nonsense"}, "guided_grammar"),
        ({"grammar": 'root ::= "a'}, "grammar"),
        ({"ebnf": "root ::= foo"}, "ebnf"),
        ({"guided_json_object": True}, "guided_json_object"),
        ({"guided_anything": {}}, "guided_anything"),
        ({"guided_regex": "a", "guided_decoding_backend": "outlines"}, "guided_decoding_backend"),
        ({"guided_regex": "a", "guided_whitespace_pattern": " "}, "guided_whitespace_pattern"),
        ({"structural_tag": "{}"}, "structural_tag"),
        ({"guided_json": SCHEMA, "guided_regex": "a"}, "guided_regex"),
        ({**json_schema(SCHEMA), "guided_choice": ["a"]}, "guided_choice"),
        ({**json_schema(SCHEMA), "structured_outputs": {"regex": "a"}}, "structured_outputs.regex"),
        ({"regex": "a", "ebnf": GBNF}, "ebnf"),
    ],
)
def test_gd_11_what_is_wrong_or_twice_is_refused_by_name(
    served: Live, body: dict[str, Any], param: str
) -> None:
    assert refused(served, **body)["param"] == param
    assert refused(served, COMPLETIONS, **body)["param"] == param


@pytest.mark.parametrize(
    "body",
    [
        # guidance's client of vLLM sends both, for its older and newer versions.
        {"structured_outputs": {"grammar": LARK}, "guided_grammar": LARK},
        {"guided_regex": "x[0-9]y", "regex": "x[0-9]y"},
    ],
)
def test_gd_11_one_constraint_under_two_names_is_one(served: Live, body: dict[str, Any]) -> None:
    for path in (CHAT, COMPLETIONS):
        assert all(re.fullmatch("x[0-9]y", text) for text in texts(served, path, **body))


def test_gd_05_hard_ones_are_answered_at_once(served: Live) -> None:
    for body in (
        {"guided_regex": "(a|aa)+$"},
        {"guided_regex": "([a-z]{1,200}){1,200}"},
        {"guided_json": {"type": "string", "maxLength": 100_000}},
        {"guided_json": {"multipleOf": 62_615_533}},
        {"guided_choice": [f"number {i}" for i in range(5000)]},
    ):
        response = served.post(COMPLETIONS, prompt="x", max_tokens=3, **body)
        assert response.status_code in (200, 400), response.text
    assert served.complete(max_tokens=1)


def test_gd_05_others_go_on_while_grammars_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling holds up neither the event loop, nor its helpers, nor the engine."""
    engine, gate, has_begun = make_engine(), threading.Event(), threading.Event()
    compile_now = engine.intake.grammars._compile

    def compile_later(spec: GrammarSpec) -> Grammar:
        has_begun.set()
        gate.wait(20)
        return compile_now(spec)

    monkeypatch.setattr(engine.intake.grammars, "_compile", compile_later)
    answers: list[list[str]] = []
    with live(engine) as served:

        def ask(word: str) -> None:
            answers.append(texts(served, CHAT, guided_choice=[word]))

        waiting = [threading.Thread(target=ask, args=(f"w{i}",)) for i in range(2)]
        for thread in waiting:
            thread.start()
        assert has_begun.wait(10)
        runner_of(engine).says("meanwhile")
        assert served.complete(max_tokens=20)["choices"][0]["text"] == "meanwhile"
        events = served.stream(COMPLETIONS, prompt="x", max_tokens=20)
        assert "".join(e["choices"][0]["text"] for e in events) == "meanwhile"
        assert served.client.get("/health").status_code == 200
        assert served.complete("x " * 4500, truncate_prompt_tokens=5, max_tokens=20)
        assert not answers
        gate.set()
        for thread in waiting:
            thread.join(20)
    assert sorted(answers) == [["w0"], ["w1"]]


def test_gd_12_choices_logprobs_and_streams(served: Live) -> None:
    """Each choice its own state; whole and streamed alike."""
    body = {**json_schema(SCHEMA), "n": 4, "temperature": 1, "seed": 5}
    whole = ok(served.post(CHAT, **asked(CHAT), **body, logprobs=True, top_logprobs=2))
    contents = [choice["message"]["content"] for choice in whole["choices"]]
    assert all(follows(content, SCHEMA) for content in contents)
    assert len(set(contents)) > 1
    for choice in whole["choices"]:
        spelled = bytes(b for t in choice["logprobs"]["content"] for b in t["bytes"])
        assert spelled.startswith(choice["message"]["content"].encode())
    streamed = [""] * 4
    for event in served.stream(CHAT, **asked(CHAT), **body):
        for choice in event["choices"]:
            streamed[choice["index"]] += choice["delta"].get("content") or ""
    assert streamed == contents


def test_several_prompts_share_one_constraint(served: Live) -> None:
    body = {"guided_regex": "[ab]{4}", "prompt": ["x", "y", "z"], "max_tokens": 20}
    choices = ok(served.post(COMPLETIONS, **body))["choices"]
    assert [bool(re.fullmatch("[ab]{4}", choice["text"])) for choice in choices] == [True] * 3


def test_a_contradiction_ends_that_request_alone(served: Live) -> None:
    """No token is left: known only once the model runs, but before a stream has begun."""
    body = {"guided_regex": "a", "bad_words": ["a"], "prompt": "x", "max_tokens": 9}
    response = served.post(COMPLETIONS, **body)
    assert response.status_code == 400
    assert "no token may come next" in response.json()["error"]["message"]
    assert served.post(COMPLETIONS, **body, stream=True).json() == response.json()
    assert texts(served, COMPLETIONS, guided_regex="a") == ["a"]


class Paint(BaseModel):
    colour: str
    count: int
    notes: list[str] | None = None


@pytest.fixture
def client(served: Live) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.base_url}/v1", api_key="none", max_retries=0) as made:
        yield made


def test_the_official_client_parses_into_a_model(client: openai.OpenAI) -> None:
    for seed in range(20):
        try:
            answer = client.chat.completions.parse(
                model="tinyserve",
                messages=[{"role": "user", "content": "Paint!"}],
                response_format=Paint,
                max_tokens=400,
                seed=seed,
            )
        except openai.LengthFinishReasonError:  # the fake writes what comes, also for long
            continue
        assert isinstance(answer.choices[0].message.parsed, Paint)
        return
    raise AssertionError("no answer ended")
