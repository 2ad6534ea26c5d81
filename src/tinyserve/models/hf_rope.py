"""Rope scaling as config.json spells it, old or new, and the context length it allows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tinyserve.errors import ModelLoadError
from tinyserve.models.config import RopeConfig
from tinyserve.models.hf_fields import Json, count, flag, number, section
from tinyserve.models.rope import KINDS

DEFAULT_MAX_POSITIONS = 2048
_DEFAULT_THETA = 10000.0
_FLOATS = (
    "low_freq_factor",
    "high_freq_factor",
    "beta_fast",
    "beta_slow",
    "attention_factor",
    "mscale",
    "mscale_all_dim",
)
_NEEDED = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor",),
}


def read_rope(data: Json, source: str) -> RopeConfig:
    """Raises ModelLoadError for an unknown kind or a missing parameter, naming it."""
    scaling = _scaling(data, source)
    kind = _kind(scaling)
    if kind not in KINDS:
        raise ModelLoadError(
            f"{source}: rope scaling {kind!r} is not supported (supported: {', '.join(KINDS)})"
        )
    part = number(data, "partial_rotary_factor", 1.0, source)
    if number(scaling, "partial_rotary_factor", part, source) != 1.0:
        raise ModelLoadError(f"{source}: partial_rotary_factor is not supported")
    theta = number(section(data, "rope_parameters", source), "rope_theta", _DEFAULT_THETA, source)
    theta = number(data, "rope_theta", theta, source)
    theta = number(scaling, "rope_theta", theta, source)
    if kind == "none":
        return RopeConfig(theta=theta)
    if kind == "yarn" and scaling.get("factor") is None and _original(scaling, data, source):
        # YaRN checkpoints may leave the factor to be read off the two lengths.
        scaling = {**scaling, "factor": _positions(data, source) / _original(scaling, data, source)}
    for name in _NEEDED[kind]:
        if scaling.get(name) is None:
            raise ModelLoadError(f"{source}: rope scaling {kind!r} needs {name!r}")
    given: dict[str, Any] = {
        name: number(scaling, name, 1.0, source) for name in _FLOATS if scaling.get(name)
    }
    return RopeConfig(
        theta=theta,
        kind=kind,
        factor=number(scaling, "factor", 1.0, source),
        # dynamic scales from the length the model was trained at, which for it is
        # max_position_embeddings.
        original_max_position=_positions(data, source)
        if kind == "dynamic"
        else _original(scaling, data, source),
        truncate=flag(scaling, "truncate", True, source),
        **given,
    )


def max_positions(data: Json, source: str = "") -> int:
    """The longest sequence the model is meant for.

    linear and dynamic stretch `max_position_embeddings`; yarn stretches the original length (which
    may be what max_position_embeddings still says); llama3's is already in
    `max_position_embeddings`.
    """
    positions, scaling = _positions(data, source), _scaling(data, source)
    kind, factor = _kind(scaling), number(scaling, "factor", 1.0, source)
    if kind == "yarn":
        positions = max(positions, _times(_original(scaling, data, source), factor))
    return _times(positions, factor) if kind in ("linear", "dynamic") else positions


def _times(positions: int, factor: float) -> int:
    """A stretched length; what no float can hold is longer than anything that is served."""
    return int(min(positions * factor, 1e15))


def _scaling(data: Json, source: str) -> Json:
    """The scaling object: `rope_scaling`, or `rope_parameters` (transformers 5, theta inside).

    Model cards tell users to add the former for long contexts, so it wins over what was saved.
    """
    scaling = section(data, "rope_scaling", source) or section(data, "rope_parameters", source)
    nested = [value for value in scaling.values() if isinstance(value, Mapping)]
    if not nested:
        return scaling
    if any(value != nested[0] for value in nested):
        raise ModelLoadError(f"{source}: rope parameters that differ by layer are not supported")
    return nested[0]


def _kind(scaling: Json) -> str:
    kind = str(scaling.get("rope_type") or scaling.get("type") or "default")
    return "none" if kind == "default" else kind


def _original(scaling: Json, data: Json, source: str) -> int:
    key = "original_max_position_embeddings"
    original = count(data, key, _positions(data, source), source)
    return count(scaling, key, original, source)


def _positions(data: Json, source: str) -> int:
    return count(data, "max_position_embeddings", DEFAULT_MAX_POSITIONS, source)
