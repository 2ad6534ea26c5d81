"""The synthetic model: made from a seed, in any order, and fit to be served."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinyserve.errors import ModelLoadError
from tinyserve.models.checkpoint import load_checkpoint
from tinyserve.models.synthetic import PRESETS, synthetic_checkpoint, synthetic_config
from tinyserve.models.synthetic_tokenizer import (
    BYTE_CHARACTERS,
    MIN_VOCAB_SIZE,
    tokenizer_spec,
    vocabulary,
)
from tinyserve.text.tokenizer import Tokenizer

NAME = "model.layers.1.mlp.up_proj.weight"
TOKENIZER = Tokenizer.from_spec(tokenizer_spec(512))


def test_the_seed_decides_every_bit() -> None:
    first, again, other = (synthetic_checkpoint(seed).tensors for seed in (5, 5, 6))
    again.weight("lm_head.weight")  # the order of reading does not matter
    np.testing.assert_array_equal(first.weight(NAME).data, again.weight(NAME).data)
    assert not np.array_equal(first.weight(NAME).data, other.weight(NAME).data)


def test_known_values_never_change() -> None:
    """Results committed elsewhere rest on them."""
    weight = synthetic_checkpoint().tensors.weight("model.layers.0.self_attn.q_proj.weight")
    known = [0.30549848, 0.05775741, 0.10964935]
    np.testing.assert_allclose(weight.data[0, :3], known, rtol=1e-6)


def test_weights_are_scaled_for_their_width() -> None:
    source = synthetic_checkpoint(hidden_size=256, tie_word_embeddings=True).tensors
    assert source.weight(NAME).data.std() == pytest.approx(1 / 16, rel=0.05)
    assert source.weight("model.embed_tokens.weight").data.std() == pytest.approx(2 / 16, rel=0.05)
    assert source.vector("model.norm.weight").mean() == pytest.approx(1, abs=0.05)
    assert "lm_head.weight" not in source.names()


def test_families_bring_their_biases_and_norms() -> None:
    assert synthetic_config(architecture="Qwen2ForCausalLM").qkv_bias
    assert synthetic_config(architecture="Qwen3ForCausalLM").qk_norm
    assert not synthetic_config(architecture="Qwen2ForCausalLM", qkv_bias=False).qkv_bias


def test_models_by_name() -> None:
    assert load_checkpoint("synthetic").config == synthetic_config("tiny")
    assert load_checkpoint("synthetic").name == "synthetic"
    large = load_checkpoint("synthetic:qwen2.5-0.5b")
    assert large.config.hidden_size == 896
    assert large.name == "synthetic:qwen2.5-0.5b"
    with pytest.raises(ModelLoadError, match=r"'huge'.*tiny, 135m"):
        load_checkpoint("synthetic:huge")


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_have_a_vocabulary_of_the_models_size(preset: str) -> None:
    size = synthetic_config(preset).vocab_size
    vocab = vocabulary(size)
    assert len(vocab.tokens) == len(set(vocab.tokens)) == len(vocab.token_types) == size
    known = set(vocab.tokens)
    assert all(part in known for merge in vocab.merges[:2000] for part in merge.split(" "))


def test_a_larger_vocabulary_begins_with_the_smaller() -> None:
    small, large = vocabulary(300), vocabulary(2000)
    assert large.tokens[:300] == small.tokens
    assert large.merges[: len(small.merges)] == small.merges
    assert vocabulary(MIN_VOCAB_SIZE).merges == ()
    with pytest.raises(ValueError, match="below"):
        vocabulary(MIN_VOCAB_SIZE - 1)


def test_the_byte_characters_are_those_of_the_library() -> None:
    from tokenizers.pre_tokenizers import ByteLevel

    assert sorted(BYTE_CHARACTERS) == sorted(ByteLevel.alphabet())


@settings(max_examples=50)
@given(st.text(max_size=40))
def test_any_text_survives_the_tokenizer(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text), skip_special_tokens=False) == text


def test_common_words_are_single_tokens() -> None:
    assert len(TOKENIZER.encode(" the people have water")) <= 6
    assert TOKENIZER.encode("<|im_start|>") == [1]
    assert TOKENIZER.vocab_size == 512


def test_every_shape_and_seed_has_contents_of_its_own() -> None:
    """By them servers tell their models apart, and these have no files."""
    made = [
        synthetic_checkpoint(),
        synthetic_checkpoint(1),
        synthetic_checkpoint(preset="135m"),
        synthetic_checkpoint(num_layers=1),
    ]
    assert len({checkpoint.contents for checkpoint in made}) == len(made)
    assert synthetic_checkpoint().contents == made[0].contents
