"""`TextOutput`: the text of one choice while it is generated. It composes detokenizer and stops.

The engine's `TextOutput` (`engine/request.py`). It decides nothing about EOS, lengths or finish
reasons. Stop strings are for the answer: where thinking is told from it, they mean nothing there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tinyserve.text.reasoning import ThinkingSplit
from tinyserve.text.stops import StopChecker, special_marks, special_stops
from tinyserve.text.tokenizer import Tokenizer


class TextOutput:
    """Text as it becomes certain, cut where a stop string says so. One per choice; not shared
    between threads. Push nothing after a stop.
    """

    __slots__ = (
        "_checker",
        "_detokenizer",
        "_include_stop",
        "_marks",
        "_plain_texts",
        "_special_stops",
        "_thinking",
        "stop_hit",
    )

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        stops: Iterable[str] = (),
        include_stop: bool = False,
        skip_special_tokens: bool = True,
        visible_ids: frozenset[int] = frozenset(),
        keeps_space: bool = False,
        new_thinking: Callable[[], ThinkingSplit | None] = lambda: None,
    ) -> None:
        stops = tuple(stops)
        self._special_stops = special_stops(tokenizer, stops)
        self._detokenizer = tokenizer.detokenizer(
            skip_special_tokens=skip_special_tokens,
            visible_ids=visible_ids,
            keeps_space=keeps_space,
        )
        self._marks: dict[int, str] = {}
        self._checker: StopChecker | None = None
        if stops:
            if skip_special_tokens:
                self._marks = special_marks(tokenizer, stops, visible_ids)
            marks = {tokenizer.special_texts[i]: mark for i, mark in self._marks.items()}
            self._checker = StopChecker(stops, include_in_output=include_stop, marks=marks)
        self._include_stop = include_stop
        self._thinking = new_thinking() if stops else None
        self._plain_texts = None if stops else self._detokenizer.plain_texts
        self.stop_hit: str | None = None

    def push(self, token_id: int, can_stop: bool = True) -> str:
        """Add a token; the text that became visible. Sets `stop_hit` where it completes a stop
        string; without `can_stop` (fewer than `min_tokens` tokens exist) that is only text.
        """
        if self._plain_texts is not None:
            text = self._plain_texts.get(token_id)
            if text is not None:  # nearly every token of a text without stop strings
                return text
        if self._checker is None:
            text = self._detokenizer.push(token_id)
            self._plain_texts = self._detokenizer.plain_texts
            return text
        text = ""
        mark = self._marks.get(token_id)
        if mark is not None and (self._thinking is None or self._thinking.is_answer):
            text = self._checker.push_mark(mark, can_stop=can_stop)
            self.stop_hit = self._checker.hit
            if self.stop_hit is not None:
                return text
        if can_stop and token_id in self._special_stops:
            self.stop_hit = self._special_stops[token_id]
            return text + self.flush() + (self.stop_hit if self._include_stop else "")
        text += self._check(self._checker, self._detokenizer.push(token_id), can_stop)
        self.stop_hit = self._checker.hit
        return text

    def flush(self) -> str:
        """What was held back; idempotent, and nothing after a stop string."""
        tail = self._detokenizer.flush()
        if self._checker is None:
            return tail
        text = self._check(self._checker, tail, can_stop=False)
        if self._thinking is not None:
            text += self._checker.push(self._thinking.flush(), can_stop=False)
        return text + self._checker.flush()

    def _check(self, checker: StopChecker, text: str, can_stop: bool) -> str:
        """What cannot be a part of a stop string."""
        shown = ""
        if self._thinking is not None:
            thinking, text = self._thinking.push(text)
            shown = checker.push(thinking, can_stop=False)
        return shown + checker.push(text, can_stop=can_stop)
