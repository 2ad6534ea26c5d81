"""The processor, and how many threads to compute with: no more than this process may use.

Affinity (taskset, SLURM), the cgroup's CPU quota (containers) and physical cores all bound the
default.
"""

from __future__ import annotations

import math
import os
import platform
from pathlib import Path


def default_threads() -> tuple[int, str]:
    """(threads, reason)"""
    limits = [(allowed_cpus(), "processors this process may run on")]
    quota = cgroup_quota()
    if quota is not None:
        limits.append((max(1, math.floor(quota)), f"the cgroup's CPU quota of {quota:g}"))
    cores = physical_cores()
    if cores is not None:
        limits.append((cores, "physical cores"))
    return min(limits, key=lambda limit: limit[0])


def processor_name() -> str:
    return cpuinfo().get("model name") or platform.processor() or platform.machine()


def cpuinfo() -> dict[str, str]:
    """The first processor of /proc/cpuinfo, {} where there is none."""
    try:
        text = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def allowed_cpus() -> int:
    """Processors in this process's affinity mask."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cgroup_quota(
    root: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")
) -> float | None:
    """The tightest CPU quota on the path from this process's cgroup to the root, in processors;
    None without one.

    Reads cgroup v2 (`cpu.max`) and v1 (`cpu.cfs_quota_us`), as the kernel's cgroup documents define
    them.
    """
    quotas = []
    for folder in _cgroup_folders(root, membership):
        try:
            quota, period = (folder / "cpu.max").read_text().split()
            if quota != "max":
                quotas.append(int(quota) / int(period))
        except (OSError, ValueError, ZeroDivisionError):
            pass
        try:
            quota_us = int((folder / "cpu.cfs_quota_us").read_text())
            if quota_us > 0:
                quotas.append(quota_us / int((folder / "cpu.cfs_period_us").read_text()))
        except (OSError, ValueError, ZeroDivisionError):
            pass
    return min(quotas, default=None)


def _cgroup_folders(root: Path, membership: Path) -> list[Path]:
    folders = [root, root / "cpu", root / "cpu,cpuacct"]
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return folders
    for line in lines:
        if line.count(":") < 2:
            continue
        _, controllers, path = line.split(":", 2)
        bases = [root] if controllers == "" else [root / controllers]
        if controllers and "cpu" not in controllers.split(","):
            continue
        for base in bases:
            folder = base / path.lstrip("/")
            folders.extend([folder, *(p for p in folder.parents if base in (p, *p.parents))])
    return folders


def physical_cores() -> int | None:
    """Cores among the allowed processors, hyper-threads counted once; None where the system does
    not say.
    """
    if not hasattr(os, "sched_getaffinity"):
        return None
    cores = set()
    for cpu in os.sched_getaffinity(0):
        topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
        try:
            cores.add((topology / "thread_siblings_list").read_text().strip())
        except OSError:
            return None
    return len(cores)
