"""Thinking: telling it from the answer, in models that write <think>...</think> before they answer.

Off unless asked for (`--reasoning-parser`). White space around the thinking belongs to the markers
and is not shown.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tinyserve.text.markers import num_held

OPENER, CLOSER = "<think>", "</think>"

_BODY = re.compile(r"\s*(?:[{\[<]|\Z)")  # of a call; in other words a marker is only mentioned


class ThinkReader:
    """Splits one message into thinking and answer.

    `is_open`: the message begins inside the thinking. Else thinking is what a message begins with
    between the two markers; a marker later on is text. `end`: how many characters the thinking
    takes, with its markers; None until that is known.

    Calls are thoughts within the thinking. But some models call without closing it first: calls
    between `call_openers` and `call_closers` with which a message ends are the answer.
    """

    __slots__ = (
        "_call_closers", "_call_openers", "_has_thought", "_held", "_length", "_num_read", "_state",
        "end",
    )  # fmt: skip

    def __init__(
        self, *, is_open: bool, call_openers: Sequence[str] = (), call_closers: Sequence[str] = ()
    ) -> None:
        self._call_openers = tuple(call_openers) if call_closers else ()
        self._call_closers = tuple(call_closers)
        self._state = "opening" if is_open else "start"
        self._held = ""
        self._num_read = 0  # characters at its beginning that are whole calls, and space
        self._has_thought = False
        self._length = 0  # characters read
        self.end: int | None = None

    @property
    def is_reasoning(self) -> bool:
        """Whether the text read so far ends inside the thinking."""
        return self._state in ("opening", "thinking")

    def push(self, text: str) -> tuple[str, str]:
        """(thinking, answer) that became certain."""
        self._length += len(text)
        if self._state == "answer":
            return "", text
        text, self._held = self._held + text, ""
        if self._state in ("start", "opening"):
            text = self._begin(text)
            if self._state == "answer":
                return "", text
        thought = ""
        if self._state == "thinking":
            thought, text = self._think(text)
        return thought, self._answer(text)

    def flush(self) -> tuple[str, str]:
        """What was held back, at the end of the text."""
        held, self._held = self._held, ""
        if self._state in ("opening", "thinking"):
            at = self._calls_at(held) if held.rstrip().endswith(self._call_closers) else None
            if at is not None:
                self._state, self.end = "answer", self._length - len(held) + at
                return held[:at].rstrip(), held[at:]
            return held if self._has_thought else held.lstrip(), ""
        return "", held if self._state == "start" else ""

    def _begin(self, text: str) -> str:
        """Look for the opening marker; the text after it, or all text where there is none."""
        stripped = text.lstrip()
        if len(stripped) < len(OPENER) and OPENER.startswith(stripped):
            self._held = text
            return ""
        if stripped.startswith(OPENER):
            self._state = "thinking"
            return stripped[len(OPENER) :]
        if self._state == "opening":
            self._state = "thinking"
        else:
            self._state, self.end = "answer", 0
        return text

    def _think(self, text: str) -> tuple[str, str]:
        """The thinking in `text`, and what comes after it."""
        if not self._has_thought:
            text = text.lstrip()
        at = text.find(CLOSER)
        if at >= 0:
            self._state = "space"
            rest = text[at + len(CLOSER) :]
            self.end = self._length - len(rest)
            return text[:at].rstrip(), rest
        end = self._calls_at(text)
        if end is None:
            end = len(text) - num_held(text, (CLOSER, *self._call_openers))
        shown = len(text[:end].rstrip())
        self._held = text[shown:]
        self._num_read -= min(self._num_read, shown)
        self._has_thought = self._has_thought or shown > 0
        return text[:shown], ""

    def _calls_at(self, text: str) -> int | None:
        """Where calls begin that the text ends with, as far as it has come."""
        at = self._num_read
        start = len(text) - len(text.lstrip()) if at else None
        while True:
            begin, opener = _first(self._call_openers, text, at)
            if opener is None:
                rest = text[at:].lstrip()
                is_over = not any(marker.startswith(rest) for marker in self._call_openers)
                return None if is_over else start
            if start is None or text[at:begin].strip():
                start = begin
            at = begin + len(opener)
            if _BODY.match(text, at) is None:
                start = None
                continue
            end, closer = _first(self._call_closers, text, at)
            if closer is None:
                return start
            at = self._num_read = end + len(closer)

    def _answer(self, text: str) -> str:
        """The answer in `text`, without the space between it and the thinking."""
        if self._state == "space":
            text = text.lstrip()
            if text:
                self._state = "answer"
            return text
        return ""


def _first(markers: Sequence[str], text: str, start: int) -> tuple[int, str | None]:
    """The marker that comes first from `start` on, and where; None: there is none."""
    hits = [(at, marker) for marker in markers if (at := text.find(marker, start)) >= 0]
    return min(hits, default=(len(text), None))


class ThinkingSplit:
    """Cuts a message, as it was written, in two: its thinking with all that surrounds it, and its
    answer. `before` is read first, and belongs to the message but not to what is pushed.
    `is_answer`: the thinking is over.
    """

    __slots__ = ("_held", "_num_read", "_reader", "is_answer")

    def __init__(self, *, is_open: bool, before: str = "") -> None:
        self._reader = ThinkReader(is_open=is_open)
        self._reader.push(before)
        self._num_read = len(before)  # characters that went before what is held
        self._held = ""
        self.is_answer = False

    def push(self, text: str) -> tuple[str, str]:
        """(thinking, answer) that became certain: together, all that was pushed, in this order."""
        if self.is_answer:
            return "", text
        self._held += text
        self._reader.push(text)
        end = self._reader.end
        if end is None and not self._reader.is_reasoning:
            return "", ""  # it may begin with the marker
        answer = "" if end is None else self._held[max(0, end - self._num_read) :]
        if end:
            answer = answer.lstrip()
        thinking = self._held[: len(self._held) - len(answer)]
        self._num_read += len(thinking)
        self._held = ""
        self.is_answer = end == 0 or bool(answer)
        return thinking, answer

    def flush(self) -> str:
        """What was held back, at the end of the text."""
        held, self._held = self._held, ""
        return held
