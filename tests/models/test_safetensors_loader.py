"""safetensors by memory map: the library's values without its copies; damage is named."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import safetensors
import safetensors.numpy

from tinyserve.errors import ModelLoadError
from tinyserve.kernels.formats import to_bf16
from tinyserve.models.export import write_safetensors
from tinyserve.models.safetensors_loader import (
    SafetensorsFile,
    SafetensorsSource,
    find_files,
    open_tensors,
    read_index,
)


@pytest.fixture
def arrays(rng: np.random.Generator) -> dict[str, np.ndarray]:
    values = rng.standard_normal((6, 10), dtype=np.float32)
    return {"w32": values, "w16": values.astype(np.float16), "norm": values[0]}


def test_values_are_those_of_the_librarys_writer(
    tmp_path: Path, arrays: dict[str, np.ndarray]
) -> None:
    path = tmp_path / "a.safetensors"
    safetensors.numpy.save_file(arrays, path, metadata={"format": "pt"})
    file = SafetensorsFile(path)
    assert set(file.tensors) == set(arrays)
    for name, expected in arrays.items():
        np.testing.assert_array_equal(file.tensors[name].read(), expected)


def test_what_we_write_the_library_reads(tmp_path: Path, arrays: dict[str, np.ndarray]) -> None:
    path = tmp_path / "a.safetensors"
    write_safetensors(path, {**arrays, "bf": to_bf16(arrays["w32"])})
    with safetensors.safe_open(path, framework="np") as file:
        assert set(file.keys()) == {*arrays, "bf"}
        assert file.get_slice("bf").get_dtype() == "BF16"
        for name, expected in arrays.items():
            np.testing.assert_array_equal(file.get_tensor(name), expected)


def test_nothing_is_copied_and_bf16_stays_bits(
    tmp_path: Path, arrays: dict[str, np.ndarray]
) -> None:
    path = tmp_path / "a.safetensors"
    bits = to_bf16(arrays["w32"])
    write_safetensors(path, {"bf": bits, "w16": arrays["w16"], "norm": arrays["norm"]})
    source = SafetensorsSource(open_tensors([path], {}), ["bf", "w16", "norm"])
    weight = source.weight("bf")
    assert (weight.dtype, source.weight("w16").dtype) == ("bf16", "f16")
    np.testing.assert_array_equal(weight.data, bits)
    assert not weight.data.flags.owndata
    assert not weight.data.flags.writeable
    assert source.vector("norm").dtype == np.float32


@pytest.mark.parametrize("kept", [0, 4, 8, 50, -1])
def test_a_truncated_file_is_said_with_both_sizes(
    tmp_path: Path, arrays: dict[str, np.ndarray], kept: int
) -> None:
    path = tmp_path / "a.safetensors"
    write_safetensors(path, arrays)
    whole = path.read_bytes()
    cut = whole[:kept]
    path.write_bytes(cut)
    with pytest.raises(ModelLoadError, match=rf"a\.safetensors.*has {len(cut)} bytes") as caught:
        SafetensorsFile(path)
    if kept == -1:
        assert str(len(whole)) in str(caught.value)


def raw_file(path: Path, header: object) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(64))
    return path


@pytest.mark.parametrize(
    ("header", "said"),
    [
        (b"not json", "not a safetensors file"),
        pytest.param(b"[" * 100_000, "not a safetensors file", id="deep"),
        ([1, 2], "not a safetensors file"),
        ({"a": {"dtype": "F32", "shape": [2]}}, "damaged"),
        ({"a": 7}, "damaged"),
        ({"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}}, "tensor a of shape"),
    ],
)
def test_a_damaged_header_is_said(tmp_path: Path, header: object, said: str) -> None:
    with pytest.raises(ModelLoadError, match=said):
        SafetensorsFile(raw_file(tmp_path / "a.safetensors", header))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "git lfs pull"),
        (b"<!DOCTYPE html><html>404</html>", "not a safetensors file$"),
        (b"GGUF" + bytes(range(1, 60)), "not a safetensors file$"),
    ],
)
def test_what_is_something_else_altogether_is_not_called_truncated(
    tmp_path: Path, content: bytes, said: str
) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(ModelLoadError, match=said):
        SafetensorsFile(path)


@pytest.mark.parametrize(
    "index",
    [
        pytest.param("[" * 100_000, id="deep"),
        *("[]", "{}", '{"weight_map": {"a": null}}', '{"weight_map": {}}'),
    ],
)
def test_a_damaged_index_is_named(tmp_path: Path, index: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(ModelLoadError, match=r"index\.json is damaged"):
        find_files(tmp_path)


def test_an_unsupported_type_is_named_with_its_tensor(tmp_path: Path) -> None:
    header = {"a": {"dtype": "F8_E4M3", "shape": [4], "data_offsets": [0, 4]}}
    tensors = SafetensorsFile(raw_file(tmp_path / "a.safetensors", header)).tensors
    with pytest.raises(ModelLoadError, match="tensor a has unsupported type F8_E4M3"):
        SafetensorsSource(tensors, ["a"])


def test_files_of_a_folder(tmp_path: Path, arrays: dict[str, np.ndarray]) -> None:
    with pytest.raises(ModelLoadError, match=r"no \.safetensors file"):
        find_files(tmp_path)
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(ModelLoadError, match="pickled"):
        find_files(tmp_path)
    for name in ("one", "two", "consolidated"):
        write_safetensors(tmp_path / f"{name}.safetensors", arrays)
    assert len(find_files(tmp_path)) == 3
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert [path.name for path in find_files(tmp_path)] == ["one.safetensors", "two.safetensors"]
    (tmp_path / "two.safetensors").unlink()
    with pytest.raises(ModelLoadError, match=r"two\.safetensors is missing"):
        find_files(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(ModelLoadError, match=r"index\.json is damaged"):
        find_files(tmp_path)


def test_an_index_left_behind_gives_way_to_the_whole_file(
    tmp_path: Path, arrays: dict[str, np.ndarray], caplog: pytest.LogCaptureFixture
) -> None:
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    for name in ("one", "model"):
        write_safetensors(tmp_path / f"{name}.safetensors", arrays)
    assert [path.name for path in find_files(tmp_path)] == ["model.safetensors"]
    assert "two.safetensors, which is missing" in caplog.text
    write_safetensors(tmp_path / "two.safetensors", arrays)
    assert [path.name for path in find_files(tmp_path)] == ["one.safetensors", "two.safetensors"]


def test_the_index_says_which_of_two_files_holds_a_tensor(tmp_path: Path) -> None:
    """Quantizing and merging leave stale copies in other shards; the last one used to win."""
    files = [tmp_path / f"{name}.safetensors" for name in ("one", "two")]
    for number, file in enumerate(files):
        write_safetensors(file, {"a": np.full(4, number, np.float32)})
    for home in files:
        index = {"weight_map": {"a": home.name, "b": files[0].name, "c": files[1].name}}
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
        assert open_tensors(files, read_index(tmp_path))["a"].file.path == home
    assert open_tensors(files, {})["a"].file.path == files[1]


def test_a_missing_part_is_told_where_no_index_says_so(
    tmp_path: Path, arrays: dict[str, np.ndarray], caplog: pytest.LogCaptureFixture
) -> None:
    for number in (1, 3):
        write_safetensors(tmp_path / f"model-0000{number}-of-00003.safetensors", arrays)
    assert len(find_files(tmp_path)) == 2
    assert "model-00002-of-00003.safetensors is missing" in caplog.text
    caplog.clear()
    write_safetensors(tmp_path / "model-00002-of-00003.safetensors", arrays)
    assert len(find_files(tmp_path)) == 3
    assert caplog.text == ""


def test_files_that_macos_hides_beside_others_are_none_of_the_model(
    tmp_path: Path, arrays: dict[str, np.ndarray]
) -> None:
    write_safetensors(tmp_path / "weights.safetensors", arrays)
    (tmp_path / "._weights.safetensors").write_bytes(b"\0\5\x16\7")
    assert [path.name for path in find_files(tmp_path)] == ["weights.safetensors"]
