"""Tokenizers from GGUF vocabularies, against expectations worked out by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_tokenizers import (
    SPECIALS,
    gguf_byte_level,
    gguf_sentencepiece,
    sentencepiece,
)

from tinyserve.errors import ModelLoadError
from tinyserve.text.gguf_tokenizer import PRE_TOKENIZERS, build_gguf_tokenizer
from tinyserve.text.tokenizer import Tokenizer
from tinyserve.text.tokenizer_spec import GGUFVocab, TokenizerSpec

GOLDEN = Path(__file__).parent / "data" / "smollm2_tokens.json"


def from_gguf(vocab: GGUFVocab, add_bos: bool | None = None) -> Tokenizer:
    spec = TokenizerSpec(
        gguf_vocab=vocab, special_token_ids={"bos_token": 1, "eos_token": 2}, add_bos=add_bos
    )
    return Tokenizer.from_spec(spec)


def texts(tokenizer: Tokenizer, text: str) -> list[str]:
    return [tokenizer.token_text(i) for i in tokenizer.encode(text, add_special_tokens=False)]


def words(pre: str, text: str) -> list[str]:
    """How a family cuts `text` before BPE, shown in the original's characters."""
    backend = build_gguf_tokenizer(gguf_byte_level(pre), None)
    cuts = backend.pre_tokenizer.pre_tokenize_str(text)
    return [text[start:end] for _, (start, end) in cuts]


def test_smollm_splits_digits_before_bytes() -> None:
    """Digits stand alone, and a space before a digit does not join it (a known trap)."""
    assert texts(from_gguf(gguf_byte_level()), "hello 20") == ["hello", " ", "2", "0"]
    assert words("smollm", "a 2024x") == ["a", " ", "2", "0", "2", "4", "x"]


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        # GPT-2 knows contractions in lower case only.
        ("gpt-2", ["I", "'", "LL", " pay", " 12345", "€", "\n\n ", " x"]),
        ("smollm", ["I", "'", "LL", " pay", " ", *"12345", "€", "\n\n ", " x"]),
        ("llama-bpe", ["I", "'LL", " pay", " ", "123", "45", "€\n\n", " ", " x"]),
        ("qwen2", ["I", "'LL", " pay", " ", *"12345", "€\n\n", " ", " x"]),
        ("tekken", ["I", "'LL", " pay", " ", *"12345", "€\n\n", " ", " x"]),
        ("gpt-4o", ["I'LL", " pay", " ", "123", "45", "€\n\n", " ", " x"]),
        ("minicpm5", ["I", "'LL", " pay", " ", "123", "45", "€\n\n", " ", " x"]),
        ("seed-coder", ["I", "'LL", " pay", " ", *"12345", "€", "\n\n", " ", " x"]),
        ("deepseek-llm", ["I", "'", "LL", " pay", " ", *"12345", "€", "\n", "\n", " ", " x"]),
    ],
)
def test_words_of_each_family(pre: str, expected: list[str]) -> None:
    assert words(pre, "I'LL pay 12345€\n\n  x") == expected


def test_tekken_cuts_at_capitals() -> None:
    assert words("tekken", "HelloWorld ABCdef") == ["Hello", "World", " ABCdef"]


@pytest.mark.parametrize("pre", sorted(PRE_TOKENIZERS))
def test_every_family_round_trips(pre: str) -> None:
    text = "Hello 123, wörld!\r\n\t  漢字 😀 don't f(x)=1;"
    tokenizer = from_gguf(gguf_byte_level(pre))
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_ids_of_special_tokens_stay() -> None:
    tokenizer = from_gguf(gguf_byte_level())
    assert tokenizer.special_ids == {0, 1, 2}
    assert [tokenizer.special_id(text) for text in SPECIALS] == [0, 1, 2]
    assert tokenizer.encode("<|im_start|>hello<|im_end|>")[0] == 1


def test_user_defined_tokens_match_but_are_shown() -> None:
    tokenizer = sentencepiece()
    ids = tokenizer.encode("hello user word", add_special_tokens=False)
    assert "user word" in [tokenizer.token_text(i) for i in ids]
    assert tokenizer.decode(ids) == "hello user word"


@pytest.mark.parametrize(
    ("pre", "add_bos", "expected"),
    [
        ("smollm", None, False),
        ("smollm", True, True),
        ("qwen2", None, False),
        ("llama-bpe", None, True),
        ("llama-bpe", False, False),
        ("tekken", None, True),
    ],
)
def test_bos_rule(pre: str, add_bos: bool | None, expected: bool) -> None:
    """The file's flag wins; without one the family decides."""
    tokenizer = from_gguf(gguf_byte_level(pre), add_bos)
    assert (tokenizer.encode("hello")[0] == 1) is expected


def test_llama3_takes_whole_words_without_merges() -> None:
    """`ignore_merges`: a word that is a token is never built from parts."""
    vocab = gguf_byte_level("llama-bpe")
    vocab = replace(vocab, tokens=(*vocab.tokens, "abc"), token_types=(*vocab.token_types, 1))
    assert texts(from_gguf(vocab), "abc") == ["abc"]
    assert texts(from_gguf(replace(vocab, pre="qwen2")), "abc") == ["a", "b", "c"]


def test_padding_at_the_end_is_unknown() -> None:
    """SAM-11: unused tokens that pad the vocabulary are ids without text."""
    vocab = gguf_byte_level()
    padded = replace(
        vocab,
        tokens=(*vocab.tokens, "[PAD1]", "[PAD2]"),
        token_types=(*vocab.token_types, 5, 5),
    )
    tokenizer = from_gguf(padded)
    assert tokenizer.vocab_size == len(vocab.tokens)
    assert tokenizer.decode([len(vocab.tokens), len(vocab.tokens) + 1]) == ""


def test_sentencepiece_merges_follow_the_scores() -> None:
    tokenizer = sentencepiece()
    assert texts(tokenizer, "hello world") == [" hello", " world"]
    assert texts(tokenizer, "held") == [" ", "he", "ld"]  # "ld" outranks "▁he", which is no piece


@pytest.mark.parametrize("unknown", [None, -1, 2**32 - 1])
def test_sentencepiece_whose_unknown_token_is_none_of_its_own(unknown: int | None) -> None:
    """Some files say -1, signed or not, where they mean that there is none."""
    vocab = gguf_sentencepiece(unk_token_id=unknown)
    assert from_gguf(vocab).encode("hello") == sentencepiece().encode("hello")


def test_sentencepieces_unknown_token_is_special() -> None:
    """LOAD-09: answers showed it, where those of the same model as a folder do not."""
    tokenizer = sentencepiece()
    assert tokenizer.special_ids == {0, 1, 2}
    hello = tokenizer.encode("hello")
    assert tokenizer.encode("hello<unk>", add_special_tokens=False) == [*hello[1:], 0]
    assert tokenizer.decode([*hello, 0]) == "hello"
    assert tokenizer.decode([*hello, 0], skip_special_tokens=False) == "<s> hello<unk>"


def test_sentencepiece_falls_back_to_bytes() -> None:
    tokenizer = sentencepiece()
    ids = tokenizer.encode("é😀", add_special_tokens=False)
    assert [tokenizer.token_bytes(i) for i in ids] == [
        *(b" ", "é".encode()),
        *(b"\xf0", b"\x9f", b"\x98", b"\x80"),
    ]
    assert tokenizer.decode(ids) == "é😀"


def test_sentencepiece_space_prefix() -> None:
    """Added at the start and after a special token; never shown at the start of a text."""
    tokenizer = sentencepiece()
    ids = tokenizer.encode("hello</s>hello")
    assert [tokenizer.token_text(i) for i in ids] == ["<s>", " hello", "</s>", " hello"]
    assert tokenizer.decode(ids) == "hello hello"
    bare = sentencepiece(add_space_prefix=False)
    assert texts(bare, "hello") == ["hello"]
    assert bare.decode(bare.encode(" hello", add_special_tokens=False)) == " hello"


def test_sentencepiece_adds_bos_by_default() -> None:
    assert from_gguf(gguf_sentencepiece()).encode("hello")[0] == 1


@pytest.mark.parametrize(
    ("vocab", "message"),
    [
        (gguf_byte_level("never-heard"), r"tokenizer\.ggml\.pre 'never-heard'"),
        (gguf_byte_level(merges=()), r"tokenizer\.ggml\.merges"),
        (gguf_byte_level(merges=("he",)), r"tokenizer\.ggml\.merges"),
        (gguf_byte_level(merges=("q zzz",)), "inconsistent"),
        (gguf_byte_level(tokens=()), r"tokenizer\.ggml\.tokens"),
        (gguf_byte_level(token_types=(1, 1)), r"tokenizer\.ggml\.token_type has 2 entries"),
        (gguf_sentencepiece(scores=()), r"tokenizer\.ggml\.scores"),
        (GGUFVocab("bert", ("a",)), r"tokenizer\.ggml\.model 'bert'"),
    ],
)
def test_unusable_vocabularies_are_named(vocab: GGUFVocab, message: str) -> None:
    """LOAD-11: the error names the key, never an index or a bare library message."""
    with pytest.raises(ModelLoadError, match=message):
        build_gguf_tokenizer(vocab, None)


@pytest.mark.slow
def test_default_model_agrees_with_llama_cpp() -> None:
    """The ids that llama.cpp's tokenizer gives for the default model's file."""
    from tinyserve.models.checkpoint import load_checkpoint

    spec = load_checkpoint("default").tokenizer_spec()
    tokenizer = Tokenizer.from_spec(spec)
    for case in json.loads(GOLDEN.read_text()):
        ids = tokenizer.encode(case["text"])
        assert ids == case["ids"], case["text"]
        assert tokenizer.decode(ids, skip_special_tokens=False) == case["text"]
