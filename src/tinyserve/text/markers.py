"""Markers in a text that arrives in pieces: how much of it may be the beginning of one."""

from __future__ import annotations

from collections.abc import Collection


def num_held(text: str, markers: Collection[str]) -> int:
    """How many characters at the end of `text` are the beginning of a marker, and not all of it."""
    longest = 0
    for marker in markers:
        for size in range(min(len(marker) - 1, len(text)), longest, -1):
            if text.endswith(marker[:size]):
                longest = size
                break
    return longest
