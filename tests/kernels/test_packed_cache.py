"""The cache of packed weights: same bits from disk, and no file that can do harm."""

from __future__ import annotations

import dataclasses
import logging
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.plans import Sequences, run_chunks
from kernel_tools import same_bits

from tinyserve.config import ModelOptions
from tinyserve.engine.runner import ModelRunner
from tinyserve.kernels import ops, packing
from tinyserve.kernels.formats import F32
from tinyserve.kernels.native import NativeBackend
from tinyserve.kernels.ops import KVLayout
from tinyserve.kernels.reference import ReferenceBackend
from tinyserve.kv.pool import KVPool
from tinyserve.models import packed_cache
from tinyserve.models.checkpoint import Checkpoint
from tinyserve.models.decoder import Decoder
from tinyserve.models.synthetic import synthetic_checkpoint
from tinyserve.models.weights import load_decoder

PROMPT = [5, 9, 200, 31, 77, 8, 8, 400]
OPTIONS = ModelOptions(quantization="int4")


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TINYSERVE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "packed"


@pytest.fixture
def checkpoint() -> Checkpoint:
    """Biases, silu and several formats; `fingerprint` makes it one that is kept."""
    model = synthetic_checkpoint(3, architecture="Qwen2ForCausalLM", num_layers=2)
    return dataclasses.replace(model, fingerprint="f1", name="some/folder name")


def load(
    checkpoint: Checkpoint, backend: NativeBackend, options: ModelOptions = OPTIONS
) -> Decoder:
    return load_decoder(checkpoint, backend, options, 64)


def logits(decoder: Decoder, backend: NativeBackend) -> F32:
    config = decoder.config
    layout = KVLayout(4, 16, config.num_layers, config.num_kv_heads, config.head_dim, "f32")
    runner = ModelRunner(decoder, KVPool(layout, 0), backend, 64)
    chunk = Sequences(block_size=16, num_blocks=4).chunk(0, PROMPT)
    return run_chunks(runner, [chunk])[0]


class CountingTensors:
    """Counts how many matrices are asked for."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.tensors = checkpoint.tensors
        self.num_read = 0

    def names(self) -> object:
        return self.tensors.names()

    def weight(self, name: str) -> object:
        self.num_read += 1
        return self.tensors.weight(name)

    def vector(self, name: str) -> F32:
        return self.tensors.vector(name)


def counted(checkpoint: Checkpoint) -> tuple[Checkpoint, CountingTensors]:
    tensors = CountingTensors(checkpoint)
    return dataclasses.replace(checkpoint, tensors=tensors), tensors  # type: ignore[arg-type]


def test_a_hit_gives_the_same_bits(
    checkpoint: Checkpoint, native: NativeBackend, cache_folder: Path
) -> None:
    first = logits(load(checkpoint, native), native)
    files = list(cache_folder.iterdir())
    assert len(files) == 1, "one file, and no temporary one left"
    written = files[0].stat().st_mtime_ns
    again, tensors = counted(checkpoint)
    decoder = load(again, native)
    assert tensors.num_read == 0
    assert same_bits(logits(decoder, native), first)
    assert files[0].stat().st_mtime_ns == written
    for layer in decoder.layers:
        for linear in (layer.qkv, layer.o, layer.gate_up, layer.down):
            assert all(part.data.ctypes.data % 64 == 0 for part in linear.parts)  # type: ignore[attr-defined]


def damage_of(kind: str, content: bytes) -> bytes:
    header_end = content.index(b"\n", content.index(b"\n") + 1)
    at = {
        "first byte": 0,
        "checksum": content.index(b"\n") - 1,
        "header": content.index(b"\n") + 20,
        "size in the header": content.index(b'"size": ') + 8,
        "body": header_end + 1000,
        "last byte": len(content) - 1,
    }
    if kind in at:
        flipped = bytearray(content)
        flipped[at[kind]] ^= 1
        return bytes(flipped)
    return {
        "empty": b"",
        "half": content[: len(content) // 2],
        "one byte short": content[:-1],
        "one byte more": content + b"\0",
        "header only": content[: header_end + 1],
        "another file": b"GGUF" + bytes(5000),
        "one long line": b"x" * 5000,
        "zeros": bytes(len(content)),
    }[kind]


DAMAGES = [
    *("first byte", "checksum", "header", "size in the header", "body", "last byte"),
    *("empty", "half", "one byte short", "one byte more", "header only"),
    *("another file", "one long line", "zeros"),
]


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_file_is_ignored_and_written_anew(
    checkpoint: Checkpoint,
    native: NativeBackend,
    cache_folder: Path,
    kind: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    first = logits(load(checkpoint, native), native)
    (path,) = cache_folder.iterdir()
    sound = path.read_bytes()
    path.write_bytes(damage_of(kind, sound))
    with caplog.at_level(logging.WARNING, logger="tinyserve"):
        decoder = load(checkpoint, native)
    assert "ignoring the packed weights" in caplog.text
    assert str(path) in caplog.text
    assert same_bits(logits(decoder, native), first)
    assert path.read_bytes() == sound


@pytest.mark.parametrize(
    "change",
    ["fingerprint", "dtype", "quantization", "numerics version", "packing version"],
)
def test_what_decides_the_content_names_the_file(
    checkpoint: Checkpoint,
    native: NativeBackend,
    cache_folder: Path,
    change: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    load(checkpoint, native)
    options = OPTIONS
    if change == "fingerprint":
        checkpoint = dataclasses.replace(checkpoint, fingerprint="f2")
    elif change == "dtype":
        options = ModelOptions(quantization="int4", dtype="bf16")
    elif change == "quantization":
        options = ModelOptions(quantization="int8")
    elif change == "numerics version":
        assert packed_cache.NUMERICS_VERSION == ops.NUMERICS_VERSION
        monkeypatch.setattr(packed_cache, "NUMERICS_VERSION", ops.NUMERICS_VERSION + 1)
    else:
        assert packed_cache.PACKING_VERSION == packing.PACKING_VERSION
        monkeypatch.setattr(packed_cache, "PACKING_VERSION", packing.PACKING_VERSION + 1)
    changed, tensors = counted(checkpoint)
    load(changed, native, options)
    assert tensors.num_read > 0
    assert len(list(cache_folder.iterdir())) == 2


def test_nothing_is_kept_of_models_without_files_or_for_numpy(
    checkpoint: Checkpoint, native: NativeBackend, cache_folder: Path
) -> None:
    load(dataclasses.replace(checkpoint, fingerprint=""), native)
    load_decoder(checkpoint, ReferenceBackend(), OPTIONS, 64)
    assert not cache_folder.exists()


def test_too_large_models_are_not_kept(
    checkpoint: Checkpoint,
    native: NativeBackend,
    cache_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(packed_cache, "LARGEST", 1000)
    load(checkpoint, native)
    assert not cache_folder.exists()


def test_an_unwritable_folder_only_warns(
    checkpoint: Checkpoint,
    native: NativeBackend,
    cache_folder: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A file where the folder should be: not even root can write there."""
    cache_folder.parent.mkdir()
    cache_folder.write_text("in the way")
    with caplog.at_level(logging.WARNING, logger="tinyserve"):
        decoder = load(checkpoint, native)
    assert "could not keep the packed weights" in caplog.text
    assert np.isfinite(logits(decoder, native)).all()


def test_a_folder_that_may_not_be_looked_into_costs_only_time(
    checkpoint: Checkpoint,
    native: NativeBackend,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(path: Path, *_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    for name in ("stat", "open", "mkdir"):
        monkeypatch.setattr(Path, name, refuse)
    with caplog.at_level(logging.WARNING, logger="tinyserve"):
        decoder = load(checkpoint, native)
    assert "could not keep the packed weights" in caplog.text
    assert np.isfinite(logits(decoder, native)).all()


def test_users_of_one_cache_may_read_what_others_wrote(
    checkpoint: Checkpoint, native: NativeBackend, cache_folder: Path
) -> None:
    """As the umask has it; files for temporary use would be their owner's alone."""
    before = os.umask(0o022)
    try:
        load(checkpoint, native)
    finally:
        os.umask(before)
    (path,) = cache_folder.iterdir()
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_full_disk_leaves_no_half_file(
    checkpoint: Checkpoint,
    native: NativeBackend,
    cache_folder: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_space(source: object, target: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", no_space)
    with caplog.at_level(logging.WARNING, logger="tinyserve"):
        load(checkpoint, native)
    assert "No space left" in caplog.text
    assert list(cache_folder.iterdir()) == []


def test_what_killed_writers_left_is_removed(
    checkpoint: Checkpoint, native: NativeBackend, cache_folder: Path
) -> None:
    """A process that is killed while it writes, again and again, fills no disk."""
    cache_folder.mkdir(parents=True)
    old, young, other = (cache_folder / name for name in ("a.tmp", "b.tmp", "c.bin"))
    for path in (old, young, other):
        path.write_bytes(b"half a model")
    for path in (old, other):
        os.utime(path, (1, 1))
    load(checkpoint, native)
    assert not old.exists()
    assert young.exists()  # somebody may be writing it
    assert other.exists()
    assert len(list(cache_folder.glob("*.bin"))) == 2


def test_the_folder_does_not_grow_for_ever(
    checkpoint: Checkpoint,
    native: NativeBackend,
    cache_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Other options and new versions have files of their own; the oldest use goes first."""
    load(checkpoint, native)
    (used,) = cache_folder.iterdir()
    size = used.stat().st_size
    old = cache_folder / "old.bin"
    old.write_bytes(bytes(size))
    os.utime(old, (2, 2))
    os.utime(used, (1, 1))
    load(checkpoint, native)  # reading is use
    monkeypatch.setattr(packed_cache, "KEPT", 2 * size + size // 2)
    load(dataclasses.replace(checkpoint, fingerprint="f2"), native)
    assert len(left := set(cache_folder.iterdir())) == 2
    assert used in left
    assert old not in left
    monkeypatch.setattr(packed_cache, "KEPT", 1)
    load(dataclasses.replace(checkpoint, fingerprint="f3"), native)
    (newest,) = cache_folder.iterdir()
    assert newest not in left


# Ends while another thread writes, as a server does that is told to stop.
ENDING = """
import dataclasses, os, threading, time
from tinyserve.config import ModelOptions
from tinyserve.kernels.native import NativeBackend
from tinyserve.models.synthetic import synthetic_checkpoint
from tinyserve.models.weights import load_decoder
is_written = threading.Event()

def replace(*_):
    is_written.set()
    time.sleep(600)

os.replace = replace
model = dataclasses.replace(synthetic_checkpoint(), fingerprint="f")
load = (model, NativeBackend(1), ModelOptions(quantization="int8"), 64)
threading.Thread(target=load_decoder, args=load, daemon=True).start()
is_written.wait(60)
assert os.listdir(os.environ["TINYSERVE_CACHE"] + "/packed")
"""


def test_a_process_that_ends_leaves_no_half_file(native: NativeBackend, cache_folder: Path) -> None:
    run = subprocess.run([sys.executable, "-c", ENDING], capture_output=True, timeout=60)
    assert (run.returncode, run.stderr) == (0, b"")
    assert list(cache_folder.iterdir()) == []
