"""GGUF models as checkpoints: names, row order, metadata, ends of text, refusals (LOAD-11)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from helpers.tiny_gguf import DROP, Q, write_tiny_gguf

from tinyserve.errors import ModelLoadError
from tinyserve.kernels.formats import FloatWeight, Int8Weight, U4Weight
from tinyserve.models.checkpoint import Checkpoint, load_checkpoint
from tinyserve.models.gguf_file import StringArray
from tinyserve.models.rope import rope_table
from tinyserve.models.synthetic import synthetic_checkpoint

QUANTIZED = [Q.F16, Q.BF16, Q.Q8_0, Q.Q4_0, Q.Q4_1, Q.Q5_0, Q.Q5_1]
K_QUANTS = [Q.Q4_K, Q.Q5_K, Q.Q6_K]


def is_vector(name: str) -> bool:
    return name.endswith("bias") or "norm" in name


def values(checkpoint: Checkpoint, name: str) -> np.ndarray:
    if is_vector(name):
        return checkpoint.tensors.vector(name)
    return checkpoint.tensors.weight(name).dequantize()


def reload(path: Path, source: Checkpoint, kind: Any = Q.F32, **options: Any) -> Checkpoint:
    return load_checkpoint(str(write_tiny_gguf(path / "m.gguf", source, kind, **options)))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    ("architecture", "fields"),
    [
        ("LlamaForCausalLM", {}),
        ("LlamaForCausalLM", {"qkv_bias": True, "o_bias": True, "mlp_bias": True}),
        ("LlamaForCausalLM", {"num_kv_heads": 4, "head_dim": 32}),
        ("Qwen2ForCausalLM", {}),
        ("Qwen3ForCausalLM", {"head_dim": 32}),
    ],
)
def test_every_tensor_comes_back_in_hugging_faces_order(
    tmp_path: Path, architecture: str, fields: dict[str, Any], tied: bool
) -> None:
    source = synthetic_checkpoint(
        3, architecture=architecture, tie_word_embeddings=tied, rms_norm_eps=2**-17, **fields
    )
    loaded = reload(tmp_path, source)
    assert loaded.config == source.config
    assert set(loaded.tensors.names()) == set(source.tensors.names())
    for name in source.tensors.names():
        np.testing.assert_array_equal(values(loaded, name), values(source, name), err_msg=name)


@pytest.mark.parametrize("kind", [Q.F32, Q.F16, Q.Q8_0, Q.Q4_1], ids=lambda kind: kind.name)
@pytest.mark.parametrize(
    ("architecture", "fields"),
    [("LlamaForCausalLM", {"qkv_bias": True}), ("Qwen3ForCausalLM", {"head_dim": 32})],
)
def test_q_k_and_v_may_be_one_tensor(
    tmp_path: Path, architecture: str, fields: dict[str, Any], kind: Any
) -> None:
    source = synthetic_checkpoint(3, architecture=architecture, **fields)
    apart = reload(tmp_path, source, kind)
    (tmp_path / "fused").mkdir()
    fused = reload(tmp_path / "fused", source, kind, fuse_qkv=True)
    assert fused.config == apart.config
    for name in source.tensors.names():
        np.testing.assert_array_equal(values(fused, name), values(apart, name), err_msg=name)


def test_a_joined_tensor_too_small_for_its_parts(tmp_path: Path) -> None:
    without = [f"blk.0.attn_{part}.weight" for part in "qkv"]
    extra = {"blk.0.attn_qkv.weight": np.ones((4, 64))}
    with pytest.raises(ModelLoadError, match=r"layers\.0\.self_attn\.q_proj\.weight is missing"):
        reload(tmp_path, synthetic_checkpoint(), without=without, extra=extra)


@pytest.mark.parametrize("kind", QUANTIZED, ids=lambda kind: kind.name)
def test_quantized_matrices_keep_their_values(tmp_path: Path, kind: Any) -> None:
    source = synthetic_checkpoint(4)
    loaded = reload(tmp_path, source, kind)
    for name in source.tensors.names():
        original = values(source, name)
        expected = original
        if not is_vector(name):
            # Rows are quantized one by one, so permuted rows hold the same values.
            expected = gguf.quants.dequantize(gguf.quants.quantize(original, kind), kind)
        np.testing.assert_array_equal(values(loaded, name), expected, err_msg=name)


@pytest.mark.parametrize("kind", K_QUANTS, ids=lambda kind: kind.name)
def test_k_quants_load_with_the_right_shapes(tmp_path: Path, kind: Any) -> None:
    source = synthetic_checkpoint(hidden_size=256, intermediate_size=512, head_dim=64)
    loaded = reload(tmp_path, source, kind)
    for name in source.tensors.names():
        got = values(loaded, name)
        assert got.shape == values(source, name).shape
        assert np.isfinite(got).all()


def test_formats_of_the_common_types(tmp_path: Path) -> None:
    name = "model.layers.1.mlp.down_proj.weight"
    for kind, expected in ((Q.F16, FloatWeight), (Q.Q8_0, Int8Weight), (Q.Q4_1, U4Weight)):
        loaded = reload(tmp_path, synthetic_checkpoint(), kind)
        assert isinstance(loaded.tensors.weight(name), expected)


@pytest.mark.parametrize(
    ("kind", "bits"), [(Q.F32, 32), (Q.BF16, 16), (Q.Q8_0, 8.5), (Q.Q4_0, 4.5)]
)
def test_what_the_tensors_take_in_the_file_is_told(tmp_path: Path, kind: Any, bits: float) -> None:
    source = synthetic_checkpoint()
    sizes = {name: values(source, name).size for name in source.tensors.names()}
    vectors = sum(size for name, size in sizes.items() if is_vector(name))
    want = 4 * vectors + bits / 8 * (sum(sizes.values()) - vectors)
    assert reload(tmp_path, source, kind).stored_bytes == want


def test_float_matrices_are_views_of_the_file(tmp_path: Path) -> None:
    weight = reload(tmp_path, synthetic_checkpoint(), Q.BF16).tensors.weight(
        "model.layers.0.mlp.up_proj.weight"
    )
    assert isinstance(weight, FloatWeight)
    assert weight.dtype == "bf16"
    assert not weight.data.flags.owndata


def test_a_tied_model_has_no_head(tmp_path: Path) -> None:
    loaded = reload(tmp_path, synthetic_checkpoint(tie_word_embeddings=True))
    assert "lm_head.weight" not in loaded.tensors.names()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"metadata": {"llama.block_count": DROP}}, r"llama\.block_count is missing"),
        ({"metadata": {"llama.context_length": DROP}}, r"llama\.context_length is missing"),
        ({"metadata": {"llama.embedding_length": "wide"}}, r"embedding_length is not one int"),
        ({"metadata": {"general.architecture": "gpt5"}}, "'gpt5' is not supported.*llama, qwen2"),
        ({"metadata": {"llama.expert_count": 8}}, "mixture-of-experts"),
        ({"metadata": {"llama.attention.causal": False}}, "in both directions is not supported"),
        ({"metadata": {"general.type": "adapter"}}, "is an adapter.*not a model"),
        ({"metadata": {"split.count": 3}}, "split GGUF.*merge"),
        ({"metadata": {"llama.rope.scaling.type": "longrope"}}, "'longrope' is not supported"),
        ({"metadata": {"llama.rope.dimension_count": 8}}, "rope.dimension_count is 8"),
        ({"metadata": {"llama.attention.head_count_kv": 3}}, "4 attention heads cannot share 3"),
        ({"metadata": {"llama.feed_forward_length": 96}}, r"gate_proj\.weight has shape"),
        ({"metadata": {"llama.block_count": 2**31}}, "only 21 tensors for 2147483648 layers"),
        ({"without": ["blk.1.attn_k.weight"]}, r"model\.layers\.1\.self_attn\.k_proj\.weight is m"),
        ({"without": ["token_embd.weight"]}, r"token_embd\.weight is missing"),
        ({"extra": {"blk.0.attn_sinks.weight": np.ones(4)}}, r"attn_sinks\.weight is not supp"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelLoadError, match=said):
        reload(tmp_path, synthetic_checkpoint(), **options)


def test_an_unsupported_type_is_named_with_its_tensor(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    source = write_tiny_gguf(tmp_path / "s.gguf", synthetic_checkpoint(hidden_size=256))
    for field in gguf.GGUFReader(source).fields.values():
        if field.name.startswith("llama."):
            kind = field.types[0]
            writer.add_key_value(field.name, field.contents(), kind)
    for tensor in gguf.GGUFReader(source).tensors:
        if tensor.name == "blk.0.ffn_up.weight":
            block, size = gguf.GGML_QUANT_SIZES[Q.IQ4_XS]
            raw = np.zeros((128, 256 // block * size), np.uint8)
            writer.add_tensor(tensor.name, raw, raw_dtype=Q.IQ4_XS)
        else:
            writer.add_tensor(tensor.name, tensor.data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelLoadError, match=r"blk\.0\.ffn_up\.weight has type IQ4_XS.*Q4_K"):
        load_checkpoint(str(path))


def test_ends_of_text_are_all_special_tokens_that_end_one(tmp_path: Path) -> None:
    assert reload(tmp_path, synthetic_checkpoint()).eos_token_ids == (2, 0)


def test_an_ordinary_token_of_that_name_ends_nothing(tmp_path: Path) -> None:
    types = [1, 3, 3] + [1] * 509
    metadata = {
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.eot_token_id": 7,
    }
    loaded = reload(tmp_path, synthetic_checkpoint(), metadata=metadata)
    assert loaded.eos_token_ids == (1, 7, 2)


def test_several_ends_may_be_listed(tmp_path: Path) -> None:
    """LOAD-02: Ollama's converter writes generation_config.json's list beside the one EOS."""
    types = [1, 3, 3] + [1] * 509
    metadata = {
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.eos_token_ids": [1, 7, 5000],
    }
    loaded = reload(tmp_path, synthetic_checkpoint(), metadata=metadata)
    assert loaded.eos_token_ids == (1, 7, 2)


def test_an_added_token_of_that_name_ends_a_text(tmp_path: Path) -> None:
    """LOAD-02: converters make a fine-tune's added tokens user-defined, ends of turns too."""
    metadata = {
        "tokenizer.ggml.token_type": [4, 3, 3] + [1] * 509,
        "tokenizer.ggml.eos_token_id": 1,
    }
    assert reload(tmp_path, synthetic_checkpoint(), metadata=metadata).eos_token_ids == (1, 2, 0)


@pytest.mark.parametrize(("kind", "ends"), [(3, (511, 2)), (4, (511,)), (1, (511,))])
def test_the_end_of_a_base_model_ends_the_texts_of_its_fine_tune(
    tmp_path: Path, kind: int, ends: tuple[int, ...]
) -> None:
    """Llama 2's kind of model, taught conversations in ChatML, still writes `</s>` at times."""
    tokens = ["<unk>", "<s>", "</s>", *(f"t{i}" for i in range(508)), "<|im_end|>"]
    metadata = {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [2, 3, kind] + [1] * 508 + [4],
        "tokenizer.ggml.eos_token_id": 511,
    }
    assert reload(tmp_path, synthetic_checkpoint(), metadata=metadata).eos_token_ids == ends


def test_the_tokenizer_is_read_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = synthetic_checkpoint()
    with monkeypatch.context() as patch:
        patch.setattr(StringArray, "decode", lambda self: pytest.fail("the vocabulary was read"))
        loaded = reload(tmp_path, source)
        spec = loaded.tokenizer_spec()
    expected = source.tokenizer_spec()
    assert spec.load_vocab() == expected.load_vocab()
    assert spec.chat_template == expected.chat_template
    assert spec.add_bos is False
    assert spec.special_token_ids == {"bos_token": 1, "eos_token": 2}


def test_an_end_after_texts_to_be_embedded_is_read(tmp_path: Path) -> None:
    said = {"tokenizer.ggml.add_eos_token": True}
    assert reload(tmp_path, synthetic_checkpoint(), metadata=said).tokenizer_spec().add_eos is True
    assert reload(tmp_path, synthetic_checkpoint()).tokenizer_spec().add_eos is None


@pytest.mark.parametrize("name", ["model", "tokens", "merges"])
def test_a_missing_part_of_the_tokenizer_is_named(tmp_path: Path, name: str) -> None:
    key = f"tokenizer.ggml.{name}"
    loaded = reload(tmp_path, synthetic_checkpoint(), metadata={key: DROP})
    with pytest.raises(ModelLoadError, match=f"{key} is missing"):
        loaded.tokenizer_spec()


def test_a_vocabulary_without_its_rule_for_words_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reload(tmp_path, synthetic_checkpoint()).tokenizer_spec()
    assert not caplog.text
    metadata = {"tokenizer.ggml.pre": DROP}
    loaded = reload(tmp_path, synthetic_checkpoint(), metadata=metadata)
    assert loaded.tokenizer_spec().load_vocab().pre == "default"
    assert "tokenizer.ggml.pre is missing" in caplog.text


def test_named_templates_are_read(tmp_path: Path) -> None:
    metadata = {"tokenizer.chat_template.tool_use": "{{ tools }}"}
    spec = reload(tmp_path, synthetic_checkpoint(), metadata=metadata).tokenizer_spec()
    assert spec.named_templates == {"tool_use": "{{ tools }}"}


def test_rope_factors_become_those_of_llama_3(tmp_path: Path) -> None:
    factors = np.array([1, 1, 1, 1.5, 4, 8, 8, 8], np.float32)
    loaded = reload(tmp_path, synthetic_checkpoint(), extra={"rope_freqs.weight": factors})
    assert loaded.config.rope.freq_factors == tuple(factors.tolist())
    cos, _ = rope_table(loaded.config.rope, 16, 100)
    inv_freq = 10000.0 ** (-np.arange(0, 16, 2) / 16) / factors
    np.testing.assert_allclose(cos[99], np.cos(99 * inv_freq), atol=1e-6)


def test_rope_factors_of_a_type_that_cannot_be_read(tmp_path: Path) -> None:
    factors = np.ones(8, np.int32)
    with pytest.raises(ModelLoadError, match=r"rope_freqs\.weight has type I32"):
        reload(tmp_path, synthetic_checkpoint(), extra={"rope_freqs.weight": factors})


def test_rope_scaling_of_the_metadata(tmp_path: Path) -> None:
    linear = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    rope = reload(tmp_path, synthetic_checkpoint(), metadata=linear).config.rope
    assert (rope.kind, rope.factor) == ("linear", 4.0)
    legacy = reload(tmp_path, synthetic_checkpoint(), metadata={"llama.rope.scale_linear": 2.0})
    assert (legacy.config.rope.kind, legacy.config.rope.factor) == ("linear", 2.0)
    yarn = {
        "llama.rope.scaling.type": "yarn",
        "llama.rope.scaling.factor": 4.0,
        "llama.rope.scaling.original_context_length": 512,
        "llama.rope.scaling.attn_factor": 2.0,
    }
    rope = reload(tmp_path, synthetic_checkpoint(), metadata=yarn).config.rope
    assert (rope.kind, rope.factor, rope.original_max_position) == ("yarn", 4.0, 512)
    assert rope.attention_factor == pytest.approx(2.0 * (1 + 0.1 * math.log(4)))


def test_recommended_sampling_of_the_metadata(tmp_path: Path) -> None:
    """As of a folder's generation_config.json, which converters copy; what is no number is not."""
    named = {"temp": 0.7, "top_p": 0.95, "top_k": 20, "min_p": "no", "penalty_repeat": 1.05}
    metadata = {f"general.sampling.{key}": value for key, value in named.items()}
    loaded = reload(tmp_path, synthetic_checkpoint(), metadata=metadata)
    expected = {"temperature": 0.7, "top_p": 0.95, "top_k": 20, "repetition_penalty": 1.05}
    assert loaded.sampling_defaults == expected
    assert reload(tmp_path, synthetic_checkpoint()).sampling_defaults == {}


def test_one_value_for_all_layers_may_be_an_array(tmp_path: Path) -> None:
    metadata = {"llama.attention.head_count_kv": [2, 2], "llama.attention.sliding_window": 64}
    config = reload(tmp_path, synthetic_checkpoint(), metadata=metadata).config
    assert config.num_kv_heads == 2
    assert config.windows == (64, 64)


def test_the_fingerprint_follows_the_file(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf", synthetic_checkpoint())
    first = load_checkpoint(str(path)).fingerprint
    assert first == load_checkpoint(str(path)).fingerprint
    write_tiny_gguf(path, synthetic_checkpoint(1), metadata={"general.name": "another"})
    assert load_checkpoint(str(path)).fingerprint != first


@pytest.fixture
def split(tmp_path: Path) -> list[Path]:
    """The parts of one model."""
    first = write_tiny_gguf(
        tmp_path / "m.gguf", synthetic_checkpoint(), Q.Q8_0, split_max_tensors=8
    )
    assert first.name == "m-00001-of-00003.gguf"
    return sorted(tmp_path.iterdir())


def test_a_split_model_is_one_by_each_of_its_parts_and_by_its_folder(split: list[Path]) -> None:
    (folder := split[0].parent / "whole").mkdir()
    whole = reload(folder, synthetic_checkpoint(), Q.Q8_0)
    loaded = [load_checkpoint(str(path)) for path in (*split, split[0].parent)]
    assert len({checkpoint.fingerprint for checkpoint in loaded}) == 1
    for checkpoint in loaded:
        assert checkpoint.config == whole.config
        assert set(checkpoint.tensors.names()) == set(whole.tensors.names())
        for name in whole.tensors.names():
            np.testing.assert_array_equal(values(checkpoint, name), values(whole, name))
        assert checkpoint.eos_token_ids == whole.eos_token_ids
    split[2].write_bytes(split[2].read_bytes()[:-1] + b"x")
    assert load_checkpoint(str(split[0])).fingerprint != loaded[0].fingerprint


def test_parts_that_are_missing_or_mixed_up_are_named(split: list[Path]) -> None:
    kept = split[1].read_bytes()
    split[1].write_bytes(split[2].read_bytes())
    with pytest.raises(ModelLoadError, match=r"m-00002-of-00003\.gguf is not part 2 of 3"):
        load_checkpoint(str(split[0]))
    split[1].write_bytes(kept[:-1])
    with pytest.raises(ModelLoadError, match=r"m-00002-of-00003\.gguf is truncated"):
        load_checkpoint(str(split[0]))
    split[1].unlink()
    with pytest.raises(ModelLoadError, match=r"m-00002-of-00003\.gguf is missing, a part of"):
        load_checkpoint(str(split[0]))
    alone = split[0].rename(split[0].with_name("first.gguf"))
    with pytest.raises(ModelLoadError, match=r"one part of a split GGUF of 3.*rename"):
        load_checkpoint(str(alone))
