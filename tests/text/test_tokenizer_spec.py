"""`TokenizerSpec.from_folder`: the places where checkpoints keep tokenizers and templates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tinyserve.errors import ModelLoadError
from tinyserve.text.tokenizer_spec import GGUFVocab, TokenizerSpec


def write(folder: Path, **files: Any) -> Path:
    """Files by name, with "__" for the dot; strings as they are, anything else as JSON."""
    (folder / "tokenizer.json").write_text("{}")
    for name, value in files.items():
        text = value if isinstance(value, str) else json.dumps(value)
        (folder / name.replace("__", ".")).write_text(text, encoding="utf-8")
    return folder


def test_template_in_tokenizer_config(tmp_path: Path) -> None:
    """CHAT-02: the classic place."""
    spec = TokenizerSpec.from_folder(write(tmp_path, tokenizer_config__json={"chat_template": "A"}))
    assert (spec.chat_template, spec.named_templates) == ("A", {})
    assert spec.tokenizer_json == tmp_path / "tokenizer.json"


def test_template_in_its_own_file(tmp_path: Path) -> None:
    """CHAT-02: chat_template.jinja alone, and beside a stale one in tokenizer_config.json."""
    write(tmp_path, chat_template__jinja="é{{ x }}")
    assert TokenizerSpec.from_folder(tmp_path).chat_template == "é{{ x }}"
    write(tmp_path, tokenizer_config__json={"chat_template": "stale"})
    assert TokenizerSpec.from_folder(tmp_path).chat_template == "é{{ x }}"


def test_template_in_json_file(tmp_path: Path) -> None:
    """CHAT-02: chat_template.json holds an object with the template."""
    write(tmp_path, chat_template__json={"chat_template": "J"})
    assert TokenizerSpec.from_folder(tmp_path).chat_template == "J"


@pytest.mark.parametrize(
    "value",
    [
        [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}],
        {"default": "D", "tool_use": "T"},
    ],
)
def test_named_templates(tmp_path: Path, value: Any) -> None:
    """CHAT-02: a list (or an object) of named templates."""
    write(tmp_path, tokenizer_config__json={"chat_template": value})
    spec = TokenizerSpec.from_folder(tmp_path)
    assert (spec.chat_template, spec.named_templates) == ("D", {"tool_use": "T"})


def test_additional_templates_folder(tmp_path: Path) -> None:
    """CHAT-02: the newest layout keeps named templates in a folder."""
    write(tmp_path, chat_template__jinja="D")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("T")
    spec = TokenizerSpec.from_folder(tmp_path)
    assert (spec.chat_template, spec.named_templates) == ("D", {"tool_use": "T"})


def test_special_tokens_as_string_or_object(tmp_path: Path) -> None:
    write(
        tmp_path,
        special_tokens_map__json={"bos_token": "old", "unk_token": {"content": "<unk>"}},
        tokenizer_config__json={
            "bos_token": {"content": "<s>", "special": True},
            "eos_token": "</s>",
            "pad_token": None,
            "add_bos_token": True,
            "add_eos_token": True,
        },
    )
    spec = TokenizerSpec.from_folder(tmp_path)
    assert spec.special_tokens == {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    assert spec.add_bos is spec.add_eos is True


def test_the_rules_are_left_open_where_the_config_is_silent(tmp_path: Path) -> None:
    spec = TokenizerSpec.from_folder(write(tmp_path))
    assert spec.add_bos is spec.add_eos is None


def test_missing_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"no tokenizer\.json"):
        TokenizerSpec.from_folder(tmp_path)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("tokenizer.model", "a SentencePiece tokenizer.model"),
        ("vocab.json", "a byte-pair vocab.json"),
        ("tekken.json", "a Mistral tekken.json"),
    ],
)
def test_another_vocabulary_alone_says_how_to_convert(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / name).write_bytes(b"\n\x0e")
    with pytest.raises(ModelLoadError, match=rf"only {said}.*convert"):
        TokenizerSpec.from_folder(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        pytest.param("[" * 100_000, id="deep"),
        '{"chat_template": "\\udcff',
        '{"bos_token": "\\udc80"}',
    ],
)
def test_damaged_config_is_named(tmp_path: Path, content: str) -> None:
    write(tmp_path, tokenizer_config__json=content)
    with pytest.raises(ModelLoadError, match=r"tokenizer_config\.json"):
        TokenizerSpec.from_folder(tmp_path)


def test_vocabulary_is_read_only_when_needed() -> None:
    calls = []

    def read() -> GGUFVocab:
        calls.append(1)
        return GGUFVocab("gpt2", ("a",))

    spec = TokenizerSpec(gguf_vocab=read, add_bos=False)
    assert not calls
    assert spec.load_vocab().tokens == ("a",)
    assert calls == [1]


def test_explicit_template_replaces_all() -> None:
    """CHAT-02: the flag wins over every template of the model, named ones too."""
    spec = TokenizerSpec(chat_template="D", named_templates={"tool_use": "T"})
    changed = spec.with_chat_template("X")
    assert (changed.chat_template, changed.named_templates) == ("X", {})
