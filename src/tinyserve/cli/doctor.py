"""`tinyserve doctor`: what was built, what was chosen, and why. Never fails for want of a part."""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import tinyserve
from tinyserve.errors import TinyServeError

CPU_FEATURES = (
    "avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512_vnni", "avx_vnni", "amx_int8",
    "neon", "asimd", "asimddp", "i8mm", "sve",
)  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    for name, value in findings():
        print(f"{name:<14} {value}")
    return 0


def findings() -> Iterator[tuple[str, str]]:
    """(what, how it is) in the order of printing."""
    yield "tinyserve", f"{tinyserve.__version__}, {Path(tinyserve.__file__).parent}"
    yield "python", f"{platform.python_version()}, {sys.executable}"
    yield "system", f"{platform.system()} {platform.release()}, {platform.machine()}"
    yield "processor", _processor()
    yield "compiler", _compiler()
    yield "kernels", _kernels()
    yield from _choice()
    yield "memory", _memory()
    yield from _model()
    yield "packages", ", ".join(_version(name) for name in _dependencies())


def _processor() -> str:
    from tinyserve.kernels.threads import cpuinfo, processor_name

    info = cpuinfo()
    flags = set((info.get("flags") or info.get("Features") or "").split())
    shown = " ".join(feature for feature in CPU_FEATURES if feature in flags)
    return f"{processor_name()} ({shown or 'features not known'})"


def _compiler() -> str:
    for name in ("c++", "g++", "clang++"):
        path = shutil.which(name)
        if path is not None:
            return path
    return "none on PATH (needed only to build the native kernels)"


def _kernels() -> str:
    try:
        from tinyserve.kernels import abi

        runnable, others = abi.variants()
    except (ImportError, OSError) as error:
        return f"none: {error}; `pip install -v` once more builds them, or shows why it cannot"
    text = f"built for {', '.join([*runnable, *others])}; this processor runs {', '.join(runnable)}"
    return f"{text} ({abi.library_path()})"


def _choice() -> Iterator[tuple[str, str]]:
    try:
        from tinyserve.kernels.select import choose_backend

        choice = choose_backend()
    except (ImportError, TinyServeError) as error:
        yield "back end", f"none: {error}"
        return
    yield "back end", f"{choice}: {choice.reason}"
    yield "threads", f"{choice.threads}: {choice.threads_reason}"


def _memory() -> str:
    from tinyserve.engine.memory import available_memory, total_memory
    from tinyserve.kv_budget import readable

    return f"{readable(available_memory())} free of {readable(total_memory())}"


def _model() -> Iterator[tuple[str, str]]:
    from tinyserve.models.cache import cache_dir
    from tinyserve.models.default_model import find_default_model

    try:
        folder = cache_dir()
    except TinyServeError as error:
        yield "cache folder", f"none: {error}"
        return
    yield "cache folder", f"{folder}{_access(folder)}"
    found = find_default_model()
    yield (
        "default model",
        str(found) if found is not None else "not on this machine; it is fetched when first used",
    )


def _access(folder: Path) -> str:
    if not os.path.isdir(folder):
        return " (not there yet)"
    return "" if os.access(folder, os.R_OK | os.W_OK | os.X_OK) else " (may not be written)"


def _dependencies() -> list[str]:
    """What the package requires, extras aside; nothing where it runs without being installed."""
    try:
        required = metadata.requires("tinyserve") or []
    except metadata.PackageNotFoundError:
        return []
    return [re.split(r"[^\w.-]", line)[0] for line in required if "extra ==" not in line]


def _version(name: str) -> str:
    try:
        return f"{name} {metadata.version(name)}"
    except metadata.PackageNotFoundError:
        return f"{name} missing"
