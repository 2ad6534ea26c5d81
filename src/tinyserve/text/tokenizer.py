"""`Tokenizer`: text to token ids and back, over the `tokenizers` library.

It owns the rules the library leaves open: one BOS and never an EOS on a prompt, the model's own end
on a text to be embedded, decoding by exact bytes, ids outside the vocabulary. It refuses to know
where a tokenizer comes from (`TokenizerSpec` does) and what a chat is (`ChatTemplate` does).

Invariants: `decode(ids)` is the concatenation of `token_bytes(id)` as UTF-8, so streamed and whole
text are equal; safe to share between threads.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from tinyserve.errors import ModelLoadError, RequestError
from tinyserve.text.detokenizer import IncrementalDetokenizer
from tinyserve.text.pieces import TokenPieces
from tinyserve.text.template import ChatTemplate
from tinyserve.text.tokenizer_spec import NamedToken, TokenizerSpec

if TYPE_CHECKING:
    import tokenizers

logger = logging.getLogger(__name__)

SHORT = 2048  # characters


class Tokenizer:
    """Encodes prompts and decodes tokens of one model. `vocab_size`: known ids are below it."""

    def __init__(self, backend: tokenizers.Tokenizer, spec: TokenizerSpec | None = None) -> None:
        spec = spec or TokenizerSpec()
        _forget_training(backend)
        _add_named(backend, spec.named_tokens)
        self._backend = backend
        self._spec = replace(spec, gguf_vocab=None)  # it would keep the model's file open
        self._pieces = TokenPieces(backend, {t.content for t in spec.named_tokens if t.special})
        before, after = _added_around(backend, self.bos_token_id)
        self._prefix = _ruled(before, self.bos_token_id, spec.add_bos)
        self._suffix = _ruled(after[::-1], self.eos_token_id, spec.add_eos)[::-1]
        self._has_warned = False
        self.vocab_size = self._pieces.vocab_size
        self.special_ids = self._pieces.special_ids

    @classmethod
    def from_spec(
        cls,
        spec: TokenizerSpec,
        cache_dir: Path | None = None,
        *,
        fingerprint: str | None = None,
    ) -> Tokenizer:
        """Build, or read from `cache_dir` what was built before from the files of `fingerprint`.

        Without a fingerprint nothing is cached. Raises ModelLoadError for a missing, damaged or
        unsupported tokenizer.
        """
        from tinyserve.text.tokenizer_cache import load_backend

        return cls(load_backend(spec, cache_dir, fingerprint), spec)

    def encode(
        self, text: str, *, add_special_tokens: bool = True, is_whole: bool = False
    ) -> list[int]:
        """The ids of a prompt; special tokens written in the text become their ids.

        With `add_special_tokens` the model's BOS comes first if it uses one, but only once: where
        the text already begins with it, none is added and the log says so once. An EOS is never
        appended to a prompt, but to a text that `is_whole`, to be embedded and not continued, where
        the model's files say so: such models were trained to be read off there. A rendered chat is
        encoded with `add_special_tokens=False`.
        Raises RequestError for text that is not Unicode (a lone surrogate), or that the vocabulary
        has no tokens for.
        """
        try:
            ids = self._encode(text)
        except (TypeError, UnicodeEncodeError):
            raise RequestError("the text holds a lone surrogate, which is no character") from None
        except Exception as error:  # the library raises bare Exception
            raise RequestError(f"the tokenizer cannot encode the text: {error}") from None
        if add_special_tokens and is_whole and tuple(ids[-len(self._suffix) :]) != self._suffix:
            ids += self._suffix
        if not add_special_tokens or not self._prefix:
            return ids
        if ids and ids[0] == self._prefix[-1] == self.bos_token_id:
            self._warn_of_double_bos()
            return [*self._prefix[:-1], *ids]
        return [*self._prefix, *ids]

    def _encode(self, text: str) -> list[int]:
        """Only the library's batches let go of the interpreter: a long text must go as one, or
        every stream and /health wait for it. For a short one, that costs more than it gives.
        """
        if len(text) <= SHORT:
            ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        else:
            ids = self._backend.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return ids

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """The text of a whole sequence; invalid UTF-8 becomes U+FFFD, unknown ids nothing."""
        skipped = self.special_ids if skip_special_tokens else frozenset()
        bytes_of = self._pieces.bytes_of
        text = b"".join(bytes_of(i) for i in ids if i not in skipped).decode(errors="replace")
        strip = self._pieces.strip
        return text[:strip].lstrip(" ") + text[strip:] if strip else text

    def token_bytes(self, token_id: int, strip: int = 0) -> bytes:
        """The exact bytes of one token, b"" for an id outside the vocabulary.

        `strip`: at the beginning of a text it loses so many leading spaces.
        """
        data = self._pieces.bytes_of(token_id)
        return data[:strip].lstrip(b" ") + data[strip:] if strip else data

    def token_text(self, token_id: int) -> str:
        """One token as text, U+FFFD where it is not whole UTF-8 on its own."""
        return self._pieces.bytes_of(token_id).decode(errors="replace")

    def token_label(self, token_id: int, strip: int = 0) -> str:
        """`token_bytes` as a string that tells it apart, also where it is part of a character."""
        data = self.token_bytes(token_id, strip)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)

    def detokenizer(
        self,
        *,
        skip_special_tokens: bool = True,
        visible_ids: frozenset[int] = frozenset(),
        keeps_space: bool = False,
    ) -> IncrementalDetokenizer:
        """A fresh incremental detokenizer for one sequence; `visible_ids` are never skipped.

        `keeps_space`: a space that the text begins with is one, and not SentencePiece's mark of a
        first word.
        """
        return IncrementalDetokenizer(
            self._pieces,
            skip_special_tokens=skip_special_tokens,
            visible_ids=visible_ids,
            keeps_space=keeps_space,
        )

    def has_text(self, ids: Iterable[int]) -> bool:
        """Whether anything but special tokens is among the ids."""
        return any(i not in self.special_ids for i in ids)

    def special_id(self, text: str) -> int | None:
        """The id of the special token whose text is exactly `text`."""
        token_id = self._backend.token_to_id(text)
        return token_id if token_id in self.special_ids else None

    @cached_property
    def special_texts(self) -> Mapping[int, str]:
        """Each special token as text spells it, by its id."""
        added = self._backend.get_added_tokens_decoder()
        return {i: added[i].content for i in sorted(self.special_ids) if added[i].content}

    def token_id(self, text: str) -> int | None:
        """The id of the vocabulary entry spelled `text` (as the vocabulary spells it)."""
        token_id: int | None = self._backend.token_to_id(text)
        return token_id

    @cached_property
    def special_tokens(self) -> Mapping[str, str]:
        """ "bos_token" -> its text, and so on for each special token that the model names."""
        tokens = dict(self._spec.special_tokens)
        for name, token_id in self._spec.special_token_ids.items():
            text = self._backend.id_to_token(token_id)
            if text is not None:
                tokens[name] = text
        return tokens

    @cached_property
    def bos_token_id(self) -> int | None:
        return self._special_token_id("bos_token")

    @cached_property
    def eos_token_id(self) -> int | None:
        """The tokenizer's own EOS; a model may stop at more (`Checkpoint.eos_token_ids`)."""
        return self._special_token_id("eos_token")

    @cached_property
    def chat_template(self) -> ChatTemplate:
        """The model's chat template; it says so when asked to render and there is none."""
        return ChatTemplate(
            self._spec.chat_template,
            named=self._spec.named_templates,
            special_tokens=self.special_tokens,
        )

    def _special_token_id(self, name: str) -> int | None:
        text = self.special_tokens.get(name)
        return None if text is None else self.token_id(text)

    def _warn_of_double_bos(self) -> None:
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "a prompt already begins with the BOS token %r, so none was added; "
                "send add_special_tokens=false with templated text (logged once)",
                self.special_tokens.get("bos_token"),
            )


def _forget_training(backend: tokenizers.Tokenizer) -> None:
    """Some tokenizer.json files carry the settings of a training. Dropout and its like would cut
    the same text another way each time.
    """
    backend.no_truncation()
    backend.no_padding()
    for name in ("dropout", "alpha", "nbest_size"):
        if getattr(backend.model, name, None) is not None:
            setattr(backend.model, name, None)


def _add_named(backend: tokenizers.Tokenizer, named: Iterable[NamedToken]) -> None:
    """Add the named tokens that the tokenizer lacks, to be found in text. One that the vocabulary
    has keeps its id.
    """
    from tokenizers import AddedToken

    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    for token in named:
        if token.content not in known:
            backend.add_tokens([AddedToken(**vars(token))])


def _added_around(
    backend: tokenizers.Tokenizer, bos_id: int | None
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What the post-processor puts before a text, and after it."""
    sample = "a"
    try:
        plain = backend.encode(sample, add_special_tokens=False).ids
        full = backend.encode(sample, add_special_tokens=True).ids
    except Exception as error:  # the library raises bare Exception
        raise ModelLoadError(f"the tokenizer cannot encode {sample!r}: {error}") from error
    starts = range(len(full) - len(plain) + 1)
    start = next((i for i in starts if full[i : i + len(plain)] == plain), 0)
    if not plain:
        start = int(full[:1] == [bos_id])
    return tuple(full[:start]), tuple(full[start + len(plain) :])


def _ruled(ids: tuple[int, ...], token_id: int | None, add: bool | None) -> tuple[int, ...]:
    """The ids with `token_id` first if `add`, without it if not; None leaves them as they are."""
    if token_id is not None and add is False:
        return tuple(i for i in ids if i != token_id)
    if token_id is not None and add and token_id not in ids:
        return (token_id, *ids)
    return ids
