"""A model's vocabulary as llguidance wants it: the exact bytes of each token, and what is special.

Made once per model, when a grammar is first asked for. Knows no grammar.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tinyserve.errors import RequestError
from tinyserve.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    import llguidance


class _Wrapper:
    """What llguidance reads of a tokenizer, by these names.

    It would tokenize text only to force tokens, which grammars here forbid (`no_forcing`).
    """

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, width: int, eos_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = eos_ids[0]
        special = {*tokenizer.special_ids, *eos_ids}
        self.special_token_ids = sorted(i for i in special if i < width)
        self.tokens = [tokenizer.token_bytes(i) for i in range(width)]

    def __call__(self, text: bytes | str) -> list[int]:
        text = text if isinstance(text, str) else text.decode(errors="replace")
        return self._tokenizer.encode(text, add_special_tokens=False)


def token_table(tokenizer: Tokenizer, width: int, eos_ids: Sequence[int]) -> llguidance.LLTokenizer:
    """llguidance's tokenizer over `width` ids, the width of the logits.

    Ids that the tokenizer does not know stand for no bytes, and so are never allowed; special
    tokens only where a grammar names them; all of `eos_ids` where it may end. Takes some tenths of
    a second, most of them with the interpreter locked. Raises RequestError for a model without an
    end token.
    """
    from llguidance import LLTokenizer

    ends = [token_id for token_id in eos_ids if token_id < width]
    if not ends:
        raise RequestError("this model names no end token, without which no grammar can end")
    return LLTokenizer(_Wrapper(tokenizer, width, ends), eos_token=ends)  # type: ignore[arg-type]
