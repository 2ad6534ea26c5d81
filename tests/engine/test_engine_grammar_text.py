"""Grammars end to end: the synthetic model, real kernels, real tokens, `LLM`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from helpers.native import require_native
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tinyserve import LLM, SamplingParams
from tinyserve.engine.outputs import Choice
from tinyserve.errors import RequestError, TinyServeError

jsonschema = pytest.importorskip("jsonschema")

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["café", "日本", "😀"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
}


@cache
def roomy() -> LLM:
    return LLM("synthetic", num_blocks=400, block_size=16, max_model_len=512)


@pytest.fixture(scope="module", autouse=True)
def _closed() -> Iterator[None]:
    yield
    roomy.cache_clear()


def params(constraint: dict[str, Any] | None, **fields: Any) -> SamplingParams:
    fields = {"temperature": 1.0, "seed": 3, "max_tokens": 300, **fields}
    return SamplingParams(structured_outputs=constraint, **fields)


def choices_of(llm: LLM, *args: Any, **fields: Any) -> list[Choice]:
    return llm.generate("once", params(*args, **fields), progress=False)[0].outputs


def check(text: str, schema: Any) -> None:
    jsonschema.validate(json.loads(text), schema, jsonschema.Draft202012Validator)


# --- what comes out ---------------------------------------------------------------------------

NAMES = st.sampled_from(["a", "b", "long name", "naïve", 'q"uote', "日"])
LEAVES = st.one_of(
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    st.builds(
        lambda low, span: {"type": "integer", "minimum": low, "maximum": low + span},
        st.integers(-500, 500),
        st.integers(0, 1000),
    ),
    st.builds(
        lambda low, span: {"type": "string", "minLength": low, "maxLength": low + span},
        st.integers(0, 3),
        st.integers(0, 5),
    ),
    st.builds(
        lambda values: {"enum": values},
        st.lists(NAMES | st.integers(-(2**53), 2**53), min_size=1, max_size=4),
    ),
    st.just({"type": "string", "pattern": "^[a-c]{2,4}é?$"}),
    st.just({"type": "number", "multipleOf": 0.5, "minimum": -2, "maximum": 2}),
)


def _object(fields: dict[str, Any], num_required: int) -> dict[str, Any]:
    required = list(fields)[:num_required]
    return {"type": "object", "properties": fields, "required": required}


def _branch(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.builds(_object, st.dictionaries(NAMES, inner, max_size=3), st.integers(0, 3)),
        st.builds(lambda items: {"type": "array", "items": items, "maxItems": 2}, inner),
        st.builds(lambda a, b: {"anyOf": [a, b]}, inner, inner),
    )


SCHEMAS = st.recursive(LEAVES, _branch, max_leaves=5)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(schema=SCHEMAS, seed=st.integers(0, 2**32))
def test_whatever_ends_satisfies_its_schema(schema: Any, seed: int) -> None:
    """At temperature 1, where the model alone would write noise."""
    for choice in choices_of(roomy(), {"json": schema}, seed=seed, n=2, max_tokens=150):
        if choice.finish_reason == "stop":
            check(choice.text, schema)
        else:
            assert choice.finish_reason == "length"
            assert len(choice.token_ids) == 150


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_kind_of_constraint_holds(temperature: float) -> None:
    texts: dict[str, str] = {}
    constraints: dict[str, Any] = {
        "json": PERSON,
        "json_object": True,
        "regex": "[A-Z][a-z]{1,8} is [0-9]{2}(, é日)?",
        "choice": ["café", "日本", "😀"],
        "grammar": 'root ::= "x" [0-9]{3} "y"',
    }
    for name, value in constraints.items():
        (choice,) = choices_of(roomy(), {name: value}, temperature=temperature)
        if name != "json_object":
            assert (choice.finish_reason, choice.stop_reason) == ("stop", None)
        texts[name] = choice.text
    check(texts["json"], PERSON)
    assert texts["json_object"].startswith("{")
    assert re.fullmatch(constraints["regex"], texts["regex"])
    assert texts["choice"] in constraints["choice"]
    assert re.fullmatch("x[0-9]{3}y", texts["grammar"])


def test_text_of_other_alphabets_is_whole() -> None:
    """GD-09: over byte-level tokens, exactly one of the values, and valid UTF-8."""
    values = ["café", "日本", "😀", "e\u0301", "ß"]
    seen = {c.text for c in choices_of(roomy(), {"json": {"enum": values}}, n=24)}
    assert seen <= {json.dumps(value, ensure_ascii=False) for value in values}
    assert len(seen) > 1
    for value in values:
        (choice,) = choices_of(roomy(), {"json": {"const": [value]}})
        assert json.loads(choice.text) == [value]


def test_an_answer_cut_by_max_tokens_is_a_beginning() -> None:
    (whole,) = choices_of(roomy(), {"json": PERSON})
    (cut,) = choices_of(roomy(), {"json": PERSON}, max_tokens=len(whole.token_ids) - 3)
    assert cut.finish_reason == "length"
    assert whole.text.startswith(cut.text)


# --- whatever else happens --------------------------------------------------------------------


def test_the_same_request_gives_the_same_answer_in_any_company() -> None:
    require_native()
    alone = choices_of(roomy(), {"json": PERSON}, n=2)
    crowd = [params(None), params({"regex": "a+"}), params({"json": PERSON}, n=2)]
    crowd += [params({"json_object": True}, seed=i) for i in range(5)]
    outputs = roomy().generate(["once"] * len(crowd), crowd, progress=False)
    assert outputs[2].outputs == alone


@pytest.mark.parametrize("num_swap_blocks", [0, 200])
def test_preempted_choices_go_on_where_they_were(num_swap_blocks: int) -> None:
    """GD-12: n = 4 at temperature 1, thrown out in the middle, swapped or to be recomputed."""
    require_native()
    tight = LLM(
        "synthetic",
        num_blocks=24,
        block_size=4,
        num_swap_blocks=num_swap_blocks,
        max_model_len=80,
        max_num_seqs=8,
    )
    wanted = [params({"json": PERSON}, n=4, seed=i, max_tokens=70, logprobs=1) for i in range(2)]
    outputs = tight.generate(["once"] * 2, wanted, progress=False)
    stats = tight.engine.core.stats()
    assert stats.num_preemptions_swap + stats.num_preemptions_recompute > 0
    expected = roomy().generate(["once"] * 2, wanted, progress=False)
    assert [o.outputs for o in outputs] == [o.outputs for o in expected]
    for choice in outputs[0].outputs + outputs[1].outputs:
        if choice.finish_reason == "stop":
            check(choice.text, PERSON)


@pytest.mark.parametrize("method", ["ngram", "suffix"])
def test_speculation_changes_nothing(method: str) -> None:
    """SPEC-07's kind: prompts that repeat, so that drafts are many, right and wrong."""
    require_native()
    prompt = '{"name": "aaaa", "age": 12, "tags": ["café"]}' * 4
    drafting = LLM(
        "synthetic",
        num_blocks=400,
        max_model_len=512,
        speculative_config={"method": method, "num_speculative_tokens": 4, "adaptive": False},
    )
    wanted = [
        params({"json": PERSON}, temperature=temperature, seed=i, max_tokens=120)
        for i, temperature in enumerate((0.0, 1.0, 0.7))
    ]
    wanted.append(params({"regex": '(\\{"name": "a+", "age": [0-9]+, )+'}, max_tokens=120))
    prompts = [prompt] * len(wanted)
    outputs = drafting.generate(prompts, wanted, progress=False)
    assert drafting.engine.core.stats().num_draft_tokens > 0
    expected = roomy().generate(prompts, wanted, progress=False)
    assert [o.outputs for o in outputs] == [o.outputs for o in expected]


def test_logprobs_are_the_models_own() -> None:
    """The raw log-softmax: what a scorer of the same text would report, mask or no mask."""
    (choice,) = choices_of(roomy(), {"json": PERSON}, logprobs=2, max_tokens=20)
    ids = roomy().engine.intake.encode("once")
    scored = (
        roomy()
        .generate(
            [[*ids, *choice.token_ids]],
            SamplingParams(max_tokens=0, prompt_logprobs=2),
            progress=False,
        )[0]
        .prompt_logprobs
    )
    assert scored is not None
    assert choice.logprobs is not None
    reported = [t.logprob for t in choice.logprobs]
    assert [t and t.logprob for t in scored[len(ids) :]] == pytest.approx(reported, abs=1e-4)


def test_a_stop_string_may_end_it_sooner() -> None:
    (choice,) = choices_of(roomy(), {"json": PERSON}, stop=['"age"'])
    assert (choice.finish_reason, choice.stop_reason) == ("stop", '"age"')
    assert '"age"' not in choice.text


@pytest.mark.parametrize("options", [{"min_tokens": 100}, {"ignore_eos": True}])
def test_the_grammars_own_end_wins(options: dict[str, Any]) -> None:
    (choice,) = choices_of(roomy(), {"choice": ["ab", "cd"]}, **options)
    assert (choice.text in ("ab", "cd"), choice.finish_reason) == (True, "stop")


def test_an_end_that_is_only_allowed_is_held_back() -> None:
    for seed in range(5):
        (choice,) = choices_of(roomy(), {"regex": "a*"}, seed=seed, min_tokens=20, max_tokens=60)
        assert len(choice.token_ids) >= 20
        (choice,) = choices_of(roomy(), {"regex": "a*"}, seed=seed, ignore_eos=True, max_tokens=60)
        assert len(choice.token_ids) == 60


def test_bias_and_bans_apply_among_what_is_allowed() -> None:
    encode = roomy().engine.intake.encode
    (a,), (b,) = encode("a"), encode("b")
    constraint = {"regex": "[ab]"}
    (choice,) = choices_of(roomy(), constraint, logit_bias={b: 100.0})
    assert choice.text == "b"
    (choice,) = choices_of(roomy(), constraint, logit_bias={b: 100.0}, bad_words=["b"])
    assert choice.text == "a"
    eos = roomy().engine.intake.tokenizer.eos_token_id
    (choice,) = choices_of(roomy(), constraint, allowed_token_ids=[a, eos])
    assert choice.text == "a"


def test_where_nothing_is_left_the_request_alone_fails() -> None:
    (c,) = roomy().engine.intake.encode("c")
    bad = params({"regex": "[ab]"}, allowed_token_ids=[c])
    with pytest.raises(TinyServeError, match="no token may come next"):
        roomy().generate("once", bad, progress=False)
    (choice,) = choices_of(roomy(), {"choice": ["ab"]})
    assert choice.text == "ab"


def test_what_is_wrong_is_refused_before_anything_runs() -> None:
    before = roomy().engine.core.stats().num_steps
    wrong = params({"json": {"not": {}}})
    with pytest.raises(RequestError, match="not") as caught:
        roomy().generate(["once", "twice"], [params(None), wrong], progress=False)
    assert caught.value.param == "structured_outputs.json"
    assert roomy().engine.core.stats().num_steps == before
    with pytest.raises(RequestError, match="object"):
        choices_of(roomy(), ["json"])  # type: ignore[arg-type]


def test_streams_and_chats_take_constraints_too() -> None:
    constraint = {"structured_outputs": {"choice": ["café", "tea"]}, "max_tokens": 20}
    with roomy().stream("once", constraint) as stream:
        text = "".join(delta.text for delta in stream)
    assert text in ("café", "tea")
    messages = [{"role": "user", "content": "What to drink?"}]
    assert roomy().chat(messages, constraint, progress=False)[0].text in ("café", "tea")
