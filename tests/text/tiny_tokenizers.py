"""Tiny tokenizers built in code, small enough to work out by hand.

`byte_level`: 256 bytes, a few merges, three special tokens; an emoji is 3 ids (two bytes merged).
`sentencepiece`: pieces with scores, byte fallback, a space prefix, as a GGUF file holds them.
"""

from __future__ import annotations

from typing import Any

from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from tinyserve.text.gguf_tokenizer import build_gguf_tokenizer
from tinyserve.text.tokenizer import Tokenizer
from tinyserve.text.tokenizer_spec import GGUFVocab, TokenizerSpec

EOT, IM_START, IM_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIALS = (EOT, IM_START, IM_END)
MERGES = (
    *("h e", "l l", "he ll", "hell o", "Ġ w", "Ġw o", "r l", "rl d", "Ġwo rld"),
    *("Ġ Ġ", ", Ġ", "ð Ł"),  # spaces, and the first two bytes of most emoji
)


def byte_alphabet() -> list[str]:
    """The 256 characters of byte-level BPE in byte order."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(rest)) for byte in range(256)]


def byte_level_tokens() -> list[str]:
    """Ids 0..2 special, 3..258 the bytes, then one per merge."""
    return [*SPECIALS, *byte_alphabet(), *(merge.replace(" ", "", 1) for merge in MERGES)]


def gguf_byte_level(pre: str = "smollm", **changes: Any) -> GGUFVocab:
    tokens = byte_level_tokens()
    types = (3,) * 3 + (1,) * (len(tokens) - 3)
    fields: dict[str, Any] = {"tokens": tuple(tokens), "token_types": types, "merges": MERGES}
    return GGUFVocab(model="gpt2", pre=pre, **{**fields, **changes})


def byte_level_backend(*, after: tuple[str, ...] = (), before: tuple[str, ...] = ()) -> Backend:
    """The library's object; `before` and `after` are what its post-processor adds to a text."""
    tokens = byte_level_tokens()
    ids = {token: i for i, token in enumerate(tokens)}
    pairs = [(left, right) for left, right in (merge.split(" ") for merge in MERGES)]
    backend = Backend(models.BPE(ids, pairs))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(text, normalized=False) for text in SPECIALS])
    if before or after:
        backend.post_processor = processors.TemplateProcessing(
            single=[*before, "$A", *after],
            special_tokens=[(text, ids[text]) for text in {*before, *after}],
        )
    return backend


def byte_level(
    *,
    after: tuple[str, ...] = (),
    before: tuple[str, ...] = (),
    add_bos: bool | None = None,
    add_eos: bool | None = None,
) -> Tokenizer:
    spec = TokenizerSpec(
        special_tokens={"bos_token": IM_START, "eos_token": IM_END, "pad_token": EOT},
        add_bos=add_bos,
        add_eos=add_eos,
    )
    return Tokenizer(byte_level_backend(before=before, after=after), spec)


# Pieces by falling score, so "▁hello" is made as h+e, l+l, he+ll, hell+o, ▁+hello.
PIECES = ("he", "ll", "hell", "hello", "▁hello", "▁w", "or", "▁wor", "ld", "▁world", "▁▁")
LETTERS = ("▁", *"helowrdan,.!é")


def gguf_sentencepiece(**changes: Any) -> GGUFVocab:
    """Ids 0..2 <unk> <s> </s>, 3..258 bytes, then pieces, letters, a user-defined word, padding."""
    bytes_ = tuple(f"<0x{byte:02X}>" for byte in range(256))
    normal = (*PIECES, *LETTERS)
    tokens = ("<unk>", "<s>", "</s>", *bytes_, *normal, "user word", "[PAD1]", "[PAD2]")
    types = (2, 3, 3, *(6,) * 256, *(1,) * len(normal), 4, 5, 5)
    scores = (*(0.0,) * 259, *(-float(i) for i in range(len(normal))), 0.0, 0.0, 0.0)
    fields: dict[str, Any] = {
        "tokens": tokens,
        "token_types": types,
        "scores": scores,
        "unk_token_id": 0,
    }
    return GGUFVocab(model="llama", **{**fields, **changes})


def sentencepiece(**changes: Any) -> Tokenizer:
    vocab = gguf_sentencepiece(**changes)
    spec = TokenizerSpec(gguf_vocab=vocab, special_token_ids={"bos_token": 1, "eos_token": 2})
    return Tokenizer(build_gguf_tokenizer(vocab, 1), spec)
