"""`TokenPieces`: the exact bytes that each token stands for.

A tokenizer's decoder turns token strings into text in one of three ways: byte-level BPE (GPT-2's
map of bytes to printable characters), SentencePiece (a marker for the space, `<0xNN>` for single
bytes), or words joined by spaces. Here each becomes a function of one token alone, so the text of
any sequence is the concatenation of its tokens' bytes, decoded once as UTF-8. Everything that
produces text (whole, streamed, logprobs) goes through this file, so that no two of them can differ.

Where the library's own decoder depends on neighbouring tokens, this differs from it on purpose:
invalid bytes become U+FFFD as `bytes.decode(errors="replace")` does it, and an added token always
stands for its own text. On text that encodes and decodes cleanly the two agree.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tinyserve.errors import ModelLoadError

if TYPE_CHECKING:
    import tokenizers

NUM_PROBED = 1024  # ids

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True)
class DecodeRule:
    """How one token string becomes bytes.

    `strip`: this many leading spaces of a whole text are markers of the first word, not text.
    """

    to_bytes: Callable[[str], bytes]
    added_to_bytes: Callable[[str], bytes] = str.encode
    strip: int = 0


class TokenPieces:
    """Bytes and text of each token id, computed when first asked for and kept (one entry per id).

    Ids the tokenizer does not know (a padded vocabulary has them) stand for nothing: b"" and "".
    `special`: added tokens that are special whatever the tokenizer says.
    """

    def __init__(self, backend: tokenizers.Tokenizer, special: Set[str] = frozenset()) -> None:
        added = backend.get_added_tokens_decoder()
        self._name: Callable[[int], str | None] = backend.id_to_token
        self._rule = decode_rule(backend)
        self.special_ids = frozenset(
            i for i, token in added.items() if token.special or token.content in special
        )
        # An added token that is not special is found in normalised text. The vocabulary spells it
        # as it stands there, with SentencePiece's mark where the text has a space.
        self._added: Mapping[int, str] = {
            i: token.content if i in self.special_ids else self._name(i) or token.content
            for i, token in added.items()
        }
        self.vocab_size = max(
            backend.get_vocab_size(with_added_tokens=True), *(i + 1 for i in added), 0
        )
        # The library counts tokens: where ids are left out, the last ones are beyond the count. To
        # list all of them takes long, so that is done only where there are such.
        beyond = range(self.vocab_size, self.vocab_size + NUM_PROBED)
        if any(self._name(i) is not None for i in beyond):
            self.vocab_size = max(backend.get_vocab(with_added_tokens=True).values()) + 1
        self._bytes: list[bytes | None] = [None] * self.vocab_size
        self._texts: dict[int, str | None] = {}
        self.plain_texts: dict[int, str] = {}  # known so far; tokens that are whole and not special

    @property
    def strip(self) -> int:
        """How many leading spaces a whole text loses."""
        return self._rule.strip

    def bytes_of(self, token_id: int) -> bytes:
        """The exact bytes of a token; b"" for an unknown id."""
        if not 0 <= token_id < self.vocab_size:
            return b""
        piece = self._bytes[token_id]
        if piece is None:
            piece = self._bytes[token_id] = self._compute(token_id)
        return piece

    def text_of(self, token_id: int) -> str | None:
        """The token's text where its bytes are whole, valid UTF-8 on their own, else None."""
        try:
            return self._texts[token_id]
        except KeyError:
            if not 0 <= token_id < self.vocab_size:
                return ""
            try:
                text: str | None = self.bytes_of(token_id).decode()
            except UnicodeDecodeError:
                text = None
            self._texts[token_id] = text
            if text is not None and token_id not in self.special_ids:
                self.plain_texts[token_id] = text
            return text

    def _compute(self, token_id: int) -> bytes:
        content = self._added.get(token_id)
        if content is not None:
            return self._rule.added_to_bytes(content)
        name = self._name(token_id)
        return b"" if name is None else self._rule.to_bytes(name)


def decode_rule(backend: tokenizers.Tokenizer) -> DecodeRule:
    """The rule of the tokenizer's decoder. Raises ModelLoadError for one it does not know."""
    if backend.decoder is None:
        return DecodeRule(_spaced, _spaced, strip=1)
    steps = list(_flatten(json.loads(backend.decoder.__getstate__())))
    kinds = {step["type"] for step in steps}
    if "ByteLevel" in kinds and kinds <= {"ByteLevel", "Fuse"}:
        return DecodeRule(_byte_level)
    if kinds <= {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}:
        return _sentencepiece_rule(steps)
    raise ModelLoadError(f"the tokenizer's decoder is not supported: {', '.join(sorted(kinds))}")


def _flatten(decoder: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if decoder["type"] == "Sequence":
        for step in decoder["decoders"]:
            yield from _flatten(step)
    else:
        yield decoder


def _sentencepiece_rule(steps: list[Mapping[str, Any]]) -> DecodeRule:
    """Replacements, byte tokens and the strip of SentencePiece-like decoders, in their order."""
    replacements: list[tuple[str, str]] = []
    strip = 0
    for step in steps:
        if step["type"] == "Replace":
            pattern = step["pattern"].get("String")
            if pattern is None:
                raise ModelLoadError("the tokenizer's decoder replaces by a regular expression")
            replacements.append((pattern, step["content"]))
        elif step["type"] == "Metaspace":
            replacements.append((step["replacement"], " "))
            strip = 0 if step.get("prepend_scheme") == "never" else 1
        elif step["type"] == "Strip":
            if step["content"] != " " or step["stop"] != 0:
                raise ModelLoadError("the tokenizer's decoder strips more than leading spaces")
            strip = step["start"]
    has_bytes = any(step["type"] == "ByteFallback" for step in steps)

    def plain(token: str) -> bytes:
        for old, new in replacements:
            token = token.replace(old, new)
        return token.encode()

    def to_bytes(token: str) -> bytes:
        match = _BYTE_TOKEN.fullmatch(token) if has_bytes else None
        return bytes([int(match[1], 16)]) if match else plain(token)

    return DecodeRule(to_bytes, plain, strip)


def _spaced(token: str) -> bytes:
    return b" " + token.encode()


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's map: a printable byte is its own character, the others follow from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update((chr(0x100 + index), byte) for index, byte in enumerate(others))
    return alphabet


_BYTES = _byte_alphabet()


def _byte_level(token: str) -> bytes:
    try:
        return bytes([_BYTES[char] for char in token])
    except KeyError:  # not from the byte alphabet: the token is plain text
        return token.encode()
