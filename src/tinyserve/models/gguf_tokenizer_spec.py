"""GGUF metadata as a `TokenizerSpec`, and the ids that end a text. Tokenizes nothing.

Nothing here decodes the vocabulary until the spec's `load_vocab` is called, so a cached tokenizer
costs nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from tinyserve.errors import ModelLoadError
from tinyserve.models.gguf_file import StringArray
from tinyserve.models.gguf_metadata import Metadata
from tinyserve.text.tokenizer_spec import GGUFVocab, TokenizerSpec

logger = logging.getLogger(__name__)

# Special or added tokens that end a turn or a text wherever they exist: ChatML, Llama 3 (turn, tool
# call, text), Phi, GPT-2. Files name one id as EOS, often the wrong one of several; llama.cpp keeps
# a list like this for the same reason.
END_OF_TEXT = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|end|>",
    "<|endoftext|>",
)
# Ends a text as well, but only if the token is special: it is also HTML's tag (strikethrough).
END_OF_SENTENCE = "</s>"
# Token types: special, and user-defined, which is what a fine-tune's added tokens become.
_SPECIAL = 3
_ADDED = (_SPECIAL, 4)
_SPECIAL_IDS = {
    "bos_token": "tokenizer.ggml.bos_token_id",
    "eos_token": "tokenizer.ggml.eos_token_id",
    "unk_token": "tokenizer.ggml.unknown_token_id",
    "pad_token": "tokenizer.ggml.padding_token_id",
}
_TEMPLATE = "tokenizer.chat_template"


def read_tokenizer_spec(metadata: Metadata) -> TokenizerSpec:
    """Raises ModelLoadError naming the key where the file carries no whole tokenizer."""
    special = {name: metadata.get(key, int) for name, key in _SPECIAL_IDS.items()}
    named = {
        key[len(_TEMPLATE) + 1 :]: value
        for key, value in metadata.file.metadata.items()
        if key.startswith(f"{_TEMPLATE}.") and isinstance(value, str)
    }
    return TokenizerSpec(
        gguf_vocab=_vocab_reader(metadata),
        # -1, signed or not, is how some files say that there is none
        special_token_ids={n: i for n, i in special.items() if i is not None and 0 <= i < 1 << 31},
        add_bos=metadata.get("tokenizer.ggml.add_bos_token", bool),
        add_eos=metadata.get("tokenizer.ggml.add_eos_token", bool),
        chat_template=metadata.get(_TEMPLATE, str),
        named_templates=named,
    )


def read_eos_token_ids(metadata: Metadata) -> tuple[int, ...]:
    """The file's EOS and end-of-turn ids, then those of the lists that are not ordinary."""
    named = [metadata.get(f"tokenizer.ggml.{kind}_token_id", int) for kind in ("eos", "eot", "eom")]
    ids = [token_id for token_id in named if token_id is not None]
    several = metadata.numbers("tokenizer.ggml.eos_token_ids")  # as Ollama's converter writes them
    if several is not None and several.dtype.kind in "iu":
        ids += several.tolist()
    tokens = metadata.strings("tokenizer.ggml.tokens")
    types = metadata.numbers("tokenizer.ggml.token_type")
    if tokens is not None and types is not None:
        found = tokens.find((*END_OF_TEXT, END_OF_SENTENCE))
        kinds = {**dict.fromkeys(END_OF_TEXT, _ADDED), END_OF_SENTENCE: (_SPECIAL,)}
        ids += [
            found[text]
            for text, wanted in kinds.items()
            if text in found and found[text] < len(types) and types[found[text]] in wanted
        ]
    return tuple(dict.fromkeys(ids))


def _vocab_reader(metadata: Metadata) -> Callable[[], GGUFVocab]:
    """What reads the vocabulary, whose keys are checked now."""
    model = metadata.need("tokenizer.ggml.model", str)
    texts = {name: metadata.strings(f"tokenizer.ggml.{name}") for name in ("tokens", "merges")}
    numbers = {
        name: metadata.numbers(f"tokenizer.ggml.{name}") for name in ("token_type", "scores")
    }
    needed = ("tokens", "merges") if model == "gpt2" else ("tokens",)
    pre = metadata.get("tokenizer.ggml.pre", str)
    if model == "gpt2" and pre is None:
        logger.warning(
            "%s: metadata key tokenizer.ggml.pre is missing, as in files of before May 2024: text "
            "is cut into words by a rule that may not be the model's, and answers may be worse",
            metadata.file.path,
        )
    for name in needed:
        if texts[name] is None:
            raise ModelLoadError(
                f"{metadata.file.path}: metadata key tokenizer.ggml.{name} is missing"
            )

    def read() -> GGUFVocab:
        return GGUFVocab(
            model=model,
            tokens=_strings(texts["tokens"]),
            pre=pre or "default",
            token_types=_numbers(numbers["token_type"]),
            merges=_strings(texts["merges"]),
            scores=_numbers(numbers["scores"]),
            unk_token_id=metadata.get("tokenizer.ggml.unknown_token_id", int),
            add_space_prefix=metadata.get("tokenizer.ggml.add_space_prefix", bool),
        )

    return read


def _strings(array: StringArray | None) -> tuple[str, ...]:
    return () if array is None else tuple(array.decode())


def _numbers(array: NDArray[Any] | None) -> tuple[Any, ...]:
    return () if array is None else tuple(array.tolist())
