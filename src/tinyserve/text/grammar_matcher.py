"""`GrammarMatcher`: where one choice stands in its grammar, and which tokens may come next.

The engine's `TokenGrammar` (`engine/request.py`). It holds no KV and no positions: only accepted
tokens move it, so preemption and rejected drafts leave no trace in it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tinyserve.errors import RequestError

if TYPE_CHECKING:
    import llguidance

Mask = NDArray[np.uint32]
MAX_REASON = 500  # characters


class GrammarMatcher:
    """How far one choice is in its grammar. All token ids are below `width`; `on_failure` is told
    when the grammar fails.

    `matcher` may share a lexer with other choices, whose states count towards its limits. Where it
    fails, `renew` makes one that shares nothing, so that only a choice's own text can make it fail.
    It is None if making one would take too long.
    """

    def __init__(
        self,
        matcher: llguidance.LLMatcher,
        width: int,
        eos_ids: frozenset[int],
        on_failure: Callable[[], None],
        renew: Callable[[], llguidance.LLMatcher] | None = None,
    ) -> None:
        self._matcher = matcher
        self._renew = renew
        self._taken: list[int] = []  # as long as it may be renewed
        self._width = width
        self._num_words = -(-width // 32)
        self._eos_ids = eos_ids
        self._on_failure = on_failure

    def masks(self, drafts: Sequence[int] = ()) -> list[Mask]:
        """Which tokens may come next: after the tokens taken, then after each draft too.

        One packed allow-list per row, bit i % 32 of word i // 32 for token i. There are fewer than
        len(drafts) + 1 where the grammar rules a draft out, ends with it, or becomes too complex
        after it. Raises RequestError where it is too complex already.
        """
        masks = [self._next_mask()]
        if not drafts:
            return masks
        ahead = self._matcher.deep_copy()
        for token in drafts:
            if token >= self._width or not int(masks[-1][token // 32]) >> (token % 32) & 1:
                break
            if token in self._eos_ids or not ahead.consume_token(token):
                break
            try:
                masks.append(self._mask_of(ahead))
            except RequestError:
                break
        return masks

    def take(self, token_id: int) -> None:
        """Move past an accepted token. A failure shows in the next `masks`."""
        if token_id not in self._eos_ids:
            if self._renew is not None:
                self._taken.append(token_id)
            self._matcher.consume_token(token_id)

    def count_valid(self, drafts: Sequence[int]) -> int:
        """How many of these tokens, from the first on, the grammar lets follow."""
        known = list(itertools.takewhile(lambda token: token < self._width, drafts))
        return self._matcher.deep_copy().validate_tokens(known)  # a guess must not make it fail

    def _next_mask(self) -> Mask:
        try:
            return self._mask_of(self._matcher)
        except RequestError:
            if self._renew is None:
                raise
        self._matcher, self._renew = self._renew(), None
        for token_id in self._taken:
            self._matcher.consume_token(token_id)
        self._taken.clear()
        return self._mask_of(self._matcher)

    def _mask_of(self, matcher: llguidance.LLMatcher) -> Mask:
        mask = np.empty(self._num_words, np.uint32)
        matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        if matcher.is_error():  # the mask is then that of an end, which would let it through
            self._on_failure()
            raise RequestError(
                f"the grammar cannot be followed any further: {reason(matcher.get_error())}"
            )
        return mask


def reason(error: str) -> str:
    """llguidance's message, on one line, without the state that it may add."""
    text = " ".join(error.partition("\n<")[0].split())
    if text.startswith("panic"):
        return "it is too large"
    return text if len(text) <= MAX_REASON else text[:MAX_REASON] + " ..."
