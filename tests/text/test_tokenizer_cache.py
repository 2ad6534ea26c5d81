"""The cache of built tokenizers: hit, damage, staleness, and folders that cannot be written."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest
from tiny_tokenizers import byte_level_backend, gguf_byte_level, gguf_sentencepiece

from tinyserve.text import tokenizer_cache
from tinyserve.text.tokenizer import Tokenizer
from tinyserve.text.tokenizer_spec import GGUFVocab, TokenizerSpec

SAMPLE = "<|im_start|>hello world 123 é 😀\n"


class CountingVocab:
    """A vocabulary that counts how often it is read."""

    def __init__(self, vocab: GGUFVocab) -> None:
        self.vocab = vocab
        self.num_reads = 0

    def __call__(self) -> GGUFVocab:
        self.num_reads += 1
        return self.vocab


def load(vocab: CountingVocab, cache: Path, fingerprint: str | None = "f") -> Tokenizer:
    spec = TokenizerSpec(gguf_vocab=vocab, special_token_ids={"bos_token": 1})
    return Tokenizer.from_spec(spec, cache, fingerprint=fingerprint)


def entries(cache: Path) -> list[Path]:
    return sorted((cache / "tokenizers").iterdir())


@pytest.mark.parametrize("vocab", [gguf_byte_level(), gguf_sentencepiece()], ids=["bpe", "spm"])
def test_second_start_reads_no_vocabulary(tmp_path: Path, vocab: GGUFVocab) -> None:
    counting = CountingVocab(vocab)
    first, second = load(counting, tmp_path), load(counting, tmp_path)
    assert counting.num_reads == 1
    ids = first.encode(SAMPLE)
    assert second.encode(SAMPLE) == ids
    assert second.decode(ids) == first.decode(ids)
    assert second.special_ids == first.special_ids
    assert [path.suffix for path in entries(tmp_path)] == [".json"]


def test_other_files_other_entry(tmp_path: Path) -> None:
    vocab = CountingVocab(gguf_byte_level())
    load(vocab, tmp_path, "one")
    load(vocab, tmp_path, "two")
    assert vocab.num_reads == 2
    assert len(entries(tmp_path)) == 2


def test_no_fingerprint_no_cache(tmp_path: Path) -> None:
    load(CountingVocab(gguf_byte_level()), tmp_path, None)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "directory"])
def test_damaged_entry_is_rebuilt(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    vocab = CountingVocab(gguf_byte_level())
    ids = load(vocab, tmp_path).encode(SAMPLE)
    (path,) = entries(tmp_path)
    data = path.read_bytes()
    if damage == "truncated":
        path.write_bytes(data[: len(data) // 2])
    elif damage == "flipped":
        path.write_bytes(data.replace(b'"he"', b'"hE"'))
    elif damage == "empty":
        path.write_bytes(b"")
    else:
        path.unlink()
        path.mkdir()
    with caplog.at_level(logging.INFO):
        assert load(vocab, tmp_path).encode(SAMPLE) == ids
    assert vocab.num_reads == 2
    assert "building it again" in caplog.text
    if damage != "directory":
        load(vocab, tmp_path)
        assert vocab.num_reads == 2


def test_unwritable_cache_costs_only_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("not a folder")
    vocab = CountingVocab(gguf_byte_level())
    with caplog.at_level(logging.WARNING):
        assert load(vocab, blocker).encode("hello")
    assert "cannot write the tokenizer cache" in caplog.text


def test_entries_that_nobody_uses_any_more_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each retrained model has an entry of its own, of several megabytes."""
    vocab = CountingVocab(gguf_byte_level())
    load(vocab, tmp_path, "used")
    (used,) = entries(tmp_path)
    monkeypatch.setattr(tokenizer_cache, "KEPT", 2 * used.stat().st_size)
    for index in range(3):
        for age, path in enumerate(entries(tmp_path)):
            os.utime(path, (age, age))
        load(vocab, tmp_path, "used")
        load(vocab, tmp_path, f"other {index}")
    assert len(entries(tmp_path)) == 2
    assert used in entries(tmp_path)
    assert vocab.num_reads == 4


def test_changed_tokenizer_file_is_noticed(tmp_path: Path) -> None:
    """A folder's tokenizer.json counts by its size and time, whatever the caller's fingerprint."""
    path = tmp_path / "tokenizer.json"
    byte_level_backend().save(str(path))
    spec = TokenizerSpec.from_folder(tmp_path)
    plain = Tokenizer.from_spec(spec, tmp_path, fingerprint="f").encode("hello")
    byte_level_backend(before=("<|im_start|>",)).save(str(path))
    os.utime(path, ns=(1, 1))
    assert Tokenizer.from_spec(spec, tmp_path, fingerprint="f").encode("hello") == [1, *plain]
