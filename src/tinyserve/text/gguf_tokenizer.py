"""A tokenizer from the vocabulary arrays of a GGUF file.

GGUF names how text is cut into words (`tokenizer.ggml.pre`) but does not contain it: the rules are
those of the models' own `tokenizer.json`. Two kinds are built: "gpt2", byte-level BPE with merges,
and "llama", SentencePiece BPE whose merges follow from the scores of its pieces.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tinyserve.errors import ModelLoadError
from tinyserve.text.tokenizer_spec import GGUFVocab

if TYPE_CHECKING:
    import tokenizers
    from tokenizers import pre_tokenizers

UNKNOWN, CONTROL, USER_DEFINED, UNUSED = 2, 3, 4, 5  # values in tokenizer.ggml.token_type
_SPACE = "\u2581"  # SentencePiece's visible space

_ENGLISH = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_REST_SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+"
_CAPITALS = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
_HAN_KANA_HANGUL = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_DEEPSEEK_WORDS = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class PreTokenizer:
    """How one family cuts text before BPE: patterns applied in turn, each match isolated."""

    patterns: tuple[str, ...]
    ignore_merges: bool = False  # a word that is a vocabulary entry is taken whole
    adds_bos: bool = False  # if tokenizer.ggml.add_bos_token is absent
    uses_nfc: bool = False  # text is composed (Unicode NFC) first


_LLAMA3 = rf"{_ENGLISH}|{_WORDS}|\p{{N}}{{1,3}}|{_REST}"
_QWEN2 = rf"{_ENGLISH}|{_WORDS}|\p{{N}}|{_REST}"

_FAMILIES: tuple[tuple[str, PreTokenizer], ...] = (
    (
        "default",
        PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    ),
    (
        "gpt-2 phi-2 mpt olmo jais exaone4 gigachat mellum modern-bert a.x-4.0 trillion",
        PreTokenizer((_GPT2,)),
    ),
    # The digits are cut one by one before anything else, so " 12" is " ", "1", "2".
    (
        "smollm starcoder refact command-r codeshell exaone minerva-7b",
        PreTokenizer((r"\p{N}", _GPT2)),
    ),
    (
        "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2",
        PreTokenizer((_LLAMA3,), ignore_merges=True, adds_bos=True),
    ),
    ("dbrx smaug-bpe chatglm-bpe", PreTokenizer((_LLAMA3,))),
    ("glm4", PreTokenizer((_LLAMA3,), ignore_merges=True)),
    ("qwen2 deepseek-r1-qwen kormo f2llmv2", PreTokenizer((_QWEN2,), uses_nfc=True)),
    ("stablelm2 megrez hunyuan", PreTokenizer((_QWEN2,))),
    # As Llama 3's, after numbers have been cut in threes on their own.
    (
        "minicpm5",
        PreTokenizer((r"\p{N}{1,3}", rf"{_ENGLISH}|{_WORDS}|\p{{N}}+|{_REST}"), ignore_merges=True),
    ),
    # As Qwen 2's, but line breaks do not join the signs before them.
    (
        "seed-coder",
        PreTokenizer(
            (
                rf"{_ENGLISH}|{_WORDS}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+"
                r"|\s*[\r\n]+|\s+(?!\S)|\s+",
            )
        ),
    ),
    (
        "tekken",
        PreTokenizer(
            (rf"{_CASED}|{_CAPITALS}|\p{{N}}|{_REST_SLASH}",), ignore_merges=True, adds_bos=True
        ),
    ),
    (
        "gpt-4o llama4 kanana2",
        PreTokenizer(
            (rf"{_CASED}{_ENGLISH}?|{_CAPITALS}{_ENGLISH}?|\p{{N}}{{1,3}}|{_REST_SLASH}",)
        ),
    ),
    (
        "deepseek-coder",
        PreTokenizer(
            (
                r"[\r\n]",
                r"\s?\p{L}+",
                r"\s?\p{P}+",
                _HAN_KANA_HANGUL,
                r"\p{N}",
            )
        ),
    ),
    (
        "deepseek-llm",
        PreTokenizer(
            (
                r"[\r\n]",
                r"\s?[\p{Lu}\p{Ll}\p{Lt}]+",
                "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
                r"\s+$",
                _HAN_KANA_HANGUL,
                r"\p{N}",
            )
        ),
    ),
    (
        "deepseek-v3 hunyuan-dense",
        PreTokenizer(
            (r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", _DEEPSEEK_WORDS)
        ),
    ),
)
PRE_TOKENIZERS = {name: family for names, family in _FAMILIES for name in names.split()}


def build_gguf_tokenizer(vocab: GGUFVocab, bos_token_id: int | None) -> tokenizers.Tokenizer:
    """The library's tokenizer for a GGUF vocabulary; its post-processor adds BOS by the default.

    Raises ModelLoadError naming the metadata key that is missing, inconsistent or unsupported.
    """
    _check_arrays(vocab)
    try:
        if vocab.model == "gpt2":
            return _byte_level_bpe(vocab, bos_token_id)
        if vocab.model == "llama":
            return _sentencepiece_bpe(vocab, 1 if bos_token_id is None else bos_token_id)
    except ModelLoadError:
        raise
    except Exception as error:  # the library raises bare Exception, for a merge of unknown tokens
        raise ModelLoadError(f"the GGUF's vocabulary is inconsistent: {error}") from error
    raise ModelLoadError(
        f"tokenizer.ggml.model {vocab.model!r} is not supported (only 'gpt2' and 'llama' are)"
    )


def _check_arrays(vocab: GGUFVocab) -> None:
    num_tokens = len(vocab.tokens)
    if not num_tokens:
        raise ModelLoadError("the GGUF has no tokenizer.ggml.tokens")
    for key, array in (("token_type", vocab.token_types), ("scores", vocab.scores)):
        if array and len(array) != num_tokens:
            raise ModelLoadError(
                f"tokenizer.ggml.{key} has {len(array)} entries for {num_tokens} tokens"
            )


def _byte_level_bpe(vocab: GGUFVocab, bos_token_id: int | None) -> tokenizers.Tokenizer:
    from tokenizers import Tokenizer, decoders, models, normalizers

    family = PRE_TOKENIZERS.get(vocab.pre)
    if family is None:
        known = ", ".join(sorted(PRE_TOKENIZERS))
        raise ModelLoadError(f"tokenizer.ggml.pre {vocab.pre!r} is not supported (known: {known})")
    if not vocab.merges:
        raise ModelLoadError("the GGUF has no tokenizer.ggml.merges")
    ids = _known_tokens(vocab)
    model = models.BPE(ids, list(_split_merges(vocab)), ignore_merges=family.ignore_merges)
    tokenizer = Tokenizer(model)
    if family.uses_nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _pre_tokenizer(family)
    tokenizer.decoder = decoders.ByteLevel()
    _finish(tokenizer, vocab, bos_token_id if family.adds_bos else None)
    return tokenizer


def _pre_tokenizer(family: PreTokenizer) -> pre_tokenizers.PreTokenizer:
    from tokenizers import Regex, pre_tokenizers

    steps: list[pre_tokenizers.PreTokenizer] = [
        pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in family.patterns
    ]
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    return pre_tokenizers.Sequence(steps)


def _known_tokens(vocab: GGUFVocab) -> dict[str, int]:
    """Token -> id without the unused tail, which only pads the embedding to a round size."""
    end = len(vocab.tokens)
    while end > 1 and end <= len(vocab.token_types) and vocab.token_types[end - 1] == UNUSED:
        end -= 1
    return dict(zip(vocab.tokens[:end], range(end), strict=True))


def _split_merges(vocab: GGUFVocab) -> Iterator[tuple[str, str]]:
    """ "left right" -> (left, right). A part may itself be a space, so the first is never empty."""
    for merge in vocab.merges:
        cut = merge.find(" ", 1)
        if cut < 0:
            raise ModelLoadError(f"tokenizer.ggml.merges holds {merge!r}, which is not a pair")
        yield merge[:cut], merge[cut + 1 :]


def _sentencepiece_bpe(vocab: GGUFVocab, bos_token_id: int) -> tokenizers.Tokenizer:
    from tokenizers import Tokenizer, decoders, models, normalizers

    if not vocab.scores:
        raise ModelLoadError("the GGUF has no tokenizer.ggml.scores")
    ids = _known_tokens(vocab)
    unk_id = vocab.unk_token_id or 0
    unknown = vocab.tokens[unk_id if 0 <= unk_id < len(vocab.tokens) else 0]  # -1 says none
    tokenizer = Tokenizer(
        models.BPE(
            ids,
            _merges_from_scores(vocab, ids),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    has_prefix = vocab.add_space_prefix is not False
    replace = normalizers.Replace(" ", _SPACE)
    # Prepended to each stretch between special tokens, as llama.cpp does.
    tokenizer.normalizer = (
        normalizers.Sequence([normalizers.Prepend(_SPACE), replace]) if has_prefix else replace
    )
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if has_prefix:
        steps.append(decoders.Strip(" ", 1, 0))
    tokenizer.decoder = decoders.Sequence(steps)
    _finish(tokenizer, vocab, bos_token_id)
    return tokenizer


def _merges_from_scores(vocab: GGUFVocab, ids: dict[str, int]) -> list[tuple[str, str]]:
    """Every pair of pieces that joins into a piece, best score first.

    SentencePiece always joins the neighbours whose union has the best score; as ranked merges that
    is the same order. Only normal pieces take part.
    """
    ranked: list[tuple[float, int, int, str, str]] = []
    for piece, token_id in ids.items():
        if vocab.token_types and vocab.token_types[token_id] != 1:
            continue
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in ids and right in ids:
                ranked.append((-vocab.scores[token_id], ids[left], ids[right], left, right))
    ranked.sort()
    return [(left, right) for _, _, _, left, right in ranked]


def _finish(tokenizer: tokenizers.Tokenizer, vocab: GGUFVocab, bos_token_id: int | None) -> None:
    """Make control and user-defined tokens match in text; put BOS before a prompt if asked. The one
    for what is unknown is special too, as in Hugging Face's files of such models.
    """
    from tokenizers import AddedToken, processors

    for special, kinds in ((True, (UNKNOWN, CONTROL)), (False, (USER_DEFINED,))):
        names = [
            AddedToken(name, special=special, normalized=False)
            for name, its_kind in zip(vocab.tokens, vocab.token_types)  # noqa: B905
            if its_kind in kinds and name
        ]
        if special:
            tokenizer.add_special_tokens(names)
        else:
            tokenizer.add_tokens(names)
    if bos_token_id is not None and bos_token_id < len(vocab.tokens):
        bos = vocab.tokens[bos_token_id]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[bos, "$A"], special_tokens=[(bos, bos_token_id)]
        )
