"""Where tinyserve keeps what it may rebuild, and how it knows the files that was made from."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path


def cache_dir() -> Path:
    """`$TINYSERVE_CACHE`, else `$XDG_CACHE_HOME/tinyserve`, else `~/.cache/tinyserve`.

    It may not exist yet.
    """
    explicit = os.environ.get("TINYSERVE_CACHE")
    if explicit:
        return Path(explicit).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base).expanduser() if base else Path.home() / ".cache") / "tinyserve"


def files_fingerprint(paths: Iterable[Path]) -> str:
    """A hash over names, sizes and modification times.

    Changes whenever a file is replaced or edited.

    Contents are not read, which would take seconds for what a start must do in milliseconds.
    """
    digest = hashlib.sha256()
    for path in sorted(paths):
        status = path.stat()
        digest.update(f"{path.name}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:32]
