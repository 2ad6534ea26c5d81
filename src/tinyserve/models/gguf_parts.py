"""A GGUF model that is split over several files, as llama.cpp's gguf-split does: opened as one.

The first part has the metadata, each its own tensors; the names say how many there are. Knows no
model.
"""

from __future__ import annotations

import re
from pathlib import Path

from tinyserve.errors import ModelLoadError
from tinyserve.models.gguf_file import GGUFFile

_PART = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


def part_names(name: str) -> list[str]:
    """The names of all parts, where `name` is that of one; else `name` alone."""
    part = _PART.fullmatch(name)
    count = int(part["count"]) if part else 0
    if part is None or not 1 <= int(part["number"]) <= count:
        return [name]
    return [f"{part['stem']}-{i:05d}-of-{count:05d}.gguf" for i in range(1, count + 1)]


def open_gguf(path: Path) -> tuple[GGUFFile, list[Path]]:
    """The model at `path`, which may be any of its parts, and the files that it consists of.

    Raises ModelLoadError where a part is missing, or is one of another model.
    """
    file = GGUFFile(path)
    count = file.metadata.get("split.count")
    if not isinstance(count, int) or count < 2:
        return file, [path]
    paths = [path.with_name(name) for name in part_names(path.name)]
    if len(paths) != count:
        raise ModelLoadError(
            f"{path} is one part of a split GGUF of {count}, and not named like one "
            f"(NAME-00001-of-{count:05d}.gguf): rename the parts, or merge them with llama.cpp's "
            "llama-gguf-split --merge"
        )
    for other in paths:
        if not other.is_file():
            raise ModelLoadError(f"{other} is missing, a part of {path}")
    parts = [GGUFFile(other) for other in paths]
    for index, part in enumerate(parts):
        if part.metadata.get("split.no") != index or part.metadata.get("split.count") != count:
            raise ModelLoadError(f"{part.path} is not part {index + 1} of {count}, as it is named")
    for part in parts[1:]:
        parts[0].tensors.update(part.tensors)
    return parts[0], paths
