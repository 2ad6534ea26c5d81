"""`Tokenizer`: BOS and EOS rules, exact decoding, ids outside the vocabulary."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_tokenizers import (
    EOT,
    IM_END,
    IM_START,
    byte_level,
    byte_level_backend,
    sentencepiece,
)
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from tinyserve.errors import ModelLoadError, RequestError
from tinyserve.text.tokenizer import Tokenizer
from tinyserve.text.tokenizer_spec import TokenizerSpec

EOT_ID, BOS_ID, EOS_ID = 0, 1, 2
BYTE_LEVEL, SENTENCEPIECE = byte_level(), sentencepiece()
# No surrogates: they are no characters. Leading spaces belong to SentencePiece's own test.
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
EITHER = pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, SENTENCEPIECE], ids=["bytes", "spm"])


def test_bos_by_the_post_processor() -> None:
    assert byte_level(before=(IM_START,)).encode("hello")[0] == BOS_ID
    assert byte_level(before=(IM_START,)).encode("hello", add_special_tokens=False)[0] != BOS_ID
    assert byte_level().encode("hello")[0] != BOS_ID


def test_explicit_bos_rule_wins() -> None:
    assert byte_level(add_bos=True).encode("hello")[0] == BOS_ID
    assert byte_level(before=(IM_START,), add_bos=True).encode("hello").count(BOS_ID) == 1
    assert BOS_ID not in byte_level(before=(IM_START,), add_bos=False).encode("hello")


def test_eos_is_never_appended() -> None:
    """CHAT-05: a post-processor's EOS (add_eos_token left over from training) is dropped."""
    tokenizer = byte_level(before=(IM_START,), after=(IM_END,))
    ids = tokenizer.encode("hello")
    assert ids[0] == BOS_ID
    assert EOS_ID not in ids
    assert tokenizer.encode("") == [BOS_ID]


def test_eos_written_in_the_text_stays() -> None:
    """CHAT-05: only what the post-processor adds is dropped."""
    assert byte_level(after=(IM_END,)).encode(f"hello{IM_END}")[-1] == EOS_ID


def test_a_text_to_be_embedded_ends_as_the_files_say() -> None:
    """Qwen3-Embedding and its like are read off at a token that their tokenizer puts last."""
    plain = byte_level().encode("hello")
    tokenizer = byte_level(before=(IM_START,), after=(EOT,))
    assert tokenizer.encode("hello", is_whole=True) == [BOS_ID, *plain, EOT_ID]
    assert tokenizer.encode(f"hello{EOT}", is_whole=True) == [BOS_ID, *plain, EOT_ID]
    assert tokenizer.encode("hello", is_whole=True, add_special_tokens=False) == plain
    assert byte_level().encode("hello", is_whole=True) == plain


def test_the_rule_of_an_end_is_for_texts_to_be_embedded() -> None:
    plain = byte_level().encode("hello")
    ends = byte_level(add_eos=True)
    assert ends.encode("hello") == plain
    assert ends.encode("hello", is_whole=True) == [*plain, EOS_ID]
    assert byte_level(after=(IM_END,), add_eos=True).encode("a", is_whole=True).count(EOS_ID) == 1
    assert EOS_ID not in byte_level(after=(IM_END,), add_eos=False).encode("a", is_whole=True)


def test_double_bos_is_avoided_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """CHAT-03: templated text sent to a completion keeps its single BOS."""
    tokenizer = byte_level(before=(IM_START,))
    with caplog.at_level(logging.WARNING):
        assert tokenizer.encode(f"{IM_START}hello") == tokenizer.encode("hello")
        tokenizer.encode(f"{IM_START}again")
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "BOS" in caplog.text


def test_special_text_becomes_special_ids() -> None:
    """LOAD-09: as Hugging Face's tokenizers do; encoding what was decoded is stable."""
    ids = BYTE_LEVEL.encode(f"{IM_START}hello{IM_END}")
    assert (ids[0], ids[-1]) == (BOS_ID, EOS_ID)
    assert BYTE_LEVEL.encode(BYTE_LEVEL.decode(ids, skip_special_tokens=False)) == ids


def test_empty_text() -> None:
    """LIM-03: no BOS, no ids; the caller refuses it."""
    assert BYTE_LEVEL.encode("") == []


def test_lone_surrogate_is_the_requests_fault() -> None:
    with pytest.raises(RequestError, match="surrogate"):
        BYTE_LEVEL.encode("a\ud83d")
    assert BYTE_LEVEL.encode("hello")


def test_truncation_and_padding_of_training_are_off() -> None:
    backend = byte_level_backend()
    backend.enable_truncation(2)
    backend.enable_padding(length=8, pad_id=0)
    assert len(Tokenizer(backend).encode("abcdef")) == 6
    assert len(Tokenizer(backend).encode("a")) == 1


def test_dropout_of_training_is_off() -> None:
    """With it, the same prompt was other tokens each time."""
    vocab = {"a": 0, "b": 1, "c": 2, "ab": 3, "abc": 4}
    bpe = models.BPE(vocab, [("a", "b"), ("ab", "c")], dropout=0.9)
    assert {tuple(Tokenizer(Backend(bpe)).encode("abc")) for _ in range(20)} == {(4,)}
    pieces = [("<unk>", 0.0), ("a", -1.0), ("b", -1.0), ("ab", -1.1)]
    unigram = models.Unigram(pieces, 0)
    if hasattr(unigram, "alpha"):  # not in older versions of the library, which draw nothing then
        unigram.alpha, unigram.nbest_size = 0.1, 8
    assert {tuple(Tokenizer(Backend(unigram)).encode("ab")) for _ in range(20)} == {(3,)}


def test_text_that_the_vocabulary_has_no_tokens_for() -> None:
    words = Tokenizer(Backend(models.WordLevel({"a": 0, "hello": 1}, unk_token="<unk>")))
    assert words.encode("hello") == [1]
    for text in ("other", "other" * 1000):
        with pytest.raises(RequestError, match=r"cannot encode the text.*UNK"):
            words.encode(text)
    with pytest.raises(ModelLoadError, match="cannot encode 'a'"):
        Tokenizer(Backend(models.WordLevel({"hello": 1}, unk_token="<unk>")))


@EITHER
@given(text=TEXT)
def test_text_survives_encoding_and_decoding(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False)
    expected = text if tokenizer is BYTE_LEVEL else text.replace("▁", " ")
    assert tokenizer.decode(ids, skip_special_tokens=False) == expected


@given(text=TEXT, skip=st.booleans())
def test_decoding_agrees_with_the_library(text: str, skip: bool) -> None:
    """On valid text. (On invalid bytes the library's decoders differ among themselves.)"""
    for tokenizer in (BYTE_LEVEL, SENTENCEPIECE):
        ids = tokenizer.encode(text)
        library = tokenizer._backend.decode(ids, skip_special_tokens=skip)
        assert tokenizer.decode(ids, skip_special_tokens=skip) == library


@given(ids=st.lists(st.integers(-3, 300), max_size=20), skip=st.booleans())
def test_decoding_is_concatenation_of_bytes(ids: list[int], skip: bool) -> None:
    skipped = BYTE_LEVEL.special_ids if skip else frozenset()
    data = b"".join(BYTE_LEVEL.token_bytes(i) for i in ids if i not in skipped)
    assert BYTE_LEVEL.decode(ids, skip_special_tokens=skip) == data.decode(errors="replace")


@EITHER
def test_ids_outside_the_vocabulary_are_empty(tokenizer: Tokenizer) -> None:
    """SAM-11: padded logits can yield them."""
    for token_id in (tokenizer.vocab_size, 10**6, -1):
        assert tokenizer.token_bytes(token_id) == b""
        assert tokenizer.decode([token_id]) == ""
        assert tokenizer.token_text(token_id) == ""


@pytest.mark.parametrize("gone", [("Q",), ("Q", "Z", "0"), ("Q", "Ġworld")])
def test_ids_may_be_left_out_of_a_vocabulary(gone: tuple[str, ...]) -> None:
    """LOAD-08: a vocabulary with fewer tokens than its last id lost the last ones: they were never
    drawn, and read as nothing.
    """
    data = json.loads(byte_level_backend().to_str())
    vocab: dict[str, int] = data["model"]["vocab"]
    data["model"]["merges"] = [
        pair for pair in data["model"]["merges"] if "".join(pair) not in gone
    ]
    for token in gone:
        del vocab[token]
    tokenizer = Tokenizer(Backend.from_str(json.dumps(data)))
    assert tokenizer.vocab_size == max(vocab.values()) + 1 > len(vocab)
    assert tokenizer.decode(tokenizer.encode("hello, 😀 world")) == "hello, 😀 world"
    assert tokenizer.token_bytes(BYTE_LEVEL.vocab_size - 1) == b"\xf0\x9f"


def test_bytes_and_text_of_one_token() -> None:
    """STR-03: exact bytes for logprobs, replacement characters only in text."""
    emoji = BYTE_LEVEL.encode("😀")
    assert [BYTE_LEVEL.token_bytes(i) for i in emoji] == [b"\xf0\x9f", b"\x98", b"\x80"]
    assert [BYTE_LEVEL.token_text(i) for i in emoji] == ["\ufffd"] * 3
    assert BYTE_LEVEL.token_bytes(EOS_ID) == IM_END.encode()


def test_only_a_special_tokens_exact_text_has_its_id() -> None:
    assert BYTE_LEVEL.special_id(IM_END) == EOS_ID
    for text in ("hello", IM_END + " ", IM_END[:-1], ""):
        assert BYTE_LEVEL.special_id(text) is None
    assert (BYTE_LEVEL.bos_token_id, BYTE_LEVEL.eos_token_id) == (BOS_ID, EOS_ID)
    assert BYTE_LEVEL.special_tokens["pad_token"] == EOT


def test_special_tokens_named_by_id_reach_the_template() -> None:
    assert SENTENCEPIECE.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}
    assert SENTENCEPIECE.bos_token_id == 1


def make_metaspace() -> Backend:
    """The decoder that newer conversions of SentencePiece models use."""
    pieces = {piece: i for i, piece in enumerate(("<unk>", "▁", "a", "b", "▁a"))}
    backend = Backend(models.BPE(pieces, [("▁", "a")], unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    backend.decoder = decoders.Metaspace(prepend_scheme="first")
    return backend


def make_words() -> Backend:
    backend = Backend(models.WordLevel({"a": 0, "b": 1, "[UNK]": 2}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return backend


@pytest.mark.parametrize("make", [make_metaspace, make_words])
def test_decoders_of_other_kinds_agree_with_the_library(make: Callable[[], Backend]) -> None:
    tokenizer = Tokenizer(make())
    ids = tokenizer.encode("a b a")
    assert tokenizer.decode(ids) == tokenizer._backend.decode(ids) == "a b a"


def test_an_added_token_that_takes_a_space_along_gives_it_back() -> None:
    """Tokens added to Llama 2's kind of tokenizer are looked for in text that has been marked."""
    backend = sentencepiece()._backend
    backend.add_tokens([AddedToken("<tool>", normalized=True)])
    backend.add_special_tokens([AddedToken("<end>", normalized=True)])
    tokenizer = Tokenizer(backend)
    ids = tokenizer.encode("a <tool> a", add_special_tokens=False)
    assert tokenizer.token_id("<tool>") in ids
    assert tokenizer.decode(ids) == backend.decode(ids) == "a <tool> a"
    assert "".join(map(tokenizer.detokenizer().push, ids)) == "a <tool> a"
    assert tokenizer.special_texts[tokenizer.special_id("<end>") or -1] == "<end>"


def test_unknown_decoder_is_refused() -> None:
    backend = make_words()
    backend.decoder = decoders.CTC()
    with pytest.raises(ModelLoadError, match="CTC"):
        Tokenizer(backend)


def test_damaged_tokenizer_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0", "model": {}}')
    with pytest.raises(ModelLoadError, match=r"tokenizer\.json"):
        Tokenizer.from_spec(TokenizerSpec.from_folder(tmp_path))


def test_folder_round_trip(tmp_path: Path) -> None:
    """CHAT-02: folder to prompt, with BOS as a template variable."""
    byte_level_backend(before=(IM_START,)).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "chat_template.jinja").write_text("{{ bos_token }}{{ messages[0].content }}")
    (tmp_path / "tokenizer_config.json").write_text(f'{{"bos_token": "{IM_START}"}}')
    tokenizer = Tokenizer.from_spec(TokenizerSpec.from_folder(tmp_path))
    prompt = tokenizer.chat_template.render([{"role": "user", "content": "hello"}])
    assert tokenizer.encode(prompt, add_special_tokens=False) == tokenizer.encode("hello")


LISTED = {"1": {"content": IM_START, "special": True}, "2": {"content": IM_END, "special": True}}


@pytest.mark.parametrize(
    "files",
    [
        {"tokenizer_config.json": {"eos_token": IM_END, "bos_token": {"content": IM_START}}},
        {"special_tokens_map.json": {"eos_token": IM_END, "bos_token": {"content": IM_START}}},
        {"tokenizer_config.json": {"additional_special_tokens": [IM_START, IM_END]}},
        {"tokenizer_config.json": {"extra_special_tokens": {"a": IM_START, "b": IM_END}}},
        {"tokenizer_config.json": {"model_specific_special_tokens": {"a": IM_START, "b": IM_END}}},
        {"tokenizer_config.json": {"added_tokens_decoder": LISTED}},
        {
            "added_tokens.json": {IM_START: 1, IM_END: 2},
            "tokenizer_config.json": {"additional_special_tokens": [IM_END, IM_START]},
        },
    ],
    ids=str,
)
def test_tokens_that_other_files_name_match_in_text(tmp_path: Path, files: dict[str, Any]) -> None:
    """As in transformers. Their pieces, as which a chat's marks would reach the model, are nothing
    that it was trained on.
    """
    content = json.loads(byte_level_backend().to_str())
    content["added_tokens"] = []  # only entries of the vocabulary, as any word
    for name, value in {"tokenizer.json": content, **files}.items():
        (tmp_path / name).write_text(json.dumps(value))
    tokenizer = Tokenizer.from_spec(TokenizerSpec.from_folder(tmp_path))
    text = f"{IM_START}hello{IM_END}"
    assert tokenizer.encode(text) == byte_level().encode(text)
    assert tokenizer.special_ids >= {BOS_ID, EOS_ID}
    assert tokenizer.vocab_size == byte_level().vocab_size


def test_a_new_token_of_another_file_comes_last(tmp_path: Path) -> None:
    backend = byte_level_backend()
    backend.save(str(tmp_path / "tokenizer.json"))
    size = backend.get_vocab_size()
    listed = {str(size + 1): {"content": "<b>", "lstrip": True}, str(size): {"content": "<a>"}}
    config = {"added_tokens_decoder": {**listed, "odd": 5, "7": "odd"}, "eos_token": ""}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer.from_spec(TokenizerSpec.from_folder(tmp_path))
    assert tokenizer.encode("<a>  <b>") == [size, size + 1]
    assert tokenizer.decode([size, size + 1]) == "<a><b>"


def test_what_other_files_call_special_is_hidden_in_answers(tmp_path: Path) -> None:
    """Marks of a fine-tuned chat, added as ordinary tokens; but not an ordinary one for padding."""
    content = json.loads(byte_level_backend().to_str())
    for token in content["added_tokens"]:
        token["special"] = False
    config = {"eos_token": IM_END, "additional_special_tokens": [IM_START], "pad_token": "!"}
    for name, value in {"tokenizer.json": content, "tokenizer_config.json": config}.items():
        (tmp_path / name).write_text(json.dumps(value))
    tokenizer = Tokenizer.from_spec(TokenizerSpec.from_folder(tmp_path))
    ids = tokenizer.encode(f"{IM_START}hello!{IM_END}{EOT}")
    assert tokenizer.decode(ids) == f"hello!{EOT}"
    assert tokenizer.special_ids == {BOS_ID, EOS_ID}
