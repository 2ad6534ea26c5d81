"""`IncrementalDetokenizer`: text from a growing sequence of token ids, as soon as it is certain.

One per sequence. The joined results of `push` and the final `flush` equal the decoding of all ids
at once, for every sequence of ids, valid or not; of a text that goes on from another
(`keeps_space`), what decoding both adds to it. Only the bytes of an incomplete UTF-8 character are
held back (three at most): nothing waits for spaces or for later tokens.
"""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Mapping

from tinyserve.text.pieces import TokenPieces


class IncrementalDetokenizer:
    """Feed ids with `push`, end with `flush`; skipped special tokens leave no text.

    `visible_ids` are special tokens that are shown all the same.
    """

    __slots__ = ("_pending", "_pieces", "_skipped", "_strip")

    def __init__(
        self,
        pieces: TokenPieces,
        *,
        skip_special_tokens: bool = True,
        visible_ids: frozenset[int] = frozenset(),
        keeps_space: bool = False,
    ) -> None:
        self._pieces = pieces
        skipped = pieces.special_ids if skip_special_tokens else frozenset()
        self._skipped = skipped - visible_ids if visible_ids else skipped
        self._strip = 0  # leading spaces that may still have to go
        self.begin_text(keeps_space=keeps_space)
        self._pending = b""  # the beginning of a character whose last bytes have not come yet

    @property
    def plain_texts(self) -> Mapping[int, str] | None:
        """The texts, by id, of tokens for which `push` would do nothing but look them up here; None
        while something is held back.
        """
        return None if self._pending or self._strip else self._pieces.plain_texts

    @property
    def strip(self) -> int:
        """How many spaces the next token loses at its beginning."""
        return 0 if self._pending else self._strip

    def is_cut_by(self, token_id: int) -> bool:
        """Whether the character that is held back ends without its last bytes at this token."""
        if not self._pending or token_id in self._skipped:
            return False
        first = self._pieces.bytes_of(token_id)[:1]
        text, used = utf_8_decode(self._pending + first, "replace", False)
        return len(text) > 1 or used == len(self._pending)

    def push(self, token_id: int) -> str:
        """The text that this token completes; "" while it ends inside a character."""
        if token_id in self._skipped:
            return ""
        if not self._pending:
            text = self._pieces.text_of(token_id)
            if text is not None:
                return self._without_marker(text) if self._strip else text
        data = self._pending + self._pieces.bytes_of(token_id)
        text, used = utf_8_decode(data, "replace", False)
        self._pending = data[used:]
        return self._without_marker(text) if self._strip else text

    def flush(self) -> str:
        """What was held back, as U+FFFD: the sequence ends inside a character."""
        text, _ = utf_8_decode(self._pending, "replace", True)
        self._pending = b""
        return text

    def begin_text(self, *, keeps_space: bool) -> None:
        """A text begins within the sequence: `keeps_space` is as for the whole."""
        self._strip = 0 if keeps_space else self._pieces.strip

    def _without_marker(self, text: str) -> str:
        while self._strip and text.startswith(" "):
            text = text[1:]
            self._strip -= 1
        if text:
            self._strip = 0
        return text
