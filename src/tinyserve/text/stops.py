"""Stop strings: where a text ends, and how much of it may be shown before that is known.

`StopChecker` sees text, never tokens; it is fed piece by piece and keeps back only what may still
become a stop string. Special tokens that leave no text may be parts of stop strings all the same
("\\nUser:<|im_end|>"): each is told by a mark, a character that no text holds.

Which stop string wins. A hit is found with the first piece that completes any stop string, wherever
in the piece it lies. Of those complete by then, the one that starts first wins, and of two with the
same start the longer. So the shown text never contains a stop string or the beginning of the one
that was hit.

Until `min_tokens` tokens exist, pieces come with `can_stop=False`. A stop string counts by its last
character: one that ends in such a piece is ordinary text, one that begins in it and ends in a later
piece stops (and is cut where it begins, so the shown text may be shorter than `min_tokens` tokens).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tinyserve.text.tokenizer import Tokenizer


_MARKS = tuple(map(chr, range(0xD800, 0xE000)))  # surrogates, which no decoded text holds


class StopChecker:
    """Cuts a text, fed in pieces, before (or right after) the first stop string in it.

    `marks`: what special tokens spell -> the mark that is pushed for one in place of a text.
    """

    __slots__ = (
        "_first_chars",
        "_held",
        "_include",
        "_is_within",
        "_marked",
        "_matchers",
        "hit",
    )

    def __init__(
        self,
        stops: Iterable[str],
        *,
        include_in_output: bool = False,
        marks: Mapping[str, str] | None = None,
    ) -> None:
        self._matchers = [_Matcher(stop) for stop in dict.fromkeys(stops) if stop]
        spelled = {m.stop: _with_marks(m.stop, marks) for m in self._matchers} if marks else {}
        self._marked = [_Matcher(stop, p) for stop, p in spelled.items() if p != stop]
        self._matchers += self._marked
        self._first_chars = frozenset(matcher.pattern[0] for matcher in self._matchers)
        self._include = include_in_output
        self._held = ""
        self._is_within = False  # a stop string may have begun
        self.hit: str | None = None

    def push(self, text: str, *, can_stop: bool = True) -> str:
        """The text to show now. Sets `hit` when a stop string is complete; "" ever after."""
        if self.hit is not None:
            return ""
        if not self._is_within and self._first_chars.isdisjoint(text):
            return text
        return self._read(text, text, self._matchers, can_stop)

    def push_mark(self, mark: str, *, can_stop: bool = True) -> str:
        """`push` for a special token without text. Stop strings that do not hold its mark ignore
        it.
        """
        return "" if self.hit is not None else self._read("", mark, self._marked, can_stop)

    def _read(self, text: str, read: str, matchers: Iterable[_Matcher], can_stop: bool) -> str:
        buffer = self._held + text
        hits: list[tuple[int, int, str]] = []  # (start, -length, stop): the least one wins
        for matcher in matchers:
            end = matcher.feed(read, can_stop)
            if end is not None:
                start = len(self._held) + min(end, len(text)) - matcher.width
                hits.append((start, -len(matcher.stop), matcher.stop))
        if hits:
            start, _, self.hit = min(hits)
            self._held = ""
            return buffer[:start] + self.hit if self._include else buffer[:start]
        self._is_within = any(matcher.matched for matcher in self._matchers)
        shown = len(buffer) - max(matcher.num_held for matcher in self._matchers)
        self._held = buffer[shown:]
        return buffer[:shown]

    def flush(self) -> str:
        """The text still held back, at an end without a hit."""
        held, self._held = self._held, ""
        return held


class _Matcher:
    """Knuth, Morris and Pratt's search (1977) for one stop string in a text that arrives in pieces.

    `pattern` is the stop string as it is searched for, with marks. `matched`: how many characters
    at the end of the text so far are the beginning of `pattern`.
    """

    __slots__ = ("_borders", "_widths", "matched", "pattern", "stop")

    def __init__(self, stop: str, pattern: str | None = None) -> None:
        self.stop = stop
        self.pattern = stop if pattern is None else pattern
        self.matched = 0
        self._borders = _borders(self.pattern)
        self._widths = _widths(self.pattern) if self.pattern != stop else range(len(stop) + 1)

    @property
    def num_held(self) -> int:
        """How much of the text so far may be the beginning of the stop string."""
        return self._widths[self.matched]

    @property
    def width(self) -> int:
        """How much text the whole stop string takes."""
        return self._widths[-1]

    def feed(self, text: str, can_stop: bool) -> int | None:
        """Read `text`; the index just after the first complete match, where that may stop."""
        stop, borders, matched = self.pattern, self._borders, self.matched
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


def _widths(pattern: str) -> Sequence[int]:
    """For each prefix of `pattern`, how many of its characters are text and no marks."""
    return [0, *itertools.accumulate(int(not _MARKS[0] <= char <= _MARKS[-1]) for char in pattern)]


def _with_marks(stop: str, marks: Mapping[str, str]) -> str:
    for spelled in sorted(marks, key=len, reverse=True):
        stop = stop.replace(spelled, marks[spelled])
    return stop


def special_marks(
    tokenizer: Tokenizer, stops: Iterable[str], visible_ids: Set[int] = frozenset()
) -> dict[int, str]:
    """Marks for the special tokens that leave no text, by id; empty unless a stop string holds one
    of them beside other text.

    Each that a stop string holds has a mark of its own; all others share one. The `visible_ids`
    leave text, and so need none.
    """
    texts = {i: text for i, text in tokenizer.special_texts.items() if i not in visible_ids}
    named = [i for i, text in texts.items() if any(text in stop and text != stop for stop in stops)]
    own = dict(zip(named, _MARKS[1:], strict=False))
    return {**dict.fromkeys(texts, _MARKS[0]), **own} if own else {}


def special_stops(tokenizer: Tokenizer, stops: Iterable[str]) -> dict[int, str]:
    """The stop strings that are exactly one special token, by its id.

    A special token leaves no text when it is skipped, so its id must stop as well. The same
    characters can also come from ordinary tokens, so the strings stay stop strings.
    """
    ids = ((tokenizer.special_id(stop), stop) for stop in stops)
    return {token_id: stop for token_id, stop in ids if token_id is not None}
