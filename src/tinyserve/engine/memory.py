"""How much memory this process may use: the machine's, or its cgroup's where that is less; what it
uses, and what it can give back.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_LIMITS = (_CGROUP / "memory.max", _CGROUP / "memory" / "memory.limit_in_bytes")
_USES = (_CGROUP / "memory.current", _CGROUP / "memory" / "memory.usage_in_bytes")


def total_memory() -> int:
    """Bytes that exist for this process."""
    limit = _first_number(_LIMITS)
    machine = _machine_bytes("SC_PHYS_PAGES")
    return machine if limit is None else min(machine, limit)


def available_memory() -> int:
    """Bytes that are free for this process now; reclaimable caches of a cgroup count as used."""
    free = _meminfo_available()
    limit, used = _first_number(_LIMITS), _first_number(_USES)
    if limit is not None and used is not None:
        free = min(free, max(0, limit - used))
    return free


def resident_memory() -> int:
    """Bytes of this process in memory now; 0 where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
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


def _first_number(paths: tuple[Path, ...]) -> int | None:
    """The number in the first file that holds one; "max" and huge values mean no limit."""
    for path in paths:
        try:
            value = int(path.read_text())
        except (OSError, ValueError):
            continue
        if value < 1 << 60:
            return value
    return None
