"""Where cached things go, and who is shown a bar."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import pytest

from tinyserve.errors import ConfigError
from tinyserve.models import progress
from tinyserve.models.cache import cache_dir, contents_fingerprint, files_fingerprint
from tinyserve.models.progress import shown


def test_the_folder_of_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TINYSERVE_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/home/someone")
    assert cache_dir() == Path("/home/someone/.cache/tinyserve")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/caches")
    assert cache_dir() == Path("/var/caches/tinyserve")
    monkeypatch.setenv("TINYSERVE_CACHE", "~/mine")
    assert cache_dir() == Path("/home/someone/mine")


@pytest.mark.parametrize("said", [None, "~no such user/cache"])
def test_a_user_without_a_home_is_told_what_to_set(
    monkeypatch: pytest.MonkeyPatch, said: str | None
) -> None:
    def expanduser(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("TINYSERVE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    if said is not None:
        monkeypatch.setenv("TINYSERVE_CACHE", said)
    monkeypatch.setattr(Path, "expanduser", expanduser)
    monkeypatch.setattr(Path, "home", lambda: expanduser(Path("~")))
    with pytest.raises(ConfigError, match="TINYSERVE_CACHE must name a folder"):
        cache_dir()


def test_a_fingerprint_follows_name_size_and_time(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    first.write_text("one")
    second.write_text("two")
    seen = [both_fingerprints(first, second)]
    assert seen[0] == both_fingerprints(second, first)
    os.utime(first, ns=(1, 1))
    seen.append(both_fingerprints(first, second))
    first.rename(tmp_path / "a2")
    seen.append(both_fingerprints(tmp_path / "a2", second))
    assert len({contents for contents, _ in seen}) == 1
    seen.append(both_fingerprints(second))
    assert len(set(seen)) == 4
    assert len({contents for contents, _ in seen}) == 2


def both_fingerprints(*paths: Path) -> tuple[str, str]:
    contents = contents_fingerprint(paths)
    return contents, files_fingerprint(paths, contents)


@pytest.mark.parametrize("size", [10, 4096, 100_000, 3_000_000])
def test_files_of_one_name_size_and_time_are_told_apart(tmp_path: Path, size: int) -> None:
    """Images and archives that can be built again give all their files one time."""
    seen = []
    for place, byte in (("here", 0), ("here", 1), ("there", 1)):
        path = tmp_path / place / "model.safetensors"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes([byte]) * size)
        os.utime(path, ns=(1, 1))
        seen.append(both_fingerprints(path))
    assert len(set(seen)) == 3
    contents = [contents for contents, _ in seen]
    assert contents[0] != contents[1] == contents[2]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_is_shown_a_bar_and_a_pipe_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for stream, has_bar in ((Terminal(), True), (io.StringIO(), False)):
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stderr", stream)
            patch.setenv("TERM", "xterm")
            patch.setattr(progress, "MOMENT_S", 0.0)
            with shown(None) as report:
                report("downloading", 50, 100)
                report("downloading", 100, 100)
        assert ("downloading" in stream.getvalue()) is has_bar


def test_a_progress_of_ones_own_is_used_as_it_is() -> None:
    def mine(label: str, done: int, total: int, *, unit: str = "bytes") -> None: ...

    with shown(mine) as report:
        assert report is mine
