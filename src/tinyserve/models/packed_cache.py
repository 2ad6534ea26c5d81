"""Packed weights kept on disk: the next start reads one file instead of unpacking and packing every
tensor.

A file holds a line with a checksum of what follows, a JSON header, and the packed bytes, as
`kernels/packing.py` lays them out. Its name carries everything that decides its content; a file
that does not check out is ignored and written anew. Only the native back end packs.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tinyserve.config import ModelOptions
from tinyserve.files import UNDONE, make_room, replacing
from tinyserve.kernels.ops import NUMERICS_VERSION, Backend, Linear
from tinyserve.kernels.packing import PACKING_VERSION, PackedWeight, aligned_bytes
from tinyserve.models.cache import cache_dir, sweep
from tinyserve.models.checkpoint import Checkpoint

logger = logging.getLogger("tinyserve")

KEPT = 8 << 30  # bytes of all files: there is one for each model, option and version
LARGEST = 2 << 30  # bytes; larger models are packed at every start rather than kept twice on disk
ALIGNMENT = 64
STALE_S = 3600  # no writer takes this long


class PackedCache:
    """The packed matrices of one model by key. `get` takes from the file or prepares; `save` writes
    what was prepared.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._prepared: dict[str, Linear] = {}
        self._stored: dict[str, Any] = {}
        self._data: Any = None
        if path is not None:
            self._read(path)

    @classmethod
    def for_model(
        cls, checkpoint: Checkpoint, backend: Backend, options: ModelOptions
    ) -> PackedCache:
        """The cache of this model under these options; an inert one for numpy and for models that
        are not files.
        """
        if backend.name != "native" or not checkpoint.fingerprint:
            return cls(None)
        versions = f"{NUMERICS_VERSION} {PACKING_VERSION}"
        key = f"{checkpoint.fingerprint} {options.dtype} {options.quantization} {versions}"
        digest = hashlib.sha256(key.encode()).hexdigest()[:16]
        stem = re.sub(r"[^A-Za-z0-9.]+", "-", Path(checkpoint.name).name)[:64]
        return cls(cache_dir() / "packed" / f"{stem}-{digest}.bin")

    def get(self, key: str, prepare: Callable[[], Linear]) -> Linear:
        """The matrix `key`, from the file or else from `prepare`."""
        if key in self._stored:
            return self._restore(self._stored[key])
        linear = prepare()
        self._prepared[key] = linear
        return linear

    def save(self) -> None:
        """Write what was prepared, unless it came from the file or is too large. A failure costs
        only time.
        """
        if self._path is None or not self._prepared or self._stored:
            return
        total = sum(linear.nbytes for linear in self._prepared.values())
        if total > LARGEST:
            return
        try:
            self._write(self._path)
        except OSError as error:
            logger.warning("could not keep the packed weights in %s: %s", self._path, error)
            return
        with contextlib.suppress(OSError):
            make_room(self._path.parent.glob("*.bin"), KEPT, self._path)

    def _read(self, path: Path) -> None:
        try:
            with path.open("rb") as file:
                first, header = file.readline(), file.readline()
                data = aligned_bytes(path.stat().st_size - len(first) - len(header))
                file.readinto(data.data)
            if first != _first_line(zlib.crc32(data.data, zlib.crc32(header))):
                raise ValueError("damaged, or not a packed model")
            with contextlib.suppress(OSError):  # a read-only cache is fine
                os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))  # it has been used
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            logger.warning("ignoring the packed weights in %s: %s", path, error)
            return
        self._stored, self._data = json.loads(header), data

    def _restore(self, entry: dict[str, Any]) -> Linear:
        from tinyserve.kernels.recorder import NativeLinear

        parts = [
            PackedWeight(**{**part["fields"], "data": self._slice(part)}) for part in entry["parts"]
        ]
        bias = entry["bias"] and self._slice(entry["bias"]).view(np.float32)
        return NativeLinear(parts, bias, entry["silu_mul"])

    def _slice(self, where: dict[str, int]) -> Any:
        return self._data[where["offset"] : where["offset"] + where["size"]]

    def _write(self, path: Path) -> None:
        arrays: list[Any] = []
        end = 0

        def place(array: Any) -> dict[str, int]:
            nonlocal end
            arrays.append(array)
            offset = end
            end = -(-(offset + array.nbytes) // ALIGNMENT) * ALIGNMENT
            return {"offset": offset, "size": array.nbytes}

        matrices = {key: _entry(linear, place) for key, linear in self._prepared.items()}
        header = json.dumps(matrices).encode() + b"\n"
        path.parent.mkdir(parents=True, exist_ok=True)
        sweep(path.parent, f"*{UNDONE}", STALE_S)  # each is as large as a model
        with replacing(path) as undone, undone.open("xb") as file:
            file.write(_first_line(0) + header)
            checksum = zlib.crc32(header)
            for array in arrays:
                for piece in (array.view(np.uint8).data, bytes(-array.nbytes % ALIGNMENT)):
                    checksum = zlib.crc32(piece, checksum)
                    file.write(piece)
            file.seek(0)
            file.write(_first_line(checksum))


def _first_line(checksum: int) -> bytes:
    return b"tinyserve packed model %08x\n" % checksum


def _entry(linear: Any, place: Callable[[Any], dict[str, int]]) -> dict[str, Any]:
    def fields(part: PackedWeight) -> dict[str, Any]:
        names = ("format", "n", "k", "group", "has_min", "f16_scale")
        return {name: getattr(part, name) for name in names}

    return {
        "parts": [{"fields": fields(part), **place(part.data)} for part in linear.parts],
        "bias": None if linear.bias is None else place(linear.bias),
        "silu_mul": linear.silu_mul,
    }
