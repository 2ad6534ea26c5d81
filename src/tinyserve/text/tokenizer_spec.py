"""`TokenizerSpec`: what is needed to build a tokenizer and its chat template, as a plain value.

It is filled from a checkpoint folder (`TokenizerSpec.from_folder`) or from GGUF metadata
(`models/gguf_tokenizer_spec.py`); `Tokenizer.from_spec` turns it into something that encodes. It
knows nothing of how tokenizers work. Building a spec is cheap: a folder's `tokenizer.json` is not
opened, and a GGUF's vocabulary may be handed over as a function, called only when no cached
tokenizer is found.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tinyserve.errors import ModelLoadError, reason_of
from tinyserve.files import read_text

# The special tokens a chat template may name, under Hugging Face's names.
SPECIAL_TOKEN_NAMES = (
    "bos_token",
    "eos_token",
    "unk_token",
    "pad_token",
    "sep_token",
    "cls_token",
    "mask_token",
)

# Further special tokens, a list or by name: before transformers 5, and since.
_MORE_SPECIAL = (
    "additional_special_tokens",
    "extra_special_tokens",
    "model_specific_special_tokens",
)
_FLAGS = ("special", "lstrip", "rstrip", "single_word", "normalized")
# Vocabularies that are not read, and what they are.
_OTHER_TOKENIZERS = {
    "tokenizer.model": "a SentencePiece",
    "vocab.json": "a byte-pair",
    "tekken.json": "a Mistral",
}


@dataclass(frozen=True)
class GGUFVocab:
    """The vocabulary arrays of a GGUF file, under the names of its keys `tokenizer.ggml.*`."""

    model: str  # tokenizer.ggml.model: "gpt2" (byte-level BPE) or "llama" (SentencePiece)
    tokens: tuple[str, ...]
    pre: str = "default"  # tokenizer.ggml.pre: the name of the pre-tokenizer
    # 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte; empty: all are normal.
    token_types: tuple[int, ...] = ()
    merges: tuple[str, ...] = ()  # for "gpt2": "left right", in order of precedence
    scores: tuple[float, ...] = ()  # for "llama"
    unk_token_id: int | None = None
    add_space_prefix: bool | None = None  # None: the default of `model`


@dataclass(frozen=True)
class NamedToken:
    """A token that files beside tokenizer.json name, with the library's flags (`AddedToken`)."""

    content: str
    special: bool = False
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    normalized: bool = False


@dataclass(frozen=True)
class TokenizerSpec:
    """Where a tokenizer comes from (one of the first two), its special tokens and its templates."""

    tokenizer_json: Path | None = None
    gguf_vocab: GGUFVocab | Callable[[], GGUFVocab] | None = None
    chat_template: str | None = None
    named_templates: Mapping[str, str] = field(default_factory=dict)  # such as "tool_use"
    special_tokens: Mapping[str, str] = field(default_factory=dict)  # "bos_token" -> "<s>"
    special_token_ids: Mapping[str, int] = field(default_factory=dict)  # "bos_token" -> 1
    named_tokens: tuple[NamedToken, ...] = ()  # those that tokenizer.json may lack, by id
    # Whether BOS comes before every prompt that is encoded with special tokens; None leaves it to
    # the post-processor in `tokenizer.json` or to the GGUF model's default.
    add_bos: bool | None = None
    # The same for an EOS after a text to be embedded. None is ever put after a prompt, whatever the
    # files say.
    add_eos: bool | None = None

    @classmethod
    def from_folder(cls, folder: str | Path) -> TokenizerSpec:
        """Read a checkpoint folder's tokenizer files.

        Raises ModelLoadError naming the file that is missing or damaged.
        """
        folder = Path(folder)
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise ModelLoadError(_no_tokenizer_message(folder))
        config = _read_json(folder / "tokenizer_config.json")
        default, named = _read_templates(folder, config)
        add_bos, add_eos = config.get("add_bos_token"), config.get("add_eos_token")
        return cls(
            tokenizer_json=path,
            chat_template=default,
            named_templates=named,
            special_tokens=_read_special_tokens(folder, config),
            named_tokens=_read_named_tokens(folder, config),
            add_bos=add_bos if isinstance(add_bos, bool) else None,
            add_eos=add_eos if isinstance(add_eos, bool) else None,
        )

    def with_chat_template(self, source: str) -> TokenizerSpec:
        """The same tokenizer with one explicit template in place of all the model's own."""
        return replace(self, chat_template=source, named_templates={})

    def load_vocab(self) -> GGUFVocab:
        """The GGUF vocabulary, read now if it was given as a function. Raises ModelLoadError."""
        if self.gguf_vocab is None:
            raise ModelLoadError("the model has no GGUF vocabulary")
        return self.gguf_vocab() if callable(self.gguf_vocab) else self.gguf_vocab


def _no_tokenizer_message(folder: Path) -> str:
    for name, kind in _OTHER_TOKENIZERS.items():
        if (folder / name).is_file():
            return (
                f"{folder} has no tokenizer.json, only {kind} {name}; convert it once with "
                "transformers: AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
            )
    return f"{folder} has no tokenizer.json"


def _read_json(path: Path) -> dict[str, Any]:
    """A JSON object, {} where the file is absent. All its texts are Unicode."""
    try:
        value = json.loads(read_text(path))
        json.dumps(value, ensure_ascii=False).encode()  # JSON can spell half of a surrogate pair
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise ModelLoadError(f"cannot read {path}: {reason_of(error)}") from error
    if not isinstance(value, dict):
        raise ModelLoadError(f"{path} does not hold a JSON object")
    return value


def _read_text(path: Path) -> str:
    try:
        return read_text(path)
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"cannot read {path}: {reason_of(error)}") from error


def _read_templates(folder: Path, config: Mapping[str, Any]) -> tuple[str | None, dict[str, str]]:
    """The default template and the named ones, from the four places checkpoints keep them.

    Later places win: chat_template.json, tokenizer_config.json, chat_template.jinja with its
    additional_chat_templates folder (the newest habit, written beside stale older ones).
    """
    named: dict[str, str] = {}
    for field_value in (
        _read_json(folder / "chat_template.json").get("chat_template"),
        config.get("chat_template"),
    ):
        named.update(_templates_in(field_value))
    if (folder / "chat_template.jinja").is_file():
        named["default"] = _read_text(folder / "chat_template.jinja")
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        named[path.stem] = _read_text(path)
    return named.pop("default", None), named


def _templates_in(value: Any) -> dict[str, str]:
    """A `chat_template` field: a string, {name: template}, or a list of {"name", "template"}."""
    if isinstance(value, str):
        return {"default": value}
    if isinstance(value, dict):
        return {str(name): text for name, text in value.items() if isinstance(text, str)}
    if isinstance(value, list):
        return {
            str(item["name"]): item["template"]
            for item in value
            if isinstance(item, dict) and "name" in item and isinstance(item.get("template"), str)
        }
    return {}


def _read_special_tokens(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """bos_token and its kin: a string, or an object with "content"; tokenizer_config.json wins."""
    tokens: dict[str, str] = {}
    for source in (_read_json(folder / "special_tokens_map.json"), config):
        for name in SPECIAL_TOKEN_NAMES:
            value = source.get(name)
            if isinstance(value, dict):
                value = value.get("content")
            if isinstance(value, str):
                tokens[name] = value
    return tokens


def _read_named_tokens(folder: Path, config: Mapping[str, Any]) -> tuple[NamedToken, ...]:
    """Every token that a file beside tokenizer.json names.

    transformers adds those that tokenizer.json lacks; where fine-tuning has edited the other files
    alone, a chat template's marks would else be cut into pieces that the model has never seen.
    """
    found: dict[str, NamedToken] = {}
    for fields in _added_tokens(folder, config):
        if content := fields.get("content"):
            flags = {name: fields.get(name) is True for name in _FLAGS}
            found[content] = NamedToken(content, **flags)
    for content in _special_texts(_read_json(folder / "special_tokens_map.json"), config):
        found[content] = replace(found.get(content, NamedToken(content)), special=True)
    return tuple(found.values())


def _added_tokens(folder: Path, config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Objects with "content" and flags, by id: of tokenizer_config.json, or else of an older file
    that has only ids.
    """
    listed = config.get("added_tokens_decoder")
    if not isinstance(listed, dict):
        ids = _read_json(folder / "added_tokens.json")
        listed = {str(token_id): {"content": content} for content, token_id in ids.items()}
    return [
        listed[token_id]
        for token_id in sorted((key for key in listed if key.isdecimal()), key=int)
        if isinstance(listed[token_id], dict) and isinstance(listed[token_id].get("content"), str)
    ]


def _special_texts(*sources: Mapping[str, Any]) -> Iterator[str]:
    """The ends of a text, then the further special tokens: strings, or objects with "content".

    Not what pads a batch: some name an ordinary token for that, which answers would lack.
    """
    for source in sources:
        values = [source.get(name) for name in ("bos_token", "eos_token")]
        for name in _MORE_SPECIAL:
            more = source.get(name)
            if isinstance(more, list | dict):
                values += more.values() if isinstance(more, dict) else more
        for value in values:
            text = value.get("content") if isinstance(value, dict) else value
            if isinstance(text, str) and text:
                yield text
