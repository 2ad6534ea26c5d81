"""Stop strings: where a text ends, and how much of it may be shown before that is known.

`StopChecker` sees text, never tokens; it is fed piece by piece and keeps back only what may still
become a stop string.

Which stop string wins. A hit is found with the first piece that completes any stop string, wherever
in the piece it lies. Of those complete by then, the one that starts first wins, and of two with the
same start the longer. So the shown text never contains a stop string or the beginning of the one
that was hit.

Until `min_tokens` tokens exist, pieces come with `can_stop=False`. A stop string counts by its last
character: one that ends in such a piece is ordinary text, one that begins in it and ends in a later
piece stops (and is cut where it begins, so the shown text may be shorter than `min_tokens` tokens).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tinyserve.text.tokenizer import Tokenizer


class StopChecker:
    """Cuts a text, fed in pieces, before (or right after) the first stop string in it."""

    __slots__ = ("_first_chars", "_held", "_include", "_matchers", "hit")

    def __init__(self, stops: Iterable[str], *, include_in_output: bool = False) -> None:
        self._matchers = [_Matcher(stop) for stop in dict.fromkeys(stops) if stop]
        self._first_chars = frozenset(matcher.stop[0] for matcher in self._matchers)
        self._include = include_in_output
        self._held = ""
        self.hit: str | None = None

    def push(self, text: str, *, can_stop: bool = True) -> str:
        """The text to show now. Sets `hit` when a stop string is complete; "" ever after."""
        if self.hit is not None:
            return ""
        if not self._held and self._first_chars.isdisjoint(text):
            return text
        buffer = self._held + text
        hits: list[tuple[int, int, str]] = []  # (start, -length, stop): the least one wins
        for matcher in self._matchers:
            end = matcher.feed(text, can_stop)
            if end is not None:
                start = len(self._held) + end - len(matcher.stop)
                hits.append((start, -len(matcher.stop), matcher.stop))
        if hits:
            start, _, self.hit = min(hits)
            self._held = ""
            return buffer[: start + len(self.hit)] if self._include else buffer[:start]
        shown = len(buffer) - max(matcher.matched for matcher in self._matchers)
        self._held = buffer[shown:]
        return buffer[:shown]

    def flush(self) -> str:
        """The text still held back, at an end without a hit."""
        held, self._held = self._held, ""
        return held


class _Matcher:
    """Knuth, Morris and Pratt's search (1977) for one stop string in a text that arrives in pieces.

    `matched`: how many characters at the end of the text so far are the beginning of `stop`.
    """

    __slots__ = ("_borders", "matched", "stop")

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.matched = 0
        self._borders = _borders(stop)

    def feed(self, text: str, can_stop: bool) -> int | None:
        """Read `text`; the index just after the first complete match, where that may stop."""
        stop, borders, matched = self.stop, self._borders, self.matched
        if not matched and stop[0] not in text:
            return None
        for index, char in enumerate(text):
            while matched and char != stop[matched]:
                matched = borders[matched - 1]
            if char == stop[matched]:
                matched += 1
                if matched == len(stop):
                    if can_stop:
                        return index + 1
                    matched = borders[matched - 1]
        self.matched = matched
        return None


def _borders(stop: str) -> list[int]:
    """For each prefix of `stop`, how long its longest proper prefix is that also ends it."""
    borders = [0] * len(stop)
    length = 0
    for index in range(1, len(stop)):
        while length and stop[index] != stop[length]:
            length = borders[length - 1]
        if stop[index] == stop[length]:
            length += 1
        borders[index] = length
    return borders


def special_stops(tokenizer: Tokenizer, stops: Iterable[str]) -> dict[int, str]:
    """The stop strings that are exactly one special token, by its id.

    A special token leaves no text when it is skipped, so its id must stop as well (STR-10). The
    same characters can also come from ordinary tokens, so the strings stay stop strings.
    """
    ids = ((tokenizer.special_id(stop), stop) for stop in stops)
    return {token_id: stop for token_id, stop in ids if token_id is not None}
