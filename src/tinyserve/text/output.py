"""`TextOutput`: the text of one choice while it is generated. It composes detokenizer and stops.

The engine pushes each committed token and learns whether the text must end; readers take what may
be shown. It decides nothing about EOS, lengths or finish reasons.
"""

from __future__ import annotations

from collections.abc import Iterable

from tinyserve.text.detokenizer import IncrementalDetokenizer
from tinyserve.text.stops import StopChecker, special_stops
from tinyserve.text.tokenizer import Tokenizer


class TextOutput:
    """Push tokens, take text. One per choice; not shared between threads."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        stops: Iterable[str] = (),
        include_stop: bool = False,
        skip_special_tokens: bool = True,
        visible_ids: frozenset[int] = frozenset(),
        keeps_space: bool = False,
    ) -> None:
        stops = tuple(stops)
        self._special_stops = special_stops(tokenizer, stops)
        self._detokenizer = tokenizer.detokenizer(
            skip_special_tokens=skip_special_tokens,
            visible_ids=visible_ids,
            keeps_space=keeps_space,
        )
        self._checker = StopChecker(stops, include_in_output=include_stop)
        self._include_stop = include_stop
        self._parts: list[str] = []
        self._num_taken = 0
        self._is_stopped = False

    def push(self, token_id: int, *, hidden: bool = False, allow_stop: bool = True) -> str | None:
        """Add a token; the stop string that it completes, else None.

        `hidden`: the token shows no text (an EOS that ends the sequence). `allow_stop` False: no
        stop string may end in this token (fewer than `min_tokens` tokens exist). After a stop
        further tokens add nothing.
        """
        if hidden or self._is_stopped:
            return None
        if allow_stop and token_id in self._special_stops:
            return self._stop_at_special(self._special_stops[token_id])
        self._show(self._checker.push(self._detokenizer.push(token_id), can_stop=allow_stop))
        self._is_stopped = self._checker.hit is not None
        return self._checker.hit

    def finish(self) -> None:
        """Release what was held back; idempotent, and nothing after a stop string."""
        if not self._is_stopped:
            self._is_stopped = True
            tail = self._checker.push(self._detokenizer.flush(), can_stop=False)
            self._show(tail + self._checker.flush())

    def take(self) -> str:
        """The text that has become visible since the last call."""
        new = "".join(self._parts[self._num_taken :])
        self._num_taken = len(self._parts)
        return new

    @property
    def only_detokenizer(self) -> IncrementalDetokenizer | None:
        """Where there are no stop strings: what may be pushed to instead of this, until `finish`;
        all the text of a token is what it returns.
        """
        return self._detokenizer if self._checker.is_idle else None

    @property
    def text(self) -> str:
        """All visible text so far, of what was pushed."""
        return "".join(self._parts)

    def _show(self, text: str) -> None:
        if text:
            self._parts.append(text)

    def _stop_at_special(self, stop: str) -> str:
        self.finish()
        if self._include_stop:
            self._show(stop)
        return stop
