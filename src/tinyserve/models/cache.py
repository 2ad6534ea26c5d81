"""The cache folder, and the fingerprints of a model's files: one that ties the folder's entries to
them, one that copies of them share.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Iterable
from pathlib import Path

from tinyserve.errors import ConfigError

NUM_SAMPLES, SAMPLE_SIZE = 128, 4096  # samples per file, evenly spread; bytes per sample


def cache_dir() -> Path:
    """`$TINYSERVE_CACHE`, else `$XDG_CACHE_HOME/tinyserve`, else `~/.cache/tinyserve`.

    It may not exist yet. Raises ConfigError for a user without a home.
    """
    explicit = os.environ.get("TINYSERVE_CACHE")
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        if explicit:
            return Path(explicit).expanduser()
        return (Path(base).expanduser() if base else Path.home() / ".cache") / "tinyserve"
    except RuntimeError as error:
        raise ConfigError(f"TINYSERVE_CACHE must name a folder: {error}") from None


def sweep(folder: Path, pattern: str, age_s: float) -> None:
    """Remove files and folders older than `age_s`, which killed writers have left behind."""
    for path in folder.glob(pattern):
        try:
            if time.time() - path.stat().st_mtime < age_s:
                continue
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()
        except OSError:  # another process sweeps as well, or another user owns it
            continue


def contents_fingerprint(paths: Iterable[Path]) -> str:
    """A hash over sizes and samples of the contents: the same for copies, wherever they lie.

    Files of up to half a mebibyte are read whole. The whole of all would take seconds for what a
    start must do in milliseconds.
    """
    digest = hashlib.sha256()
    for path in sorted(paths):
        with path.open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            digest.update(b"%d\n" % size)
            for place in range(NUM_SAMPLES):
                file.seek(place * max(0, size - SAMPLE_SIZE) // (NUM_SAMPLES - 1))
                digest.update(file.read(SAMPLE_SIZE))
    return digest.hexdigest()[:32]


def files_fingerprint(paths: Iterable[Path], contents: str) -> str:
    """A hash over places, sizes, modification times and `contents`, their `contents_fingerprint`.

    Changes whenever a file is replaced, or edited between the samples. Times alone are not enough:
    reproducible archives and images give all files the same time, and fine-tunes of one model have
    the same size.
    """
    digest = hashlib.sha256(contents.encode())
    for path in sorted(paths):
        status = path.stat()
        about = f"{path.resolve()}\0{status.st_size}\0{status.st_mtime_ns}\n"
        digest.update(os.fsencode(about))  # a path need not be Unicode
    return digest.hexdigest()[:32]
