"""How much memory a process may use: cgroups bound it, its own and those around it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tinyserve.engine import memory
from tinyserve.engine.memory import available_memory, cgroup_limits, total_memory

MIB = 1 << 20


def write(folder: Path, **files: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("_", ".", 1)).write_text(f"{content}\n")


@pytest.mark.parametrize(
    ("membership", "own"),
    [
        ("0::/", "."),  # a container, which sees its cgroup as the root
        ("0::/system.slice/tinyserve.service", "system.slice/tinyserve.service"),
        ("0::/system.slice/tinyserve.service", "system.slice"),
        ("1:cpu:/elsewhere\n0::/job/step", "job"),
    ],
)
def test_a_limit_anywhere_around_the_process_binds_it(
    tmp_path: Path, membership: str, own: str
) -> None:
    (tmp_path / "membership").write_text(membership + "\n")
    write(tmp_path / own, memory_max=64 * MIB, memory_current=MIB)
    write(tmp_path / "other", memory_max=1, memory_current=1)
    assert cgroup_limits(tmp_path, tmp_path / "membership") == [(64 * MIB, MIB)]


def test_version_1_has_other_names_and_a_number_for_no_limit(tmp_path: Path) -> None:
    (tmp_path / "membership").write_text("5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n")
    write(tmp_path / "memory", memory_limit_in_bytes=(1 << 63) - 4096, memory_usage_in_bytes=9)
    write(tmp_path / "memory/docker/abc", memory_limit_in_bytes=MIB, memory_usage_in_bytes=5)
    assert cgroup_limits(tmp_path, tmp_path / "membership") == [(MIB, 5)]


@pytest.mark.parametrize(
    "stat",
    [
        f"anon {MIB}\ninactive_file {3 * MIB}\nactive_file 5",
        f"inactive_file {MIB}\ntotal_inactive_file {3 * MIB}",  # of version 1
    ],
)
def test_files_read_before_are_no_use_of_memory(tmp_path: Path, stat: str) -> None:
    """MEM-01: a model of 3 GiB, read at one start, left a limit of 4 GiB no room at the next."""
    (tmp_path / "membership").write_text("0::/\n")
    write(tmp_path, memory_max=5 * MIB, memory_current=4 * MIB, memory_stat=stat)
    assert cgroup_limits(tmp_path, tmp_path / "membership") == [(5 * MIB, MIB)]
    write(tmp_path, memory_current=MIB)  # read a moment later
    assert cgroup_limits(tmp_path, tmp_path / "membership") == [(5 * MIB, 0)]


def test_no_limit_is_no_error(tmp_path: Path) -> None:
    write(tmp_path, memory_max="max", memory_current=7)
    for text in ("", "0::/gone", "odd\n", "0::/../..\n"):
        (tmp_path / "membership").write_text(text)
        assert cgroup_limits(tmp_path, tmp_path / "membership") == []
    assert cgroup_limits(tmp_path, tmp_path / "no file") == []


def test_the_tightest_limit_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    free, total = available_memory(), total_memory()
    assert 0 < free <= total
    monkeypatch.setattr(memory, "cgroup_limits", lambda: [(90, 10), (100, 95), (70, 80)])
    assert (total_memory(), available_memory()) == (70, 0)
