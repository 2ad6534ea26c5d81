"""Checkpoints made for embeddings: without a head, without the prefix of names, with their pooling
said in a file of its own.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from helpers.live_server import live, ok

from tinyserve import LLM, TinyServeConfig
from tinyserve.config import ModelOptions
from tinyserve.engine.build import build_engine
from tinyserve.engine.resolve import resolve_pooling
from tinyserve.errors import ModelLoadError
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


def say_pooling(folder: Path, **modes: Any) -> None:
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


def test_a_head_beside_tensors_without_the_prefix_is_used(tmp_path: Path) -> None:
    """LOAD-01: it was left out, with a warning, and the embedding used in its place."""
    source = synthetic_checkpoint(1)
    folder = write_checkpoint(source, tmp_path / "model", dtype="f32")
    path = folder / "model.safetensors"
    tensors = {k.removeprefix("model."): v for k, v in safetensors.numpy.load_file(path).items()}
    write_safetensors(path, tensors)
    loaded = load_checkpoint(str(folder))
    assert not loaded.config.tie_word_embeddings
    for name in (LM_HEAD, "model.embed_tokens.weight"):
        np.testing.assert_array_equal(
            loaded.tensors.weight(name).dequantize(), source.tensors.weight(name).dequantize()
        )


@pytest.mark.parametrize(
    ("modes", "want"),
    [
        ({"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False}, "last"),
        ({"pooling_mode_lasttoken": False, "pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode_cls_token": True}, None),
        ({"pooling_mode": "lasttoken"}, "last"),
        ({"pooling_mode": "mean"}, "mean"),
        ({"pooling_mode": ["lasttoken", "mean"]}, None),
    ],
)
def test_pooling_is_what_the_files_say(
    tmp_path: Path, modes: dict[str, Any], want: str | None
) -> None:
    write_embedding_model(tmp_path)
    assert load_checkpoint(str(tmp_path)).pooling is None
    say_pooling(tmp_path, **modes)
    checkpoint = load_checkpoint(str(tmp_path))
    assert checkpoint.pooling == want
    assert resolve_pooling(ModelOptions(), checkpoint) == (want or "mean")
    assert resolve_pooling(ModelOptions(pooling="last"), checkpoint) == "last"
    assert resolve_pooling(ModelOptions(pooling="mean"), checkpoint) == "mean"


def test_modules_after_the_pooling_are_refused_by_name(tmp_path: Path) -> None:
    write_embedding_model(tmp_path)
    kinds = ["models.Transformer", "models.Pooling", "models.Normalize"]
    for more in ([], ["models.Dense"]):
        modules = [{"type": f"sentence_transformers.{kind}"} for kind in [*kinds, *more]]
        (tmp_path / "modules.json").write_text(json.dumps(modules))
        if more:
            with pytest.raises(ModelLoadError, match=r"modules\.json: a module Dense is not supp"):
                load_checkpoint(str(tmp_path))
        else:
            load_checkpoint(str(tmp_path))


def test_a_text_is_embedded_with_the_end_that_the_files_put_after_it(tmp_path: Path) -> None:
    """Such a model is read off at its end of text, as sentence-transformers does, not at the
    text's last token. A prompt to be continued gets none.
    """
    write_embedding_model(tmp_path)
    say_pooling(tmp_path, pooling_mode_lasttoken=True)
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "add_eos_token": True}))
    sizes = {"cache": {"num_blocks": 64}, "scheduler": {"max_model_len": 256}}
    config = TinyServeConfig.from_dict({"model": {"name": str(tmp_path), "threads": 1}, **sizes})
    llm = LLM.from_engine(build_engine(config))
    tokenizer = llm.engine.intake.tokenizer
    ids = [*tokenizer.encode("hello"), tokenizer.eos_token_id]
    (want,) = llm.embed([ids])
    np.testing.assert_array_equal(llm.embed("hello")[0], want)
    with live(build_engine(config)) as served:
        for body, count in (({}, len(ids)), ({"add_special_tokens": False}, len(ids) - 1)):
            answer = ok(served.post("/v1/embeddings", input="hello", **body))
            assert answer["usage"]["prompt_tokens"] == count
            got = np.float32(answer["data"][0]["embedding"])
            assert (got == want).all() == (count == len(ids))
        answer = ok(served.post("/v1/completions", prompt="hello", max_tokens=1))
        assert answer["usage"]["prompt_tokens"] == len(ids) - 1
