"""How many files the server may have open, and so how many connections."""

from __future__ import annotations

import resource

import pytest

from tinyserve.server.listen import raise_file_limit

NONE = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("soft", "hard", "most", "expected"),
    [
        (1024, 4096, NONE, 4096),
        (4096, 4096, NONE, None),
        (256, NONE, NONE, 65536),
        (256, NONE, 61440, 10240),  # macOS: no hard limit, and yet it refuses
        (20000, NONE, 61440, None),
        (256, NONE, 1000, None),
        (NONE, NONE, NONE, None),
    ],
)
def test_the_limit_is_raised_as_far_as_the_system_allows(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, most: int, expected: int | None
) -> None:
    taken = []

    def setrlimit(kind: int, limits: tuple[int, int]) -> None:
        if most != NONE and limits[0] > most:
            raise ValueError("current limit exceeds maximum limit")
        taken.append((kind, limits))

    monkeypatch.setattr(resource, "getrlimit", lambda kind: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", setrlimit)
    raise_file_limit()
    assert taken == ([] if expected is None else [(resource.RLIMIT_NOFILE, (expected, hard))])
