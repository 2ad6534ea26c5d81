"""How much memory this process may use: the machine's, or its cgroup's where that is less; what it
uses, and what it can give back.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
from pathlib import Path

_ROOT, _MEMBERSHIP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
_FILES = (  # limit and use, of cgroup v2 and v1
    ("memory.max", "memory.current"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes"),
)


def total_memory() -> int:
    """Bytes that exist for this process."""
    return min([_machine_bytes("SC_PHYS_PAGES"), *(limit for limit, _ in cgroup_limits())])


def available_memory() -> int:
    """Bytes that are free for this process now."""
    return min([_meminfo_available(), *(max(0, limit - used) for limit, used in cgroup_limits())])


def cgroup_limits(root: Path = _ROOT, membership: Path = _MEMBERSHIP) -> list[tuple[int, int]]:
    """(limit, use) of this process's cgroup and of those around it, which bind it, too: a
    container's is the root, a service's (systemd, SLURM) lies below it. Files that were read, such
    as the model at an earlier start, are no use: the kernel drops them when memory is wanted.
    """
    folders = [root, root / "memory"]
    with contextlib.suppress(OSError):
        for line in membership.read_text().splitlines():
            _, controllers, path = f"{line}::".split(":")[:3]
            base = root / controllers
            folder = base / path.strip("/")
            while controllers in ("", "memory") and folder != base:
                folders.append(folder)
                folder = folder.parent
    found = []
    for folder in folders:
        for names in _FILES:
            limit, used = (_number(folder / name) for name in names)
            if limit is not None and limit < 1 << 60:  # more says that there is none
                found.append((limit, max(0, (used or 0) - _idle_files(folder))))
    return found


def resident_memory(pid: int | str = "self") -> int:
    """Bytes of a process in memory now; 0 where the system does not say."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, ValueError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def give_back_freed() -> None:
    """Let the system have the pages that the C library keeps of what was freed.

    Parsing a vocabulary leaves 8 MiB of them between what is still in use. Only glibc can be asked.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)


def _meminfo_available() -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return _machine_bytes("SC_PHYS_PAGES") // 2


def _machine_bytes(pages: str) -> int:
    return os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE")


def _idle_files(folder: Path) -> int:
    """Bytes of a cgroup's use that are copies of files and not in use (version 1: and those below
    it).
    """
    with contextlib.suppress(OSError):
        text = (folder / "memory.stat").read_text()
        return max(map(int, re.findall(r"^(?:total_)?inactive_file (\d+)$", text, re.M)), default=0)
    return 0


def _number(path: Path) -> int | None:
    """The number in a file; None where there is no file, or another word ("max")."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
