"""Checkpoints made for embeddings: without a head, without the prefix of names, with their pooling
said in a file of its own.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tinyserve.config import ModelOptions
from tinyserve.engine.build import resolve_pooling
from tinyserve.models.checkpoint import Checkpoint, load_checkpoint
from tinyserve.models.export import write_checkpoint, write_safetensors
from tinyserve.models.layout import LM_HEAD
from tinyserve.models.synthetic import synthetic_checkpoint


def write_embedding_model(folder: Path) -> Checkpoint:
    """As sentence-transformers' authors save a Qwen3 or Mistral encoder: the bare model."""
    source = synthetic_checkpoint(1, tie_word_embeddings=True)
    write_checkpoint(source, folder, dtype="f32")
    tensors = {}
    for name in source.tensors.names():
        if name != LM_HEAD:
            is_vector = "norm" in name or name.endswith("bias")
            read = (
                source.tensors.vector(name)
                if is_vector
                else source.tensors.weight(name).dequantize()
            )
            tensors[name.removeprefix("model.")] = np.asarray(read, np.float32)
    for old in folder.glob("*.safetensors*"):
        old.unlink()
    write_safetensors(folder / "model.safetensors", tensors)
    return source


def say_pooling(folder: Path, **modes: bool) -> None:
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(modes))


def test_tensors_without_the_prefix_are_found(tmp_path: Path) -> None:
    source = write_embedding_model(tmp_path)
    loaded = load_checkpoint(str(tmp_path))
    assert set(loaded.tensors.names()) == set(source.tensors.names())
    name = "model.layers.0.self_attn.q_proj.weight"
    np.testing.assert_array_equal(
        loaded.tensors.weight(name).dequantize(), source.tensors.weight(name).dequantize()
    )


@pytest.mark.parametrize(
    ("modes", "want"),
    [
        ({"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False}, "last"),
        ({"pooling_mode_lasttoken": False, "pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode_cls_token": True}, None),
    ],
)
def test_pooling_is_what_the_files_say(
    tmp_path: Path, modes: dict[str, bool], want: str | None
) -> None:
    write_embedding_model(tmp_path)
    assert load_checkpoint(str(tmp_path)).pooling is None
    say_pooling(tmp_path, **modes)
    checkpoint = load_checkpoint(str(tmp_path))
    assert checkpoint.pooling == want
    assert resolve_pooling(ModelOptions(), checkpoint) == (want or "mean")
    assert resolve_pooling(ModelOptions(pooling="last"), checkpoint) == "last"
    assert resolve_pooling(ModelOptions(pooling="mean"), checkpoint) == "mean"
