"""safetensors files by memory map, one or many shards, as a `TensorSource`. Knows no architectures.

Why not the `safetensors` library here: its numpy front has no bf16 and copies each tensor. The
format is a length, a JSON header and raw little-endian bytes
(https://github.com/huggingface/safetensors#format), so a view of the map is all that a reader has
to make. Files are opened and checked at once, tensors are touched only when asked for.
"""

from __future__ import annotations

import json
import logging
import math
import mmap
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinyserve.errors import ModelLoadError
from tinyserve.files import pointer_hint, read_text
from tinyserve.kernels.formats import F32, FloatWeight, widen
from tinyserve.models.layout import Shape

INDEX = "model.safetensors.index.json"
MAX_HEADER_SIZE = 100_000_000  # bytes, by the format; more is the beginning of something else
_PART = re.compile(r"(?P<stem>.*)-\d{5}-of-(?P<count>\d{5})\.safetensors")

logger = logging.getLogger(__name__)

# bf16 has no numpy type: its bit patterns travel as uint16 (see kernels.formats).
DTYPES: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
}


@dataclass(frozen=True)
class StoredTensor:
    """Where one tensor lies: byte range within `file`'s data section."""

    file: SafetensorsFile
    name: str
    dtype: str
    shape: Shape
    begin: int

    def read(self) -> NDArray[Any]:
        """A read-only view of the file. Raises ModelLoadError for types that are not supported."""
        flat = np.frombuffer(self.file.data, self.numpy_dtype, math.prod(self.shape), self.begin)
        return flat.reshape(self.shape)

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * self.numpy_dtype.itemsize

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """How values are held (bf16 as uint16). Raises ModelLoadError naming tensor and type."""
        dtype = DTYPES.get(self.dtype)
        if dtype is None:
            raise ModelLoadError(
                f"{self.file.path}: tensor {self.name} has unsupported type {self.dtype} "
                f"(supported: {', '.join(DTYPES)})"
            )
        return dtype


class SafetensorsFile:
    """One open file.

    Raises ModelLoadError where the header is damaged or the file is shorter than it says.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._size = path.stat().st_size
        with path.open("rb") as file:
            prefix = file.read(8)
            header_size = int.from_bytes(prefix, "little")
            if header_size > MAX_HEADER_SIZE:
                raise ModelLoadError(f"{path} is not a safetensors file{pointer_hint(path)}")
            if len(prefix) < 8 or header_size > self._size - 8:
                self._raise_truncated(8 + header_size if len(prefix) == 8 else 8)
            header = self._parse(file.read(header_size))
            self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        header.pop("__metadata__", None)
        start = 8 + header_size
        try:
            needed = start + max((entry["data_offsets"][1] for entry in header.values()), default=0)
            if needed > self._size:
                self._raise_truncated(needed)
            self.tensors = {n: self._tensor(n, entry, start) for n, entry in header.items()}
        except (KeyError, TypeError, IndexError, AttributeError) as error:
            raise ModelLoadError(f"{path}: damaged safetensors header ({error!r})") from error

    def _parse(self, text: bytes) -> dict[str, Any]:
        try:
            header = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ModelLoadError(f"{self.path} is not a safetensors file: {error}") from error
        if not isinstance(header, dict):
            raise ModelLoadError(f"{self.path} is not a safetensors file")
        return header

    def _tensor(self, name: str, entry: Mapping[str, Any], start: int) -> StoredTensor:
        begin, end = entry["data_offsets"]
        shape = tuple(int(size) for size in entry["shape"])
        dtype = DTYPES.get(entry["dtype"])
        if dtype is not None and end - begin != math.prod(shape) * dtype.itemsize:
            raise ModelLoadError(
                f"{self.path}: tensor {name} of shape {list(shape)} and type {entry['dtype']} "
                f"cannot have {end - begin} bytes"
            )
        return StoredTensor(self, name, entry["dtype"], shape, start + begin)

    def _raise_truncated(self, needed: int) -> None:
        raise ModelLoadError(
            f"{self.path} is truncated: it has {self._size} bytes, its header needs {needed}"
        )


class SafetensorsSource:
    """The tensors named in `wanted`, spread over files; a `TensorSource`.

    Raises ModelLoadError at once where one is of a type that is not supported.
    """

    def __init__(self, tensors: Mapping[str, StoredTensor], wanted: Collection[str]) -> None:
        self._tensors = {name: tensors[name] for name in wanted}
        self.num_bytes = sum(tensor.num_bytes for tensor in self._tensors.values())

    def names(self) -> Collection[str]:
        return self._tensors.keys()

    def weight(self, name: str) -> FloatWeight:
        return FloatWeight(self._tensors[name].read())

    def vector(self, name: str) -> F32:
        return widen(self._tensors[name].read())


def find_files(folder: Path) -> list[Path]:
    """The safetensors files of a checkpoint folder.

    Those of its index, else model.safetensors, else all. An index some of whose files are missing
    gives way to model.safetensors: converting and merging often leave one behind. Raises
    ModelLoadError where there is none.
    """
    indexed = sorted(set(read_index(folder).values()))
    missing = [file for file in indexed if not file.is_file()]
    single = folder / "model.safetensors"
    if missing and not single.is_file():
        raise ModelLoadError(f"{missing[0]} is missing; {INDEX} says that it holds tensors")
    if missing:
        logger.warning(
            "%s names %s, which is missing; %s is read alone", INDEX, missing[0].name, single
        )
    elif indexed:
        return indexed
    if single.is_file():
        return [single]
    files = sorted(folder.glob("[!.]*.safetensors"))  # none of those that macOS hides beside them
    if files:
        _warn_of_missing_parts(files)
        return files
    if any(folder.glob("*.bin")) or any(folder.glob("*.pt*")):
        raise ModelLoadError(
            f"{folder} has only pickled weights (.bin/.pt), which can run code when read; "
            "convert them to safetensors"
        )
    raise ModelLoadError(f"{folder} has no .safetensors file")


def read_index(folder: Path) -> dict[str, Path]:
    """Which file holds each tensor, as the folder's index says; {} where there is none. Raises
    ModelLoadError where it is damaged.
    """
    path = folder / INDEX
    if not path.is_file():
        return {}
    try:
        named = json.loads(read_text(path))["weight_map"].items()
        homes = {tensor: folder / file for tensor, file in named}
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise ModelLoadError(f"{path} is damaged: {error!r}") from error
    if not homes:
        raise ModelLoadError(f"{path} is damaged: it names no tensor")
    return homes


def _warn_of_missing_parts(files: Collection[Path]) -> None:
    """Half a download, most likely; but parts may also have been joined under their old names."""
    there = {file.name for file in files}
    for file in files:
        part = _PART.fullmatch(file.name)
        if part is None:
            continue
        for number in range(1, int(part["count"]) + 1):
            other = f"{part['stem']}-{number:05d}-of-{part['count']}.safetensors"
            if other not in there:
                logger.warning("%s is missing beside %s", other, file)
                return


def open_tensors(files: Collection[Path], homes: Mapping[str, Path]) -> dict[str, StoredTensor]:
    """All tensors of all files by name; where several files hold one, that of its home counts
    (`read_index`), or else of the last.
    """
    tensors: dict[str, StoredTensor] = {}
    for file in files:
        for name, tensor in SafetensorsFile(file).tensors.items():
            if name not in tensors or homes.get(name, file) == file:
                tensors[name] = tensor
    return tensors
