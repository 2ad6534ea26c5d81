"""Where cached things go, and who is shown a bar."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import pytest

from tinyserve.models import progress
from tinyserve.models.cache import cache_dir, files_fingerprint
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


def test_a_fingerprint_follows_name_size_and_time(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    first.write_text("one")
    second.write_text("two")
    seen = [files_fingerprint([first, second])]
    assert seen[0] == files_fingerprint([second, first])
    seen.append(files_fingerprint([first]))
    os.utime(first, ns=(1, 1))
    seen.append(files_fingerprint([first, second]))
    first.rename(tmp_path / "c")
    seen.append(files_fingerprint([tmp_path / "c", second]))
    assert len(set(seen)) == 4


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
