"""The GGUF container: metadata and the whereabouts of tensors, by memory map. Knows no model.

Why not `gguf.GGUFReader`: it builds a numpy object per array item, about five seconds for a 49k
vocabulary, and its import alone costs a third of a second. This reader steps over string arrays in
a few milliseconds and decodes them only when asked.

Format: the GGUF specification of ggml (docs/gguf.md), versions 2 and 3, little-endian.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinyserve.errors import ModelLoadError
from tinyserve.files import pointer_hint
from tinyserve.models.gguf_types import SUPPORTED, type_name

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_STRING, _ARRAY = 8, 9
_SCALARS: dict[int, np.dtype[Any]] = {
    0: np.dtype("u1"),
    1: np.dtype("i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    7: np.dtype("?"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}


@dataclass(frozen=True)
class StringArray:
    """An array of strings that stays in the file until `decode` is called."""

    path: Path
    data: mmap.mmap
    start: int
    end: int
    count: int

    def __len__(self) -> int:
        return self.count

    def decode(self) -> list[str]:
        """All strings. Raises ModelLoadError where one is not UTF-8."""
        out, position, data, length = [], self.start, self.data, _U64.unpack_from
        for _ in range(self.count):
            end = position + 8 + length(data, position)[0]
            try:
                out.append(data[position + 8 : end].decode())
            except UnicodeDecodeError as error:
                raise ModelLoadError(f"{self.path}: string {len(out)}: {error}") from error
            position = end
        return out

    def find(self, texts: Collection[str]) -> dict[str, int]:
        """The index of each text that the array holds (the first), without decoding the rest."""
        offsets: dict[int, str] = {}
        for text in texts:
            stored = _U64.pack(len(text.encode())) + text.encode()
            place = self.data.find(stored, self.start, self.end)
            while place >= 0:
                offsets[place] = text
                place = self.data.find(stored, place + 1, self.end)
        found: dict[str, int] = {}
        position, last = self.start, max(offsets, default=-1)
        for index in range(self.count):
            if position > last:
                break
            if position in offsets:
                found.setdefault(offsets[position], index)
            position += 8 + _U64.unpack_from(self.data, position)[0]
        return found


@dataclass(frozen=True)
class TensorInfo:
    """Where a tensor lies."""

    name: str
    shape: tuple[int, ...]  # slowest dimension first
    type_id: int
    offset: int  # from the start of the file
    data: mmap.mmap  # the whole file

    @property
    def row_bytes(self) -> int:
        """Bytes of one row (the last dimension).

        Raises ModelLoadError for types that are not supported.
        """
        kind = SUPPORTED.get(self.type_id)
        if kind is None:
            raise ModelLoadError(
                f"tensor {self.name} has type {type_name(self.type_id)}, which is not supported "
                f"(supported: {', '.join(t.name for t in SUPPORTED.values())})"
            )
        if self.shape[-1] % kind.block:
            raise ModelLoadError(
                f"tensor {self.name}: rows of {self.shape[-1]} are no multiple of "
                f"{kind.name}'s block of {kind.block}"
            )
        return self.shape[-1] // kind.block * kind.block_bytes

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape[:-1]) * self.row_bytes

    def rows(self, name: str, start: int, count: int) -> TensorInfo:
        """A part of the first dimension as a tensor of its own."""
        offset = self.offset + start * (self.num_bytes // self.shape[0])
        return replace(self, name=name, shape=(count, *self.shape[1:]), offset=offset)


class GGUFFile:
    """An open GGUF file: `metadata` and `tensors` by name.

    Metadata values are numbers, strings, numpy arrays and `StringArray`s.

    Raises ModelLoadError for anything but a complete file of a known version.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata: dict[str, Any] = {}
        self.tensors: dict[str, TensorInfo] = {}
        self._size = path.stat().st_size
        with path.open("rb") as file:
            if file.read(4) != MAGIC:
                hint = pointer_hint(path) or " (it does not start with 'GGUF')"
                raise ModelLoadError(f"{path} is not a GGUF file{hint}")
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._position = 4
        try:
            self._read_header()
        except (struct.error, OverflowError, IndexError):
            self._raise_truncated("its header alone needs more")

    def raw(self, info: TensorInfo) -> NDArray[np.uint8]:
        """The tensor's bytes as stored, `[rows, row_bytes]`: a read-only view of the file."""
        flat = np.frombuffer(info.data, np.uint8, info.num_bytes, info.offset)
        return flat.reshape(-1, info.row_bytes)

    def _read_header(self) -> None:
        version = self._number(_U32)
        if version not in VERSIONS:
            reason = f"version {version}"
            if version & 0xFFFF == 0:
                reason = "big-endian"
            raise ModelLoadError(
                f"{self.path}: {reason} GGUF files are not supported "
                "(only versions 2 and 3, little-endian)"
            )
        num_tensors, num_keys = self._number(_U64), self._number(_U64)
        for _ in range(num_keys):
            key = self._string()
            self.metadata[key] = self._value(self._number(_U32))
        infos = [self._tensor_info() for _ in range(num_tensors)]
        alignment = self.metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1:
            raise ModelLoadError(f"{self.path}: general.alignment is no number of bytes")
        start = -(-self._position // alignment) * alignment
        for name, shape, type_id, offset in infos:
            self.tensors[name] = TensorInfo(name, shape, type_id, start + offset, self._data)
        self._check_size()

    def _check_size(self) -> None:
        known = [t for t in self.tensors.values() if t.type_id in SUPPORTED]
        needed = max((t.offset + t.num_bytes for t in known), default=self._position)
        if needed > self._size:
            self._raise_truncated(f"its tensors need {needed}")

    def _raise_truncated(self, need: str) -> None:
        raise ModelLoadError(f"{self.path} is truncated: it has {self._size} bytes, {need}")

    def _tensor_info(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._string()
        sizes = [self._number(_U64) for _ in range(self._number(_U32))]
        type_id, offset = self._number(_U32), self._number(_U64)
        return name, tuple(reversed(sizes)), type_id, offset

    def _number(self, layout: struct.Struct) -> int:
        value = layout.unpack_from(self._data, self._position)[0]
        self._position += layout.size
        return int(value)

    def _string(self) -> str:
        length = self._number(_U64)
        end = self._position + length
        if end > self._size:
            raise IndexError
        text = self._data[self._position : end].decode("utf-8", errors="replace")
        self._position = end
        return text

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array()
        return self._numbers(kind, 1)[0].item()

    def _array(self) -> Any:
        kind, count = self._number(_U32), self._number(_U64)
        if kind == _STRING:
            return self._string_array(count)
        if kind == _ARRAY:
            return [self._array() for _ in range(count)]
        return self._numbers(kind, count)

    def _numbers(self, kind: int, count: int) -> NDArray[Any]:
        dtype = _SCALARS.get(kind)
        if dtype is None:
            raise ModelLoadError(f"{self.path}: metadata of unknown type {kind}; file damaged?")
        if self._position + count * dtype.itemsize > self._size:
            raise IndexError
        values = np.frombuffer(self._data, dtype, count, self._position)
        self._position += count * dtype.itemsize
        return values

    def _string_array(self, count: int) -> StringArray:
        start = position = self._position
        data, length = self._data, _U64.unpack_from
        for _ in range(count):
            position += 8 + length(data, position)[0]
        if position > self._size:
            raise IndexError
        self._position = position
        return StringArray(self.path, self._data, start, position, count)
