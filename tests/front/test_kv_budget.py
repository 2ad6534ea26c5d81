"""Sizing the KV-cache from a memory budget, and what is resolved when an engine is built."""

from __future__ import annotations

import dataclasses

import pytest

from tinyserve.config import CacheConfig, SchedulerConfig, TinyServeConfig
from tinyserve.engine.resolve import resolve
from tinyserve.errors import ConfigError
from tinyserve.kv_budget import block_bytes
from tinyserve.models.config import ModelConfig, RopeConfig
from tinyserve.models.synthetic import synthetic_checkpoint

QWEN = ModelConfig(
    architecture="Qwen2ForCausalLM",
    vocab_size=151936,
    hidden_size=896,
    intermediate_size=4864,
    num_layers=24,
    num_heads=14,
    num_kv_heads=2,
    head_dim=64,
    rms_norm_eps=1e-6,
    rope=RopeConfig(),
    max_position_embeddings=32768,
    tie_word_embeddings=True,
)


def test_block_bytes() -> None:
    assert block_bytes(QWEN, 16, "f32") == 384 * 1024
    assert block_bytes(QWEN, 16, "f16") == block_bytes(QWEN, 16, "bf16") == 192 * 1024
    assert block_bytes(QWEN, 16, "int8") == 96 * 1024 + 2 * 24 * 16 * 2 * 4


@pytest.mark.parametrize("dtype", ["f32", "f16", "int8"])
def test_a_budget_is_filled_and_kept(dtype: str) -> None:
    cache = CacheConfig.from_memory_budget(QWEN, kv_cache_gb=1.5, kv_cache_dtype=dtype)
    one = block_bytes(QWEN, 16, dtype)
    assert cache.num_blocks is not None
    assert cache.num_blocks * one <= 1.5 * 2**30 < (cache.num_blocks + 1) * one


def test_other_settings_pass_through() -> None:
    cache = CacheConfig.from_memory_budget(
        QWEN, kv_cache_gb=1, block_size=32, num_swap_blocks=5, enable_prefix_caching=False
    )
    assert (cache.block_size, cache.num_swap_blocks) == (32, 5)
    assert cache.num_blocks == 2**30 // (768 * 1024)


def test_a_model_by_name() -> None:
    by_name = CacheConfig.from_memory_budget("synthetic", kv_cache_gb=0.5)
    given = CacheConfig.from_memory_budget(synthetic_checkpoint().config, kv_cache_gb=0.5)
    assert by_name == given


def test_mem_01_too_small_says_what_is_needed_and_what_fits() -> None:
    """MEM-01."""
    with pytest.raises(ConfigError) as caught:
        CacheConfig.from_memory_budget(QWEN, kv_cache_gb=0.01)
    assert "needs 96.0 MiB" in str(caught.value)
    assert "at most 432" in str(caught.value)
    fitting = CacheConfig.from_memory_budget(QWEN, kv_cache_gb=0.01, max_model_len=432)
    assert fitting.num_blocks == 27


@pytest.mark.parametrize("budget", [0, -1, "1", True, float("nan")])
def test_budgets_that_are_none(budget: object) -> None:
    with pytest.raises(ConfigError, match="kv_cache_gb"):
        CacheConfig.from_memory_budget(QWEN, kv_cache_gb=budget)  # type: ignore[arg-type]


def config_of(**sections: object) -> TinyServeConfig:
    return TinyServeConfig.from_dict(sections)  # type: ignore[arg-type]


def test_default_context_shrinks_to_a_smaller_model() -> None:
    checkpoint = synthetic_checkpoint()  # 2048 positions
    resolved, notes = resolve(config_of(), checkpoint)
    assert resolved.scheduler.max_model_len == 2048
    assert any("max_model_len" in note for note in notes)
    resolved, _ = resolve(config_of(scheduler={"max_model_len": None}), checkpoint)
    assert resolved.scheduler.max_model_len == 2048
    resolved, _ = resolve(config_of(scheduler={"max_model_len": 100}), checkpoint)
    assert resolved.scheduler.max_model_len == 100


def test_asking_for_more_context_than_the_model_has() -> None:
    with pytest.raises(ConfigError, match=r"scheduler\.max_model_len is 3000.* 2048"):
        resolve(config_of(scheduler={"max_model_len": 3000}), synthetic_checkpoint())


def test_blocks_from_memory_and_from_what_is_free() -> None:
    checkpoint = synthetic_checkpoint()
    one = block_bytes(checkpoint.config, 16, "f32")
    resolved, notes = resolve(config_of(cache={"kv_cache_memory": "10MiB"}), checkpoint)
    assert resolved.cache.num_blocks == (10 << 20) // one
    assert any("num_blocks" in note for note in notes)
    resolved, _ = resolve(config_of(cache={"num_blocks": "auto"}), checkpoint)
    assert resolved.cache.num_blocks == 2048 // 16 * 16  # every seat at full length


def test_more_blocks_than_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """MEM-01."""
    monkeypatch.setattr("tinyserve.engine.resolve.total_memory", lambda: 1 << 20)
    with pytest.raises(ConfigError, match=r"cache\.num_blocks: 2048 blocks take .* 1\.0 MiB"):
        resolve(config_of(), synthetic_checkpoint())
    with pytest.raises(ConfigError, match=r"cache\.kv_cache_memory: .* take .* 1\.0 MiB"):
        resolve(config_of(cache={"kv_cache_memory": "9GiB"}), synthetic_checkpoint())


@pytest.mark.parametrize(
    ("options", "most"),
    [({}, 128), ({"quantization": "int8"}, 512), ({"dtype": "bf16", "quantization": "int4"}, 576)],
)
def test_blocks_that_do_not_fit_beside_the_weights_are_refused(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, str], most: int
) -> None:
    """MEM-01: the system would kill the process once the blocks are in use."""
    checkpoint = dataclasses.replace(synthetic_checkpoint(), stored_bytes=4 << 20)
    one = block_bytes(checkpoint.config, 16, "f32")
    assert one == 8 << 10
    monkeypatch.setattr("tinyserve.engine.resolve.total_memory", lambda: 5 << 20)
    model = {"kv_cache_dtype": "f32", **options}
    resolve(config_of(model=model, cache={"num_blocks": most}), checkpoint)
    with pytest.raises(ConfigError, match=rf"weights .* 5\.0 MiB; at most {most} .* {most * 16}$"):
        resolve(config_of(model=model, cache={"num_blocks": most + 1}), checkpoint)


def test_weights_alone_may_be_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """MEM-01."""
    checkpoint = dataclasses.replace(synthetic_checkpoint(), stored_bytes=4 << 20)
    monkeypatch.setattr("tinyserve.engine.resolve.total_memory", lambda: 3 << 20)
    with pytest.raises(ConfigError, match=r"weights 4\.0 MiB, .* 3\.0 MiB; a smaller model fits"):
        resolve(config_of(cache={"num_blocks": 1}), checkpoint)


def test_the_default_gives_way_to_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """MEM-01: what fits without them is what nobody has asked for."""
    checkpoint = dataclasses.replace(synthetic_checkpoint(), stored_bytes=5 << 20)
    for function in ("total_memory", "available_memory"):
        monkeypatch.setattr(f"tinyserve.engine.resolve.{function}", lambda: 20 << 20)
    resolved, notes = resolve(config_of(), checkpoint)
    assert resolved.cache.num_blocks == 7.5 * 2**20 // (8 << 10)
    assert any("num_blocks is 960 (7.5 MiB)" in note for note in notes)
    with pytest.raises(ConfigError, match="2047 blocks take"):
        resolve(config_of(cache={"num_blocks": 2047}), checkpoint)


def test_half_of_what_the_weights_leave_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """MEM-01."""
    checkpoint = dataclasses.replace(synthetic_checkpoint(), stored_bytes=4 << 20)
    monkeypatch.setattr("tinyserve.engine.resolve.available_memory", lambda: 8 << 20)
    resolved, _ = resolve(config_of(cache={"num_blocks": "auto"}), checkpoint)
    assert resolved.cache.num_blocks == (2 << 20) // block_bytes(checkpoint.config, 16, "f32")


def test_more_swap_blocks_than_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """MEM-01: of the default there are as many as fit."""
    few, many = {"num_blocks": 4}, {"num_blocks": 4, "num_swap_blocks": 2**31 - 1}
    monkeypatch.setattr("tinyserve.engine.resolve.total_memory", lambda: 1 << 20)
    with pytest.raises(ConfigError, match=r"cache\.num_swap_blocks 2147483647 takes .* 1\.0 MiB"):
        resolve(config_of(cache=many), synthetic_checkpoint())
    resolved, notes = resolve(config_of(cache=few), synthetic_checkpoint())
    assert resolved.cache.num_swap_blocks == 124
    assert any("num_swap_blocks is 124" in note for note in notes)
    checkpoint = dataclasses.replace(synthetic_checkpoint(), stored_bytes=1 << 19)
    resolve(config_of(cache={**few, "num_swap_blocks": 60}), checkpoint)
    with pytest.raises(ConfigError, match="at most 60 blocks fit"):
        resolve(config_of(cache={**few, "num_swap_blocks": 61}), checkpoint)


def test_a_pool_smaller_than_the_context_is_noted() -> None:
    _, notes = resolve(config_of(cache={"num_blocks": 4}), synthetic_checkpoint())
    assert any("holds 64 tokens" in note for note in notes)


def test_resolving_does_not_edit() -> None:
    before = config_of()
    resolve(before, synthetic_checkpoint())
    assert before == config_of()
    assert dataclasses.replace(SchedulerConfig(), max_model_len=None).max_model_len is None
