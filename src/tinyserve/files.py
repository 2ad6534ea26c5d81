"""Reading text files that people bring, with what editors and Git LFS leave in them; and caches:
writing a file in one step, and keeping a folder of them below a size. Knows no format.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

from tinyserve.signals import undone_at_end

UNDONE = ".tmp"  # files still being written
_POINTER = b"version https://git-lfs"


def read_text(path: Path) -> str:
    """The text of a UTF-8 file, without the mark that editors on Windows may begin one with.

    Raises OSError, and ValueError for another encoding or a pointer of Git LFS.
    """
    text = path.read_text(encoding="utf-8-sig")
    if text.startswith(_POINTER.decode()):
        raise ValueError(pointer_hint(path).removeprefix(": "))
    return text


def pointer_hint(path: Path) -> str:
    """The end of an error message: a clone without Git LFS holds pointers in place of files."""
    with path.open("rb") as file:
        is_pointer = file.read(24).startswith(_POINTER)
    return ": it is a Git LFS pointer; `git lfs pull` fetches the file itself" if is_pointer else ""


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file to be written, which takes the place of `path` once the block is done. It is removed
    where the block fails, and where the process ends inside it. Raises OSError.
    """
    undone = path.with_name(f"{path.stem}-{os.urandom(8).hex()}{UNDONE}")
    remove = partial(undone.unlink, missing_ok=True)
    with undone_at_end(remove):
        try:
            yield undone
            os.replace(undone, path)
        finally:
            remove()


def make_room(files: Iterable[Path], limit: int, newest: Path) -> None:
    """Remove the files that were used least recently until the rest takes `limit` bytes; `newest`
    stays in any case. Raises OSError, for instance where another process removes files, too.
    """
    total = 0
    for _, path in sorted(((path.stat().st_atime, path) for path in files), reverse=True):
        total += path.stat().st_size
        if total > limit and path != newest:
            path.unlink()
