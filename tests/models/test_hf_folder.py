"""Checkpoint folders: what was written is read back; tied heads (LOAD-01); damage is named."""

from __future__ import annotations

import dataclasses
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.shards import cut_into_shards

from tinyserve.errors import ModelLoadError
from tinyserve.kernels.formats import to_bf16, widen
from tinyserve.models.checkpoint import Checkpoint, load_checkpoint
from tinyserve.models.config import RopeConfig
from tinyserve.models.export import config_json, write_checkpoint, write_safetensors
from tinyserve.models.synthetic import synthetic_checkpoint
from tinyserve.text.tokenizer import Tokenizer

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


def is_vector(name: str) -> bool:
    return name.endswith("bias") or "norm" in name


def values(checkpoint: Checkpoint, name: str) -> np.ndarray:
    if is_vector(name):
        return checkpoint.tensors.vector(name)
    return checkpoint.tensors.weight(name).dequantize()


def edit_config(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize(
    "architecture",
    ["LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"],
)
def test_a_written_model_is_read_back(tmp_path: Path, architecture: str, shards: int) -> None:
    source = synthetic_checkpoint(1, architecture=architecture, head_dim=32)
    write_checkpoint(source, tmp_path, dtype="f32")
    if shards > 1:
        cut_into_shards(tmp_path, shards)
    loaded = load_checkpoint(str(tmp_path))
    assert loaded.config == source.config
    assert loaded.eos_token_ids == source.eos_token_ids
    assert set(loaded.tensors.names()) == set(source.tensors.names())
    for name in source.tensors.names():
        np.testing.assert_array_equal(values(loaded, name), values(source, name))


@pytest.mark.parametrize(("dtype", "round_to"), [("f16", np.float16), ("bf16", None)])
def test_types_stay_as_they_are_stored(tmp_path: Path, dtype: str, round_to: Any) -> None:
    source = synthetic_checkpoint(1)
    loaded = load_checkpoint(str(write_checkpoint(source, tmp_path, dtype=dtype)))
    for name in source.tensors.names():
        original = values(source, name)
        expected = widen(to_bf16(original) if round_to is None else original.astype(round_to))
        np.testing.assert_array_equal(values(loaded, name), expected)
        if not is_vector(name):
            assert loaded.tensors.weight(name).dtype == dtype
    assert loaded.stored_bytes == 2 * sum(values(source, n).size for n in source.tensors.names())


@pytest.mark.parametrize(
    "fields",
    [
        {"attention_bias": True},
        {"windows": (4, 4), "architecture": "MistralForCausalLM"},
        {"windows": (None, 4), "architecture": "Qwen2ForCausalLM"},
        {"rope": RopeConfig(kind="linear", factor=2.0, original_max_position=1024)},
        {"rope": RopeConfig(kind="dynamic", factor=2.0, original_max_position=1024)},
        {"rope": RopeConfig(kind="llama3", factor=8.0, original_max_position=256)},
        {"rope": RopeConfig(kind="yarn", factor=4.0, original_max_position=512, mscale=0.5)},
    ],
)
def test_configurations_are_read_back(tmp_path: Path, fields: dict[str, Any]) -> None:
    if fields.pop("attention_bias", False):
        fields = {"qkv_bias": True, "o_bias": True, "mlp_bias": True}
    source = synthetic_checkpoint(**fields)
    assert load_checkpoint(str(write_checkpoint(source, tmp_path))).config == source.config


def test_what_config_json_cannot_say_is_refused() -> None:
    config = synthetic_checkpoint().config
    for fields in (
        {"rope": RopeConfig(freq_factors=(1.0,) * 8)},
        {"windows": (4, None), "architecture": "MistralForCausalLM"},
        {"windows": (4, 8)},
        {"windows": (4, 4)},
        {"architecture": "GemmaForCausalLM"},
        {"qkv_bias": True},
    ):
        with pytest.raises(ValueError):
            config_json(dataclasses.replace(config, **fields), (2,), "f32")


def test_the_tokenizer_on_disk_is_the_one_in_memory(tmp_path: Path) -> None:
    source = synthetic_checkpoint()
    loaded = load_checkpoint(str(write_checkpoint(source, tmp_path)))
    first = Tokenizer.from_spec(source.tokenizer_spec())
    second = Tokenizer.from_spec(loaded.tokenizer_spec())
    text = "The people can't write 123 words,\n<|im_end|> or 日本 🎉!"
    assert first.encode(text) == second.encode(text)
    messages = [{"role": "user", "content": "Hello"}]
    assert first.chat_template.render(messages) == second.chat_template.render(messages)
    assert first.special_tokens == second.special_tokens


@pytest.mark.parametrize("has_head", [False, True])
def test_a_tied_model_ignores_a_head_of_its_own(
    tmp_path: Path, has_head: bool, caplog: pytest.LogCaptureFixture
) -> None:
    source = synthetic_checkpoint(tie_word_embeddings=not has_head)
    write_checkpoint(source, tmp_path, dtype="f32")
    edit_config(tmp_path, tie_word_embeddings=True)
    loaded = load_checkpoint(str(tmp_path))
    assert loaded.config.tie_word_embeddings
    assert HEAD not in loaded.tensors.names()
    assert (f"{HEAD} is ignored, though it is not the embedding" in caplog.text) == has_head


def test_a_tied_model_may_have_its_embedding_twice(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = synthetic_checkpoint(tie_word_embeddings=True)
    write_checkpoint(source, tmp_path, dtype="f32")
    tensors = {name: values(source, name) for name in source.tensors.names()}
    tensors[HEAD] = tensors["model.embed_tokens.weight"]
    write_safetensors(tmp_path / "model.safetensors", tensors)
    assert HEAD not in load_checkpoint(str(tmp_path)).tensors.names()
    assert not caplog.text


def test_a_tied_model_may_be_saved_under_the_name_of_its_head(tmp_path: Path) -> None:
    """LOAD-01: of two names for one tensor, `safetensors.torch.save_model` keeps the first."""
    source = synthetic_checkpoint(tie_word_embeddings=True)
    write_checkpoint(source, tmp_path, dtype="f32")
    tensors = {name: values(source, name) for name in source.tensors.names()}
    tensors[HEAD] = tensors.pop("model.embed_tokens.weight")
    write_safetensors(tmp_path / "model.safetensors", tensors)
    loaded = load_checkpoint(str(tmp_path))
    assert set(loaded.tensors.names()) == set(source.tensors.names())
    np.testing.assert_array_equal(values(loaded, "model.embed_tokens.weight"), tensors[HEAD])


def test_an_untied_model_without_a_head_uses_its_embedding(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_checkpoint(synthetic_checkpoint(tie_word_embeddings=True), tmp_path)
    edit_config(tmp_path, tie_word_embeddings=False)
    with caplog.at_level(logging.WARNING):
        loaded = load_checkpoint(str(tmp_path))
    assert loaded.config.tie_word_embeddings
    assert HEAD in caplog.text


def rewrite_tensors(folder: Path, **changes: np.ndarray | None) -> None:
    """Replace (or with None drop) tensors of the synthetic model in `folder`."""
    source = synthetic_checkpoint()
    tensors = {name: values(source, name) for name in source.tensors.names()}
    for name, array in changes.items():
        if array is None:
            del tensors[name]
        else:
            tensors[name] = array
    write_safetensors(folder / "model.safetensors", tensors)


Q_PROJ = "model.layers.1.self_attn.q_proj.weight"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({Q_PROJ: None}, r"layers\.1\.self_attn\.q_proj\.weight is missing"),
        ({Q_PROJ: np.ones((64, 32), np.float32)}, r"q_proj\.weight has shape \[64, 32\].*\[64, 64"),
        ({EMBEDDING: None, "model.norm.weight": None}, r"embed_tokens\.weight is missing \(and 1"),
    ],
)
def test_missing_and_misshapen_tensors_are_named(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    write_checkpoint(synthetic_checkpoint(), tmp_path)
    rewrite_tensors(tmp_path, **changes)
    with pytest.raises(ModelLoadError, match=said):
        load_checkpoint(str(tmp_path))


def test_names_that_a_wrapper_has_lengthened_are_shown(tmp_path: Path) -> None:
    """torch.compile, PEFT and trainers save a model under their own prefixes."""
    source = synthetic_checkpoint()
    folder = write_checkpoint(source, tmp_path, dtype="f32")
    renamed = {f"_orig_mod.{name}": values(source, name) for name in source.tensors.names()}
    write_safetensors(folder / "model.safetensors", renamed)
    said = r"embed_tokens\.weight is missing.*there is one called _orig_mod\.model\.embed_tokens"
    with pytest.raises(ModelLoadError, match=said):
        load_checkpoint(str(folder))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("weight_scale", "self_attn.q_proj.weight_scale is of a quantized checkpoint"),
        ("qweight", "self_attn.q_proj.qweight is of a quantized checkpoint"),
        ("lora_A.default.weight", "self_attn.q_proj.lora_A.default.weight is of an adapter"),
    ],
)
def test_matrices_that_others_complete_are_refused(tmp_path: Path, more: str, said: str) -> None:
    """LORA-01: the others were left out, with a line in the log, and the answers were nonsense."""
    write_checkpoint(synthetic_checkpoint(), tmp_path)
    rewrite_tensors(tmp_path, **{Q_PROJ.replace("weight", more): np.ones(8, np.float32)})
    with pytest.raises(ModelLoadError, match=said):
        load_checkpoint(str(tmp_path))


def test_tensors_that_are_ignored_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_checkpoint(synthetic_checkpoint(), tmp_path)
    ones = np.ones(8, np.float32)
    rewrite_tensors(
        tmp_path,
        **{"score.weight": ones, "model.layers.0.self_attn.rotary_emb.inv_freq": ones},
    )
    with caplog.at_level(logging.WARNING):
        load_checkpoint(str(tmp_path))
    assert "1 tensors are not part" in caplog.text
    assert "score.weight" in caplog.text


def test_a_truncated_shard_is_named(tmp_path: Path) -> None:
    cut_into_shards(write_checkpoint(synthetic_checkpoint(), tmp_path), 2)
    shard = tmp_path / "model-00002-of-00002.safetensors"
    shard.write_bytes(shard.read_bytes()[:-100])
    with pytest.raises(ModelLoadError, match=r"00002-of-00002\.safetensors is truncated"):
        load_checkpoint(str(tmp_path))


def test_damaged_json_is_named(tmp_path: Path) -> None:
    write_checkpoint(synthetic_checkpoint(), tmp_path)
    for text in ("{", "[" * 100_000, '{"a": ' + "9" * 5000 + "}"):
        (tmp_path / "generation_config.json").write_text(text)
        with pytest.raises(ModelLoadError, match=r"generation_config\.json"):
            load_checkpoint(str(tmp_path))
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ModelLoadError, match=r"config\.json does not hold a JSON object"):
        load_checkpoint(str(tmp_path))


@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"]
)
def test_pointers_of_git_lfs_are_called_so(tmp_path: Path, name: str) -> None:
    """A template that is one would else become every prompt."""
    write_checkpoint(synthetic_checkpoint(), tmp_path)
    (tmp_path / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:1\n")
    with pytest.raises(ModelLoadError, match=rf"{name}: it is a Git LFS pointer; `git lfs pull`"):
        Tokenizer.from_spec(load_checkpoint(str(tmp_path)).tokenizer_spec())


def test_marks_that_editors_begin_files_with_are_none_of_the_text(tmp_path: Path) -> None:
    write_checkpoint(synthetic_checkpoint(), tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}")
    for name in ("config.json", "tokenizer_config.json", "chat_template.jinja"):
        text = (tmp_path / name).read_text(encoding="utf-8")
        (tmp_path / name).write_text(text, encoding="utf-8-sig")
    tokenizer = Tokenizer.from_spec(load_checkpoint(str(tmp_path)).tokenizer_spec())
    assert tokenizer.chat_template.render([{"role": "user", "content": "Hi"}]) == "Hi"


def test_generation_config_is_heeded(tmp_path: Path) -> None:
    write_checkpoint(synthetic_checkpoint(), tmp_path)
    generation = {"eos_token_id": [2, 7], "temperature": 0.5, "top_k": 3, "do_sample": True}
    (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    loaded = load_checkpoint(str(tmp_path))
    assert loaded.eos_token_ids == (2, 7)
    assert loaded.sampling_defaults == {"temperature": 0.5, "top_k": 3}


def test_the_fingerprint_follows_every_file(tmp_path: Path) -> None:
    write_checkpoint(synthetic_checkpoint(), tmp_path)
    seen = {load_checkpoint(str(tmp_path)).fingerprint}
    assert seen == {load_checkpoint(str(tmp_path)).fingerprint}
    edit_config(tmp_path, rms_norm_eps=0.001)
    seen.add(load_checkpoint(str(tmp_path)).fingerprint)
    rewrite_tensors(tmp_path)
    seen.add(load_checkpoint(str(tmp_path)).fingerprint)
    assert len(seen) == 3
