"""The casebook on loading: files that say odd things about ends, defaults, sizes and types."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.live_server import live, ok
from helpers.tiny_gguf import write_tiny_gguf
from safetensors.numpy import load_file, save_file

from tinyserve import LLM, SamplingParams, TinyServeConfig
from tinyserve.engine.build import build_engine
from tinyserve.errors import ConfigError, ModelLoadError, RequestError
from tinyserve.models.checkpoint import load_checkpoint
from tinyserve.models.export import write_checkpoint
from tinyserve.models.synthetic import synthetic_checkpoint

SMALL: dict[str, Any] = {"num_blocks": 64, "threads": 1, "max_model_len": 256}
EXTRA = "<|beyond|>"
VOCAB = 512


def edit(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_checkpoint(synthetic_checkpoint(), tmp_path / "model", dtype="f32")


def greedy(llm: LLM, prompt: str = "hello", **params: Any) -> list[int]:
    """The ids of a greedy answer."""
    params = {"temperature": 0, "max_tokens": 6, **params}
    return llm.generate([prompt], SamplingParams(**params))[0].outputs[0].token_ids


def add_token_beyond_the_embedding(folder: Path) -> None:
    path = folder / "tokenizer.json"
    data = json.loads(path.read_text())
    token = {"id": VOCAB, "content": EXTRA, "special": True, "normalized": False}
    flags = {"single_word": False, "lstrip": False, "rstrip": False}
    data["added_tokens"].append({**token, **flags})
    path.write_text(json.dumps(data))


@pytest.mark.parametrize("eos", [-1, [-1, 2], [2, VOCAB], [10**6], 10**12])
def test_ends_outside_the_vocabulary_are_ignored(
    folder: Path, eos: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """LOAD-02, SAM-10: under min_tokens they once were written beyond the logits."""
    reference = greedy(LLM("synthetic", **SMALL), min_tokens=6)
    edit(folder / "config.json", eos_token_id=eos)
    edit(folder / "generation_config.json", eos_token_id=eos)
    with caplog.at_level(logging.WARNING):
        llm = LLM(str(folder), **SMALL)
    assert "outside the vocabulary" in caplog.text
    assert all(0 <= token_id < VOCAB for token_id in llm.engine.core.eos_token_ids)
    assert greedy(llm, min_tokens=6) == reference
    assert len(greedy(llm, ignore_eos=True)) == 6


@pytest.mark.parametrize("eos", [None, 1])
def test_the_tokenizers_own_end_ends_an_answer(folder: Path, eos: int | None) -> None:
    """LOAD-02: fine-tuned on conversations, a model ends as its tokenizer says, whatever the base
    model's config.json still does.
    """
    own = LLM("synthetic", **SMALL).engine.intake.tokenizer.eos_token_id
    assert own is not None
    edit(folder / "config.json", eos_token_id=eos)
    edit(folder / "generation_config.json", eos_token_id=eos)
    llm = LLM(str(folder), **SMALL)
    assert greedy(llm, allowed_token_ids=[own]) == [own]
    assert own not in greedy(llm, min_tokens=6)
    assert greedy(llm, structured_outputs={"regex": "a"})[-1] in (own, eos)


def test_a_grammar_needs_an_end(folder: Path) -> None:
    """LOAD-02: a model that names no end answers, and says why it cannot keep to a grammar."""
    edit(folder / "config.json", eos_token_id=None)
    edit(folder / "generation_config.json", eos_token_id=[-1])
    edit(folder / "tokenizer_config.json", eos_token=None)
    llm = LLM(str(folder), **SMALL)
    assert len(greedy(llm)) == 6
    with pytest.raises(RequestError, match="end token"):
        greedy(llm, structured_outputs={"regex": "a+"})


def test_tokens_added_beyond_the_embedding(folder: Path) -> None:
    """LOAD-08: a prompt with such a token is refused; a ban on it bans nothing that exists."""
    reference = greedy(LLM("synthetic", **SMALL))
    add_token_beyond_the_embedding(folder)
    config = TinyServeConfig.resolve(overrides={"model.name": str(folder), "model.threads": 1})
    with live(build_engine(config)) as served:
        for path, body in (
            ("/v1/completions", {"prompt": f"a {EXTRA}"}),
            ("/v1/completions", {"prompt": [1, VOCAB]}),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": EXTRA}]}),
            ("/v1/embeddings", {"input": EXTRA}),
            ("/v1/completions", {"prompt": "a", "stop_token_ids": [VOCAB], "min_tokens": 2}),
            ("/v1/completions", {"prompt": "a", "logit_bias": {str(VOCAB): 1}}),
            ("/v1/completions", {"prompt": "a", "allowed_token_ids": [VOCAB]}),
        ):
            refused = served.post(path, **body)
            assert refused.status_code == 400, refused.text
            assert str(VOCAB) in refused.json()["error"]["message"]
        fine: dict[str, Any] = {"temperature": 0, "max_tokens": 6, "return_token_ids": True}
        for extra in ({"bad_words": [EXTRA]}, {"bad_words": [f"he{EXTRA}"]}, {"stop": [EXTRA]}):
            choice = ok(served.post("/v1/completions", prompt="hello", **fine, **extra))["choices"]
            assert choice[0]["token_ids"] == reference


def test_recommended_sampling_fills_what_a_request_leaves_out(folder: Path) -> None:
    """LOAD-03: field by field; an override merges, and the ends of the model stay."""
    edit(folder / "generation_config.json", temperature=0.1, top_k=1, eos_token_id=[2, 7])
    llm = LLM(str(folder), **SMALL)
    hot = [llm.engine.intake.params({"temperature": 10.0}) for _ in range(2)]
    assert (hot[0].temperature, hot[0].top_k) == (10.0, 1)
    assert llm.engine.intake.params({"top_k": 5}).temperature == 0.1
    off = LLM(str(folder), generation_config="none", **SMALL)
    assert off.engine.intake.params({}).top_k == 0
    merged = LLM(str(folder), override_generation_config={"temperature": 0.5}, **SMALL)
    params = merged.engine.intake.params({})
    assert (params.temperature, params.top_k) == (0.5, 1)
    for model in (llm, off, merged):
        assert set(model.engine.core.eos_token_ids) == {2, 7}


def test_a_recommended_length_is_for_conversations_that_name_none(folder: Path) -> None:
    """LOAD-03: completions keep the API's default; a client's or operator's own wins."""
    edit(folder / "generation_config.json", max_new_tokens=3, eos_token_id=[])
    hello = [{"role": "user", "content": "hello"}]

    def lengths(llm: LLM, **params: Any) -> tuple[int, int, int]:
        fields = {"temperature": 0, "ignore_eos": True, **params}
        (answer,) = llm.chat(hello, fields)
        (completed,) = llm.generate(["hello"], fields)
        streamed = sum(len(delta.token_ids) for delta in llm.stream_chat(hello, fields))
        return len(answer.token_ids), len(completed.token_ids), streamed

    llm = LLM(str(folder), **SMALL)
    assert lengths(llm) == (3, 16, 3)
    assert lengths(llm, max_tokens=5) == (5, 5, 5)
    assert any("max_new_tokens" in note and "3" in note for note in llm.engine.notes)
    own = LLM(str(folder), override_generation_config={"max_tokens": 4}, **SMALL)
    assert lengths(own) == (4, 4, 4)
    assert not any("max_new_tokens" in note for note in own.engine.notes)
    off = LLM(str(folder), generation_config="none", **SMALL)
    assert lengths(off)[0] > 16
    with live(llm.engine) as served:
        usage = served.chat(ignore_eos=True)["usage"]
        assert usage["completion_tokens"] == 3
        answer = ok(served.post("/v1/responses", input="hello", ignore_eos=True))
        assert answer["usage"]["output_tokens"] == 3


@pytest.mark.parametrize(
    "odd",
    [
        {"temperature": -1.0},
        {"temperature": 1e9},
        {"top_p": 1.5},
        {"top_k": -5},
        {"top_k": 50.5},
        {"repetition_penalty": 0},
        {"min_p": float("nan")},
        {"max_new_tokens": 0},
        {"max_new_tokens": "many"},
        {"max_new_tokens": 2**40},
    ],
)
def test_recommendations_nobody_could_ask_for_are_ignored(
    folder: Path, odd: dict[str, Any]
) -> None:
    """LOAD-03: else every request that names no value of its own would be refused."""
    edit(folder / "generation_config.json", **odd)
    llm = LLM(str(folder), **SMALL)
    assert len(greedy(llm)) == 6
    assert llm.engine.intake.chat_max_tokens is None


@pytest.mark.parametrize("odd", [{"temperature": -1.0}, {"temperature": "hot"}, {"top_p": None}])
def test_an_override_that_makes_no_sense_is_refused_at_the_start(odd: dict[str, Any]) -> None:
    """LOAD-03: by the name of the setting, not at every request."""
    with pytest.raises(ConfigError, match=f"override_generation_config.*{next(iter(odd))}"):
        LLM("synthetic", override_generation_config=odd, **SMALL)


@pytest.mark.parametrize("dtype", ["auto", "f32", "bf16", "f16"])
@pytest.mark.parametrize("stored", ["f32", "bf16", "f16"])
def test_every_float_type_computes(tmp_path: Path, stored: str, dtype: str) -> None:
    """LOAD-06: half precision is widened; logits are finite and near those of f32."""
    source = synthetic_checkpoint()
    folder = write_checkpoint(source, tmp_path / "model", dtype=stored)
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    scores = [
        [entry.logprob for entry in llm.generate(["hello there"], params)[0].prompt_logprobs[1:]]
        for llm in (LLM(str(folder), dtype=dtype, **SMALL), LLM("synthetic", **SMALL))
    ]
    assert np.isfinite(scores).all()
    np.testing.assert_allclose(*scores, atol=0.1)


@pytest.mark.parametrize(
    ("dtype", "value"), [("auto", float("nan")), ("auto", float("inf")), ("f16", 1e5)]
)
@pytest.mark.parametrize("name", ["model.norm.weight", "model.layers.1.mlp.down_proj.weight"])
def test_weights_that_compute_no_numbers_are_refused_at_the_start(
    folder: Path, name: str, dtype: str, value: float
) -> None:
    """LOAD-06: not by an error for every request."""
    tensors = load_file(folder / "model.safetensors")
    tensors[name] = tensors[name].copy()
    tensors[name][..., 3] = value
    save_file(tensors, folder / "model.safetensors")
    if dtype == "f16" and tensors[name].ndim == 1:  # norms stay in f32
        LLM(str(folder), dtype=dtype, **SMALL)
        return
    with pytest.raises(ModelLoadError, match=r"no numbers.*f16"):
        LLM(str(folder), dtype=dtype, **SMALL)
    if dtype == "f16":
        LLM(str(folder), dtype="bf16", **SMALL)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tokenizer.ggml.token_type", 3),
        ("tokenizer.ggml.token_type", "x"),
        ("tokenizer.ggml.token_type", ["a"]),
        ("tokenizer.ggml.tokens", [1, 2]),
        ("tokenizer.ggml.merges", 5),
        ("tokenizer.ggml.scores", ["a"]),
        ("llama.rope.freq_base", float("nan")),
        ("llama.attention.layer_norm_rms_epsilon", -1.0),
        ("llama.rope.scaling.factor", float("inf")),
        ("general.alignment", "x"),
        ("general.alignment", ["a"]),
        ("general.alignment", [32, 32]),
    ],
)
def test_a_gguf_key_of_the_wrong_kind_is_named(tmp_path: Path, key: str, value: Any) -> None:
    """LOAD-11"""
    path = write_tiny_gguf(tmp_path / "a.gguf", synthetic_checkpoint(), metadata={key: value})
    with pytest.raises(ModelLoadError, match=key):
        load_checkpoint(str(path)).tokenizer_spec().load_vocab()


@pytest.mark.parametrize("token_id", [[-1], 2**32 - 1, VOCAB])
@pytest.mark.parametrize("name", ["bos", "unknown", "padding", "eos"])
def test_a_gguf_special_token_that_is_none(tmp_path: Path, name: str, token_id: Any) -> None:
    """LOAD-11: -1 once ended the start with an OverflowError."""
    keys = {f"tokenizer.ggml.{name}_token_id": token_id}
    path = write_tiny_gguf(tmp_path / "a.gguf", synthetic_checkpoint(), metadata=keys)
    assert len(greedy(LLM(str(path), **SMALL))) == 6


@pytest.mark.parametrize("eos", [VOCAB, 2**31 - 1])
def test_a_gguf_end_outside_the_vocabulary_is_ignored(tmp_path: Path, eos: int) -> None:
    """LOAD-02, LOAD-11"""
    keys = {"tokenizer.ggml.eot_token_id": eos}
    path = write_tiny_gguf(tmp_path / "a.gguf", synthetic_checkpoint(), metadata=keys)
    assert load_checkpoint(str(path)).eos_token_ids
    assert all(0 <= i < VOCAB for i in load_checkpoint(str(path)).eos_token_ids)
