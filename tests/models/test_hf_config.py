"""config.json and generation_config.json: families, defaults, and what is refused by name."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tinyserve.errors import ModelLoadError
from tinyserve.models.config import ModelConfig, RopeConfig
from tinyserve.models.hf_config import (
    read_eos_token_ids,
    read_model_config,
    read_sampling_defaults,
)

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 4096,
    "rope_theta": 50000.0,
}
QWEN2 = {**LLAMA, "architectures": ["Qwen2ForCausalLM"]}
QWEN3 = {**LLAMA, "architectures": ["Qwen3ForCausalLM"]}
MISTRAL = {**LLAMA, "architectures": ["MistralForCausalLM"]}


def read(base: dict[str, Any], **fields: Any) -> ModelConfig:
    return read_model_config({**base, **fields}, "config.json")


def test_a_llama() -> None:
    assert read(LLAMA) == ModelConfig(
        architecture="LlamaForCausalLM",
        vocab_size=512,
        hidden_size=64,
        intermediate_size=128,
        num_layers=3,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        rms_norm_eps=1e-5,
        rope=RopeConfig(theta=50000.0),
        max_position_embeddings=4096,
        tie_word_embeddings=False,
    )


def test_what_families_differ_in() -> None:
    assert read(QWEN2).qkv_bias
    assert not read(QWEN2).o_bias
    assert read(QWEN3, head_dim=32).qk_norm
    assert read(QWEN3).head_dim == 128  # as Qwen3Config has it where the file says nothing
    biased = read(LLAMA, attention_bias=True, mlp_bias=True)
    assert biased.qkv_bias
    assert biased.o_bias
    assert biased.mlp_bias
    assert not read(MISTRAL, attention_bias=True).qkv_bias


def test_absent_fields_have_hugging_faces_defaults() -> None:
    data = {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}
    del data["rope_theta"], data["rms_norm_eps"], data["max_position_embeddings"]
    config = read_model_config(data, "config.json")
    assert config.num_kv_heads == 4
    assert config.rope.theta == 10000.0
    assert config.rms_norm_eps == 1e-6
    assert config.max_position_embeddings == 2048
    for base, context in ((QWEN2, 32768), (QWEN3, 32768), (MISTRAL, 131072)):
        assert read(base, max_position_embeddings=None).max_position_embeddings == context
    for base in (LLAMA, QWEN2, MISTRAL):
        assert read(base, num_key_value_heads=None, head_dim=None).num_kv_heads == 4


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        ("LLaMAForCausalLM", "LlamaForCausalLM"),
        ("MistralModel", "MistralForCausalLM"),
        ("Qwen2Model", "Qwen2ForCausalLM"),
    ],
)
def test_other_names_of_the_same_classes(named: str, expected: str) -> None:
    """Embedding models are saved as the class without a head (intfloat/e5-mistral-7b-instruct)."""
    assert read(LLAMA, architectures=[named]).architecture == expected


def test_the_model_type_stands_in_for_missing_architectures() -> None:
    data = {key: value for key, value in QWEN2.items() if key != "architectures"}
    assert read(data, model_type="qwen3").architecture == "Qwen3ForCausalLM"


@pytest.mark.parametrize(
    ("base", "fields", "expected"),
    [
        (LLAMA, {"sliding_window": 8}, ()),
        (MISTRAL, {"sliding_window": 8}, (8, 8, 8)),
        (MISTRAL, {"sliding_window": None}, ()),
        (MISTRAL, {}, (4096, 4096, 4096)),
        (
            MISTRAL,
            {
                "sliding_window": 8,
                "layer_types": ["full_attention", "sliding_attention", "full_attention"],
            },
            (None, 8, None),
        ),
        (QWEN2, {"sliding_window": 8, "use_sliding_window": False}, ()),
        (QWEN2, {"sliding_window": 8}, ()),
        (QWEN2, {"sliding_window": None, "use_sliding_window": True}, ()),
        (
            QWEN2,
            {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 1},
            (None, 8, 8),
        ),
        (
            QWEN3,
            {
                "sliding_window": 8,
                "use_sliding_window": True,
                "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            },
            (8, None, 8),
        ),
    ],
)
def test_sliding_windows(
    base: dict[str, Any], fields: dict[str, Any], expected: tuple[int | None, ...]
) -> None:
    assert read(base, **fields).windows == expected


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"architectures": ["GemmaForCausalLM"]}, "GemmaForCausalLM is not supported.*Qwen3"),
        ({"architectures": []}, "model_type None is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"is_causal": False}, "is_causal is false.*not supported"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"num_hidden_layers": "many"}, "num_hidden_layers must be a positive integer"),
        ({"vocab_size": 0}, "vocab_size must be a positive integer"),
        ({"num_key_value_heads": 3}, "cannot share"),
        ({"head_dim": 15}, "even head_dim"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"quantization_config": {"quant_method": "awq"}}, "awq are not supported yet"),
        ({"quantization_config": {"quant_method": "fp8"}}, "fp8 are not supported yet"),
        ({"quantization_config": {"quant_method": "compressed-tensors"}}, "compressed-tensors"),
        ({"quantization": {"group_size": 64, "bits": 4}}, "with MLX are not supported"),
        ({"rope_scaling": {"type": "su", "factor": 2}}, "rope scaling 'su'"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
    ],
)  # fmt: skip
def test_what_is_refused_is_named(fields: dict[str, Any], said: str) -> None:
    base = QWEN2 if "layer_types" in fields else LLAMA
    extra = {"use_sliding_window": True, "sliding_window": 4} if base is QWEN2 else {}
    with pytest.raises(ModelLoadError, match=said):
        read(base, **extra, **fields)


@pytest.mark.parametrize(
    ("config", "generation", "expected"),
    [
        ({"eos_token_id": 1}, {"eos_token_id": [1, 7]}, (1, 7)),  # LOAD-02
        ({"eos_token_id": [5, 6]}, {}, (5, 6)),
        ({"eos_token_id": 2}, {"eos_token_id": None}, (2,)),
        ({}, {"eos_token_id": 0}, (0,)),
        ({}, {}, ()),
    ],
)
def test_every_end_of_text_counts(
    config: dict[str, Any], generation: dict[str, Any], expected: tuple[int, ...]
) -> None:
    assert read_eos_token_ids(config, generation) == expected


def test_sampling_defaults() -> None:
    recommended = {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05}
    others = {"eos_token_id": 2, "max_new_tokens": 100, "min_p": None, "transformers_version": "5"}
    assert read_sampling_defaults({**recommended, **others}) == recommended
    assert read_sampling_defaults({**recommended, "do_sample": True}) == recommended
    greedy = read_sampling_defaults({**recommended, "do_sample": False})
    assert greedy == {"repetition_penalty": 1.05}
    assert read_sampling_defaults({}) == {}


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "2", [], [1], {"a": 1}, math.nan, math.inf])
@pytest.mark.parametrize(
    "key",
    [
        *("architectures", "model_type", "vocab_size", "hidden_size", "num_hidden_layers"),
        *("num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size"),
        *("rms_norm_eps", "rope_theta", "max_position_embeddings", "tie_word_embeddings"),
        *("attention_bias", "mlp_bias", "sliding_window", "use_sliding_window", "layer_types"),
        *("max_window_layers", "hidden_act", "rope_scaling", "rope_parameters"),
        *("quantization_config", "partial_rotary_factor"),
    ],
)
def test_a_value_of_the_wrong_kind_is_read_or_named(key: str, value: Any) -> None:
    """Damaged and hand-written files: never an exception that does not say where."""
    said = {"architectures": "architecture", "quantization_config": "quantiz"}.get(key, key)
    for name in ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM"):
        config = {**LLAMA, "architectures": [name], "use_sliding_window": True}
        message = f"config.json: {said}"
        try:
            read_model_config({**config, key: value}, "config.json")
        except ModelLoadError as error:
            message = str(error)
        assert message.startswith("config.json: ")
        assert said in message


@pytest.mark.parametrize("flag", ["false", 0, "true", []])
def test_flags_are_not_guessed(flag: Any) -> None:
    """As a truth value "false" would be true."""
    with pytest.raises(ModelLoadError, match="tie_word_embeddings must be true or false"):
        read_model_config({**LLAMA, "tie_word_embeddings": flag}, "config.json")


@pytest.mark.parametrize("eos", ["</s>", [1, "x"], True, 1.0, [[1]]])
def test_ends_that_are_no_ids_are_refused(eos: Any) -> None:
    with pytest.raises(ModelLoadError, match="eos_token_id"):
        read_eos_token_ids({"eos_token_id": eos}, {})


def test_recommendations_that_are_no_numbers_are_left_out() -> None:
    odd = {"temperature": math.nan, "top_p": True, "top_k": "5", "min_p": math.inf}
    assert read_sampling_defaults(odd) == {}
