"""The GGUF container: the same contents as the format's own reader, lazily; damage is named."""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from helpers.tiny_gguf import Q, write_tiny_gguf
from hypothesis import given
from hypothesis import strategies as st

from tinyserve.errors import ModelLoadError
from tinyserve.models.gguf_file import GGUFFile, StringArray
from tinyserve.models.synthetic import synthetic_checkpoint


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    numbers = {"test.floats": [0.5, 1.5], "test.flags": [True, False], "test.negative": [-3, 4]}
    return write_tiny_gguf(path, synthetic_checkpoint(), Q.Q8_0, metadata=numbers)


def value_of(value: object) -> object:
    if isinstance(value, StringArray):
        return value.decode()
    return value.tolist() if isinstance(value, np.ndarray) else value


def test_metadata_is_what_the_librarys_reader_reads(tiny: Path) -> None:
    expected = {
        key: field.contents()
        for key, field in gguf.GGUFReader(tiny).fields.items()
        if not key.startswith("GGUF.")
    }
    assert {key: value_of(value) for key, value in GGUFFile(tiny).metadata.items()} == expected


def test_tensors_are_where_the_librarys_reader_finds_them(tiny: Path) -> None:
    file = GGUFFile(tiny)
    tensors = gguf.GGUFReader(tiny).tensors
    assert set(file.tensors) == {tensor.name for tensor in tensors}
    for tensor in tensors:
        info = file.tensors[tensor.name]
        assert info.shape == tuple(reversed(tensor.shape.tolist()))
        assert info.num_bytes == tensor.n_bytes
        assert file.raw(info).tobytes() == tensor.data.tobytes()


def test_tensors_are_views_of_the_file(tiny: Path) -> None:
    file = GGUFFile(tiny)
    raw = file.raw(file.tensors["token_embd.weight"])
    assert not raw.flags.owndata
    assert not raw.flags.writeable


def test_strings_are_found_by_text_without_decoding(tiny: Path) -> None:
    tokens = GGUFFile(tiny).metadata["tokenizer.ggml.tokens"]
    wanted = ["<|im_end|>", "Ġthe", "not a token", "<|endoftext|>", "z"]
    everything = tokens.decode()
    expected = {text: everything.index(text) for text in wanted if text in everything}
    assert len(expected) == 4
    assert tokens.find(wanted) == expected


def rewrite(source: Path, target: Path, edit: dict[int, bytes]) -> Path:
    data = bytearray(source.read_bytes())
    for position, new in edit.items():
        data[position : position + len(new)] = new
    target.write_bytes(data)
    return target


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        ({0: b"PK\x03\x04"}, "not a GGUF file"),
        ({4: struct.pack("<I", 1)}, "version 1"),
        ({4: struct.pack("<I", 99)}, "version 99"),
        ({4: struct.pack(">I", 3)}, "big-endian"),
        ({16: struct.pack("<Q", 10**6)}, "truncated|damaged"),  # a million metadata keys
        ({24: struct.pack("<Q", 2**63)}, "truncated"),  # a key of 2^63 letters
    ],
)
def test_a_damaged_header_is_named(
    tiny: Path, tmp_path: Path, edit: dict[int, bytes], said: str
) -> None:
    with pytest.raises(ModelLoadError, match=said):
        GGUFFile(rewrite(tiny, tmp_path / "damaged.gguf", edit))


def test_a_pointer_of_git_lfs_is_called_one(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    with pytest.raises(ModelLoadError, match="git lfs pull"):
        GGUFFile(path)


@given(st.floats(0, 1, exclude_max=True))
def test_every_truncation_is_detected_with_the_sizes(
    tiny: Path, tmp_path_factory: pytest.TempPathFactory, share: float
) -> None:
    whole = tiny.read_bytes()
    size = int(len(whole) * share)
    cut = tmp_path_factory.getbasetemp() / "cut.gguf"
    cut.write_bytes(whole[:size])
    with pytest.raises(ModelLoadError) as caught:
        GGUFFile(cut)
    if size >= 4:
        assert f"has {size} bytes" in str(caught.value)


def test_one_missing_byte_is_said_with_both_sizes(tiny: Path, tmp_path: Path) -> None:
    reader = gguf.GGUFReader(tiny)
    needed = max(tensor.data_offset + tensor.n_bytes for tensor in reader.tensors)
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(tiny.read_bytes()[: needed - 1])
    with pytest.raises(ModelLoadError, match=f"has {needed - 1} bytes, its tensors need {needed}"):
        GGUFFile(cut)


@given(st.integers(24, 3000), st.binary(min_size=1, max_size=8))
def test_random_damage_never_escapes_as_another_error(
    tiny: Path, tmp_path_factory: pytest.TempPathFactory, position: int, noise: bytes
) -> None:
    target = tmp_path_factory.getbasetemp() / "noise.gguf"
    with contextlib.suppress(ModelLoadError):
        GGUFFile(rewrite(tiny, target, {position: noise}))


def test_alignment_of_the_file_is_respected(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "llama")
    writer.add_custom_alignment(64)
    writer.add_tensor("x", np.arange(12, dtype=np.float32).reshape(3, 4))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = GGUFFile(tmp_path / "a.gguf")
    info = file.tensors["x"]
    assert info.offset % 64 == 0
    assert file.raw(info).view("<f4").tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
