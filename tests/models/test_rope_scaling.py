"""Rope scaling (LOAD-04): both spellings, the context it allows, tables as in transformers."""

from __future__ import annotations

import dataclasses
import importlib.util
from typing import Any

import numpy as np
import pytest

from tinyserve.errors import ModelLoadError
from tinyserve.kernels.formats import F32
from tinyserve.models.config import RopeConfig
from tinyserve.models.hf_rope import max_positions, read_rope
from tinyserve.models.rope import inverse_frequencies, rope_table

HEAD_DIM = 64
SCALINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 3.0},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 1024,
    },
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 1024},
    "yarn-attention": {
        "factor": 4.0,
        "original_max_position_embeddings": 1024,
        "attention_factor": 1.25,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
    },
    "yarn-mscale": {
        "factor": 40.0,
        "original_max_position_embeddings": 512,
        "mscale": 0.707,
        "mscale_all_dim": 1.0,
        "truncate": False,
    },
}
needs_transformers = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None,
    reason="transformers is not installed: rope tables are NOT compared with its own",
)


def config_json(name: str, *, old_spelling: bool = False) -> dict[str, Any]:
    kind = name.partition("-")[0]
    data: dict[str, Any] = {"max_position_embeddings": 4096, "head_dim": HEAD_DIM}
    if old_spelling:
        data["rope_theta"] = 500000.0
        data["rope_scaling"] = {"type": kind, **SCALINGS[name]} if SCALINGS[name] else None
    else:
        data["rope_parameters"] = {"rope_type": kind, "rope_theta": 500000.0, **SCALINGS[name]}
    return data


@needs_transformers
@pytest.mark.parametrize("name", SCALINGS)
def test_frequencies_are_those_of_transformers(name: str) -> None:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    data = config_json(name, old_spelling=True)
    reference = LlamaConfig(hidden_size=4 * HEAD_DIM, num_attention_heads=4, **data)
    expected = LlamaRotaryEmbedding(reference)
    rope = read_rope(data, "config.json")
    inv_freq, scale = inverse_frequencies(rope, HEAD_DIM, 4096)
    np.testing.assert_allclose(inv_freq, expected.inv_freq.numpy(), rtol=1e-6)
    assert scale == pytest.approx(expected.attention_scaling, rel=1e-12)


@needs_transformers
@pytest.mark.parametrize("name", SCALINGS)
def test_tables_are_those_of_transformers(name: str) -> None:
    import torch
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    data = config_json(name, old_spelling=True)
    reference = LlamaConfig(hidden_size=4 * HEAD_DIM, num_attention_heads=4, **data)
    positions = torch.arange(8)[None]  # its f32 angles are off by position x 6e-8
    cos, sin = LlamaRotaryEmbedding(reference)(torch.zeros(1), positions)
    got_cos, got_sin = rope_table(read_rope(data, "config.json"), HEAD_DIM, 4096)
    assert got_cos.dtype == got_sin.dtype == np.float32
    assert got_cos.shape == (4096, HEAD_DIM // 2)
    for got, expected in ((got_cos, cos), (got_sin, sin)):
        first, second = np.split(expected[0].numpy(), 2, axis=1)
        np.testing.assert_allclose(got[:8], first, atol=1e-6)
        np.testing.assert_allclose(got[:8], second, atol=1e-6)


@needs_transformers
def test_dynamic_scaling_of_a_longer_context_is_that_of_transformers() -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    data = config_json("dynamic", old_spelling=True)
    reference = LlamaConfig(hidden_size=4 * HEAD_DIM, num_attention_heads=4, **data)
    expected, _ = ROPE_INIT_FUNCTIONS["dynamic"](reference, "cpu", seq_len=10000)
    got, _ = inverse_frequencies(read_rope(data, "config.json"), HEAD_DIM, 10000)
    np.testing.assert_allclose(got, expected.numpy(), rtol=1e-6)


@pytest.mark.parametrize("name", SCALINGS)
def test_both_spellings_mean_the_same(name: str) -> None:
    new = read_rope(config_json(name), "config.json")
    assert new == read_rope(config_json(name, old_spelling=True), "config.json")
    assert new.theta == 500000.0
    assert new.kind == {"default": "none"}.get(name, name.partition("-")[0])


def test_scaling_added_by_hand_wins_over_what_was_saved() -> None:
    """Model cards say `rope_scaling`; transformers 5 has saved `rope_parameters` beside it."""
    data = config_json("default")
    data["rope_scaling"] = {"type": "yarn", **SCALINGS["yarn"]}
    assert read_rope(data, "config.json") == read_rope(config_json("yarn"), "config.json")
    data["max_position_embeddings"] = 1024
    assert max_positions(data) == 4096


@pytest.mark.parametrize(
    ("name", "expected"),
    [("default", 4096), ("linear", 16384), ("dynamic", 12288), ("llama3", 4096), ("yarn", 4096)],
)
def test_the_factor_lengthens_the_context_where_the_kind_says_so(name: str, expected: int) -> None:
    assert max_positions(config_json(name)) == expected


def test_yarn_beyond_the_stated_context() -> None:
    data = config_json("yarn")
    data["max_position_embeddings"] = 1024  # as Qwen2.5's instructions have it
    assert max_positions(data) == 4096


def test_yarns_factor_may_be_left_to_the_lengths() -> None:
    data = config_json("yarn")
    data["rope_parameters"]["factor"] = None
    assert read_rope(data, "config.json").factor == 4.0


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"rope_type": "longrope", "factor": 2.0}, "'longrope' is not supported.*none, linear"),
        ({"rope_type": "linear"}, "'linear' needs 'factor'"),
        ({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0}, "'high_freq_factor'"),
        ({"full": {"rope_type": "default"}, "slide": {"rope_theta": 1.0}}, "differ by layer"),
    ],
)
def test_what_is_wrong_is_named(parameters: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelLoadError, match=said):
        read_rope({"rope_parameters": parameters}, "config.json")


def test_parameters_for_each_layer_type_may_agree() -> None:
    data = config_json("linear")
    same = data["rope_parameters"]
    data["rope_parameters"] = {"full_attention": same, "sliding_attention": dict(same)}
    assert read_rope(data, "config.json").factor == 4.0


def test_a_position_is_the_same_in_every_table_length() -> None:
    rope = read_rope(config_json("yarn"), "config.json")
    short, long = rope_table(rope, HEAD_DIM, 10), rope_table(rope, HEAD_DIM, 1000)
    np.testing.assert_array_equal(short[0], long[0][:10])
    np.testing.assert_array_equal(short[1], long[1][:10])


@pytest.mark.parametrize("kind", ["none", "yarn", "dynamic"])
def test_the_beginning_of_a_table_is_that_of_the_whole(kind: str) -> None:
    """A KV-cache that holds less than the context needs no more; dynamic scales by the context."""
    rope = RopeConfig(kind=kind, factor=4.0, original_max_position=64)
    part, whole = rope_table(rope, HEAD_DIM, 1000, 10), rope_table(rope, HEAD_DIM, 1000)
    for cut, table in zip(part, whole, strict=True):
        np.testing.assert_array_equal(cut, table[:10])


def test_angles_are_rounded_once() -> None:
    cos, sin = rope_table(RopeConfig(), HEAD_DIM, 9000)
    angle = 8999 * 10000.0 ** (-2 * np.arange(32) / 64)
    np.testing.assert_array_equal(cos[8999], np.cos(angle).astype(np.float32))
    np.testing.assert_array_equal(sin[8999], np.sin(angle).astype(np.float32))


def test_a_table_refuses_what_it_cannot_make() -> None:
    with pytest.raises(ModelLoadError, match="'strange'"):
        rope_table(RopeConfig(kind="strange"), HEAD_DIM, 4)
    with pytest.raises(ModelLoadError, match="even head_dim"):
        rope_table(RopeConfig(), 15, 4)
    with pytest.raises(ModelLoadError, match="original_max_position"):
        rope_table(RopeConfig(kind="yarn", factor=2.0), HEAD_DIM, 4)
    with pytest.raises(ModelLoadError, match="3 factors"):
        rope_table(dataclasses.replace(RopeConfig(), freq_factors=(1.0,) * 3), HEAD_DIM, 4)


@pytest.mark.parametrize(
    ("head_dim", "fields"),
    [
        (HEAD_DIM, {"kind": "yarn", "theta": 1.0, "factor": 2.0, "original_max_position": 64}),
        (HEAD_DIM, {"kind": "yarn", "factor": 1e-320, "original_max_position": 64}),
        (HEAD_DIM, {"kind": "yarn", "attention_factor": 1e300, "original_max_position": 64}),
        (HEAD_DIM, {"kind": "yarn", "beta_fast": 1e308, "original_max_position": 64}),
        (2, {"kind": "dynamic", "factor": 2.0, "original_max_position": 2}),
        (HEAD_DIM, {"kind": "dynamic", "factor": 1e300, "original_max_position": 2}),
        (HEAD_DIM, {"kind": "linear", "factor": 1e-320}),
        (HEAD_DIM, {"freq_factors": (0.0,) * (HEAD_DIM // 2)}),
    ],
    ids=str,
)
def test_parameters_without_angles_are_refused(head_dim: int, fields: dict[str, Any]) -> None:
    """Divisions by zero and overflows end as one error, not as NaN in every logit."""
    config = RopeConfig(**fields)
    with pytest.raises(ModelLoadError, match=config.kind):
        rope_table(config, head_dim, 64)


def test_bands_that_meet_leave_nothing_to_blend() -> None:
    """llama3 with both factors alike, as transformers takes it: kept or divided."""
    fields = {"kind": "llama3", "factor": 4.0, "low_freq_factor": 3.0, "high_freq_factor": 3.0}
    config = RopeConfig(original_max_position=64, **fields)

    def table(config: RopeConfig) -> tuple[F32, F32]:
        return rope_table(config, HEAD_DIM, 2)

    plain, kept = (np.arctan2(sin[1], cos[1]) for cos, sin in map(table, (RopeConfig(), config)))
    assert set(np.round(plain / kept, 3)) == {1.0, 4.0}


@pytest.mark.parametrize("kind", ["linear", "dynamic", "yarn"])
def test_a_length_beyond_all_numbers(kind: str) -> None:
    scaling = {"rope_type": kind, "factor": 1e308}
    assert max_positions({"max_position_embeddings": 64, "rope_parameters": scaling}) == 10**15
