"""The default number of threads: affinity, the cgroup's quota, physical cores."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tinyserve.kernels import threads
from tinyserve.kernels.threads import allowed_cpus, cgroup_quota, default_threads, physical_cores


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(content + "\n")


def membership(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "self-cgroup"
    path.write_text("".join(line + "\n" for line in lines))
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "cgroup").mkdir()
    return tmp_path / "cgroup"


def test_v2_inside_a_container(tmp_path: Path, root: Path) -> None:
    """With a cgroup namespace of its own, a container sees its limit at the root."""
    write(root, cpu__max="150000 100000")
    assert cgroup_quota(root, membership(tmp_path, "0::/")) == 1.5


def test_v2_takes_the_tightest_on_the_path(tmp_path: Path, root: Path) -> None:
    """MEM-04."""
    write(root / "machine.slice", cpu__max="300000 100000")
    write(root / "machine.slice" / "pod", cpu__max="max 100000")
    write(root / "machine.slice" / "pod" / "box", cpu__max="800000 100000")
    write(root / "other.slice", cpu__max="100000 100000")
    member = membership(tmp_path, "0::/machine.slice/pod/box")
    assert cgroup_quota(root, member) == 3.0


def test_v2_without_a_limit(tmp_path: Path, root: Path) -> None:
    write(root / "user.slice", cpu__max="max 100000")
    assert cgroup_quota(root, membership(tmp_path, "0::/user.slice")) is None


def test_v1(tmp_path: Path, root: Path) -> None:
    """The hierarchy that holds the cpu controller counts, and only that."""
    write(
        root / "cpu,cpuacct" / "docker" / "box",
        cpu__cfs_quota_us="250000",
        cpu__cfs_period_us="100000",
    )
    write(
        root / "memory" / "docker" / "box",
        cpu__cfs_quota_us="10000",
        cpu__cfs_period_us="100000",
    )
    member = membership(
        tmp_path, "12:memory:/docker/box", "5:cpu,cpuacct:/docker/box", "1:name=systemd:/docker/box"
    )
    assert cgroup_quota(root, member) == 2.5


def test_v1_inside_a_container(tmp_path: Path, root: Path) -> None:
    """The path of the host is not there; the limit lies at the controller's root."""
    write(root / "cpu,cpuacct", cpu__cfs_quota_us="50000", cpu__cfs_period_us="100000")
    assert cgroup_quota(root, membership(tmp_path, "5:cpu,cpuacct:/docker/0123")) == 0.5


def test_v1_without_a_limit(tmp_path: Path, root: Path) -> None:
    write(root / "cpu", cpu__cfs_quota_us="-1", cpu__cfs_period_us="100000")
    assert cgroup_quota(root, membership(tmp_path, "5:cpu:/")) is None


@pytest.mark.parametrize("content", ["", "max", "junk junk", "100000", "100000 0", "1 2 3"])
def test_what_cannot_be_read_is_no_limit(tmp_path: Path, root: Path, content: str) -> None:
    write(root, cpu__max=content)
    assert cgroup_quota(root, membership(tmp_path, "0::/")) is None


def test_odd_membership_is_no_limit(tmp_path: Path, root: Path) -> None:
    assert cgroup_quota(root, tmp_path / "absent") is None
    assert cgroup_quota(root, membership(tmp_path, "nonsense", "", "0::/../../..")) is None


@pytest.mark.parametrize(
    ("cpus", "quota", "cores", "count", "word"),
    [
        (8, None, 4, 4, "physical"),
        (3, None, 4, 3, "may run"),
        (8, 2.9, 4, 2, "quota of 2.9"),
        (8, 0.5, 4, 1, "quota of 0.5"),
        (8, None, None, 8, "may run"),
        (8, 64.0, 8, 8, "may run"),
    ],
)
def test_the_smallest_bound_wins_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
    cpus: int,
    quota: float | None,
    cores: int | None,
    count: int,
    word: str,
) -> None:
    """MEM-04, MEM-06."""
    monkeypatch.setattr(threads, "allowed_cpus", lambda: cpus)
    monkeypatch.setattr(threads, "cgroup_quota", lambda: quota)
    monkeypatch.setattr(threads, "physical_cores", lambda: cores)
    found, reason = default_threads()
    assert found == count
    assert word in reason


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system has no affinity")
def test_affinity_binds() -> None:
    """MEM-06: as under `taskset`: one processor, one thread."""
    script = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "from tinyserve.kernels.threads import default_threads; print(default_threads()[0])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "1"


def test_here() -> None:
    count, reason = default_threads()
    assert 1 <= count <= allowed_cpus()
    assert reason
    cores = physical_cores()
    assert cores is None or 1 <= cores <= allowed_cpus()
