"""Reading text files that people bring, with what editors and Git LFS leave in them; and keeping a
folder of files that can be made again below a size. Knows no format.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

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


def make_room(files: Iterable[Path], limit: int, newest: Path) -> None:
    """Remove the files that were used least recently until the rest takes `limit` bytes; `newest`
    stays in any case. Raises OSError, for instance where another process removes files, too.
    """
    total = 0
    for _, path in sorted(((path.stat().st_atime, path) for path in files), reverse=True):
        total += path.stat().st_size
        if total > limit and path != newest:
            path.unlink()
