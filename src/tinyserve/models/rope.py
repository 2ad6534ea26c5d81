"""Rotary tables: cos and sin of every position, from a `RopeConfig`. Knows no model and no kernel.

Invariants: frequencies and angles are computed in float64 and rounded to f32 once, to the same bits
on every machine (`exact_math.py`); a table depends only on its arguments, never on the length of a
running sequence (`dynamic` is resolved once, from `max_positions`), so positions mean the same in
every request and a prefix can be cached.

Sources: RoFormer (Su et al. 2021); YaRN (Peng et al. 2023); the frequency bands of Llama 3.1's
release.
"""

from __future__ import annotations

import math

import numpy as np

from tinyserve.errors import ModelLoadError
from tinyserve.kernels.formats import F32
from tinyserve.models.config import RopeConfig
from tinyserve.models.exact_math import F64, cos_sin, log, power

KINDS = ("none", "linear", "llama3", "yarn", "dynamic")


def rope_table(
    config: RopeConfig, head_dim: int, max_positions: int, num_rows: int | None = None
) -> tuple[F32, F32]:
    """cos and sin, f32 `[max_positions, head_dim / 2]` each, with YaRN's factor multiplied in; of
    the first `num_rows` positions where that is given.

    Column i belongs to dimensions i and i + head_dim / 2 of a head (Hugging Face's half-split
    order). Raises ModelLoadError for parameters that give no angles.
    """
    try:
        with np.errstate(all="ignore"):
            inv_freq, scale = inverse_frequencies(config, head_dim, max_positions)
            positions = np.arange(num_rows or max_positions, dtype=np.float64)
            angles = positions[:, None] * inv_freq[None, :]
            cos, sin = ((turns * scale).astype(np.float32) for turns in cos_sin(angles))
    except (ArithmeticError, ValueError) as error:  # divisions by zero, logarithms of nothing
        raise ModelLoadError(f"rope scaling {config.kind!r} makes no sense: {error}") from None
    if not np.isfinite(cos[-1]).all() or not np.isfinite(sin[-1]).all():
        raise ModelLoadError(f"rope scaling {config.kind!r}: its parameters give no finite angles")
    return cos, sin


def inverse_frequencies(config: RopeConfig, head_dim: int, max_positions: int) -> tuple[F64, float]:
    """Radians per position of each pair, float64 `[head_dim / 2]`, and the factor on cos and sin.

    Raises ModelLoadError where the kind is unknown or its parameters are missing.
    """
    if head_dim % 2:
        raise ModelLoadError(f"rotary embedding needs an even head_dim, got {head_dim}")
    scale = 1.0
    inv_freq = _plain(config.theta, head_dim)
    if config.kind == "linear":
        inv_freq = inv_freq / config.factor
    elif config.kind == "llama3":
        inv_freq = _llama3(config, inv_freq)
    elif config.kind == "yarn":
        inv_freq, scale = _yarn(config, inv_freq, head_dim), _yarn_attention_factor(config)
    elif config.kind == "dynamic":
        inv_freq = _plain(_dynamic_theta(config, head_dim, max_positions), head_dim)
    elif config.kind != "none":
        raise ModelLoadError(f"unknown rope scaling {config.kind!r}; supported: {', '.join(KINDS)}")
    if config.freq_factors is not None:
        inv_freq = _divide_by_factors(inv_freq, config.freq_factors)
    return inv_freq, scale


def _plain(theta: float, head_dim: int) -> F64:
    return np.array([1.0 / power(theta, i / head_dim) for i in range(0, head_dim, 2)])


def _divide_by_factors(inv_freq: F64, factors: tuple[float, ...]) -> F64:
    if len(factors) != inv_freq.size:
        raise ModelLoadError(
            f"rope_freqs has {len(factors)} factors, a head has {inv_freq.size} pairs"
        )
    return inv_freq / np.asarray(factors, dtype=np.float64)


def _llama3(config: RopeConfig, inv_freq: F64) -> F64:
    """Long wavelengths are divided by `factor`, short ones kept, those between blended."""
    original = _original_length(config)
    turns = original * inv_freq / (2 * math.pi)  # full turns within the original context
    low, high = config.low_freq_factor, config.high_freq_factor
    keep = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return inv_freq * keep + inv_freq / config.factor * (1.0 - keep)


def _yarn(config: RopeConfig, inv_freq: F64, head_dim: int) -> F64:
    """Interpolate slow pairs, keep fast ones; a ramp lies between `beta_slow` and `beta_fast`."""
    original = _original_length(config)

    def pair_with_turns(turns: float) -> float:
        wavelength_log = log(original / (turns * 2 * math.pi))
        return head_dim * wavelength_log / (2 * log(config.theta))

    low, high = pair_with_turns(config.beta_fast), pair_with_turns(config.beta_slow)
    if config.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001
    ramp = (np.arange(inv_freq.size, dtype=np.float64) - low) / (high - low)
    keep = 1.0 - np.clip(ramp, 0.0, 1.0)
    return inv_freq * keep + inv_freq / config.factor * (1.0 - keep)


def _yarn_attention_factor(config: RopeConfig) -> float:
    if config.attention_factor is not None:
        return config.attention_factor

    def mscale(weight: float) -> float:
        return 1.0 if config.factor <= 1 else 0.1 * weight * log(config.factor) + 1.0

    if config.mscale and config.mscale_all_dim:
        return mscale(config.mscale) / mscale(config.mscale_all_dim)
    return mscale(1.0)


def _dynamic_theta(config: RopeConfig, head_dim: int, max_positions: int) -> float:
    """NTK-aware base for the longest sequence that will be served."""
    original = _original_length(config)
    length = max(max_positions, original)
    stretch = config.factor * length / original - (config.factor - 1.0)
    return config.theta * power(stretch, head_dim / (head_dim - 2))


def _original_length(config: RopeConfig) -> int:
    if not config.original_max_position:
        raise ModelLoadError(f"rope scaling {config.kind!r} needs original_max_position_embeddings")
    return config.original_max_position
