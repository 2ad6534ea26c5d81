"""A grammar compiler over the synthetic tokenizer, and whether a grammar accepts a text."""

from __future__ import annotations

from functools import cache

import numpy as np
from helpers.fake_service import VOCAB, tokenizer

from tinyserve.text.grammar import Grammar, GrammarCompiler
from tinyserve.text.grammar_spec import GrammarSpec

WIDTH = VOCAB + 75  # logits are often wider than the vocabulary
EOS_IDS = (2, 0)


@cache
def compiler() -> GrammarCompiler:
    return GrammarCompiler(tokenizer(), WIDTH, EOS_IDS)


def allowed_after(grammar: Grammar, text: str | bytes) -> set[int] | None:
    """The ids that may follow `text`; None where the grammar does not let it come about."""
    matcher = grammar.matcher()
    for token in tokens_of(text):
        (mask,) = matcher.masks()
        if token not in ids_of(mask):
            return None
        matcher.take(token)
    (mask,) = matcher.masks()
    return ids_of(mask)


def accepts(spec: GrammarSpec, text: str | bytes) -> bool:
    """Whether `text` may be the whole answer."""
    allowed = allowed_after(compiler().compile(spec), text)
    return allowed is not None and allowed >= set(EOS_IDS)


def tokens_of(text: str | bytes) -> list[int]:
    """One token per byte for bytes, else as the tokenizer cuts it."""
    if isinstance(text, str):
        return tokenizer().encode(text, add_special_tokens=False)
    by_bytes = {tokenizer().token_bytes(i): i for i in range(3, 3 + 256)}
    return [by_bytes[bytes([byte])] for byte in text]


def ids_of(mask: np.ndarray) -> set[int]:
    return set(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist())
