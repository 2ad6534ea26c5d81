"""The folder that peers read holds the very values, and the tokenizer, of the model."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from tinyserve.bench import float_folder
from tinyserve.models.checkpoint import load_checkpoint
from tinyserve.models.config import RopeConfig
from tinyserve.models.layout import tensor_shapes
from tinyserve.text.tokenizer import Tokenizer


def test_a_model_comes_back_as_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "float"
    float_folder.main(["--model", "synthetic", "--out", str(folder)])
    written, original = load_checkpoint(str(folder)), load_checkpoint("synthetic")
    same = {"rope": None, "windows": ()}
    assert dataclasses.replace(written.config, **same) == dataclasses.replace(
        original.config, **same
    )
    assert written.config.rope.theta == original.config.rope.theta
    assert written.eos_token_ids == original.eos_token_ids
    for name, shape in tensor_shapes(original.config).items():
        if len(shape) == 2:
            ours = written.tensors.weight(name).dequantize()
            assert np.array_equal(ours, original.tensors.weight(name).dequantize()), name
        else:
            assert np.array_equal(written.tensors.vector(name), original.tensors.vector(name)), name
    tokenizers = [Tokenizer.from_spec(c.tokenizer_spec()) for c in (written, original)]
    assert len({tuple(t.encode("any text, 2026")) for t in tokenizers}) == 1
    assert tokenizers[0].eos_token_id == tokenizers[1].eos_token_id


def test_rotary_scaling_is_not_lost_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = load_checkpoint("synthetic")
    yarn = RopeConfig(kind="yarn", factor=4.0, original_max_position=512)
    scaled = dataclasses.replace(original, config=dataclasses.replace(original.config, rope=yarn))
    monkeypatch.setattr(float_folder, "load_checkpoint", lambda name: scaled)
    float_folder.main(["--model", "synthetic", "--out", str(tmp_path)])
    rope = load_checkpoint(str(tmp_path)).config.rope
    assert (rope.kind, rope.factor, rope.original_max_position) == ("yarn", 4.0, 512)


def test_a_folder_must_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        float_folder.main(["--model", "synthetic"])
    assert "--out names the folder" in capsys.readouterr().err
