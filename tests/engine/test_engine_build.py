"""`build_engine`: what it keeps of the files that a model came from."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

import pytest
from helpers.native import require_native
from helpers.tiny_gguf import Q, write_tiny_gguf

from tinyserve.config import TinyServeConfig
from tinyserve.engine.build import build_engine
from tinyserve.engine.runner import ModelRunner
from tinyserve.errors import ModelLoadError
from tinyserve.models.export import write_checkpoint
from tinyserve.models.synthetic import synthetic_checkpoint


def config_of(path: Path) -> TinyServeConfig:
    return TinyServeConfig.from_dict({"model": {"name": str(path)}, "cache": {"num_blocks": 64}})


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_loaded_model_leaves_its_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mapped, its pages would stay beside the packed weights. Nor does it wait for a collection."""
    require_native()
    monkeypatch.setenv("TINYSERVE_CACHE", str(tmp_path / "cache"))
    path = write_tiny_gguf(tmp_path / "model.gguf", synthetic_checkpoint(), Q.Q8_0)
    gc.disable()
    try:
        for _ in ("from the file", "from the cache"):
            engine = build_engine(config_of(path))
            assert engine.core.memory_report()["weights"]["touched"] > 0
            assert str(path) not in Path("/proc/self/maps").read_text(errors="replace")
    finally:
        gc.enable()


def test_a_damaged_tokenizer_is_an_error_though_weights_load_beside_it(tmp_path: Path) -> None:
    path = write_tiny_gguf(
        tmp_path / "model.gguf",
        synthetic_checkpoint(),
        metadata={"tokenizer.ggml.pre": "no-such-family"},
    )
    with pytest.raises(ModelLoadError, match="no-such-family"):
        build_engine(config_of(path))


@pytest.mark.parametrize("kind", ["gguf", "folder"])
def test_servers_with_copies_of_a_model_have_one_fingerprint(tmp_path: Path, kind: str) -> None:
    """Wherever the files lie, and whenever they were copied; other weights have another."""

    def write(name: str, seed: int) -> Path:
        checkpoint = synthetic_checkpoint(seed)
        if kind == "gguf":
            return write_tiny_gguf(tmp_path / f"{name}.gguf", checkpoint, Q.Q8_0)
        write_checkpoint(checkpoint, tmp_path / name, dtype="f32")
        return tmp_path / name

    paths = [write("first", 0), write("copy", 0), write("other", 1)]
    os.utime(paths[1], ns=(1, 1))
    prints = [build_engine(config_of(path)).fingerprint for path in paths]
    assert prints[0] == prints[1] != prints[2]


def test_the_fingerprint_tells_how_bf16_is_multiplied() -> None:
    """And only where there are such weights: nothing else depends on it."""
    require_native()
    prints: dict[str, list[str]] = {}
    for dtype in ("bf16", "f32"):
        for products in ("fma", "bf16x2"):
            model = {"name": "synthetic", "dtype": dtype, "bf16_products": products}
            engine = build_engine(
                TinyServeConfig.from_dict({"model": model, "cache": {"num_blocks": 8}})
            )
            prints.setdefault(dtype, []).append(engine.fingerprint)
            is_told = any("bf16x2" in note for note in engine.notes)
            assert is_told == ((dtype, products) == ("bf16", "bf16x2"))
    assert prints["bf16"][0] != prints["bf16"][1]
    assert prints["f32"][0] == prints["f32"][1]


def test_rotary_tables_are_no_longer_than_what_the_cache_holds() -> None:
    """A model's context may be of millions of tokens, and the tables gigabytes."""
    settings = {"cache": {"num_blocks": 4}, "scheduler": {"max_model_len": "auto"}}
    config = TinyServeConfig.from_dict({"model": {"name": "synthetic"}, **settings})
    engine = build_engine(config)
    runner = engine.core.runner
    assert isinstance(runner, ModelRunner)
    assert engine.config.scheduler.max_model_len == 2048
    assert len(runner.decoder.layers[0].attention.cos) == 4 * 16


@pytest.mark.skipif(sys.platform != "linux", reason="other systems' paths are Unicode")
def test_a_model_may_lie_where_no_unicode_leads(tmp_path: Path) -> None:
    """On Linux a path is bytes; names in answers and metrics are text."""
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    write_checkpoint(synthetic_checkpoint(), folder, dtype="f32")
    config = TinyServeConfig.from_dict({"model": {"name": str(folder)}, "cache": {"num_blocks": 4}})
    assert build_engine(config).model_name == f"{tmp_path}/caf\ufffd"
