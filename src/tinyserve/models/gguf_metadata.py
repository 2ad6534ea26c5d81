"""GGUF metadata as a `ModelConfig`.

Knows the keys of the GGUF specification; reads no weights but rope factors.
"""

from __future__ import annotations

import math
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tinyserve.errors import ModelLoadError
from tinyserve.models.config import ModelConfig, RopeConfig
from tinyserve.models.exact_math import log
from tinyserve.models.gguf_file import GGUFFile, StringArray
from tinyserve.models.gguf_types import SUPPORTED
from tinyserve.models.layout import check_config

# `general.architecture` -> Hugging Face's class name; Mistral's files say "llama".
ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
_SAMPLING_KEYS = {  # general.sampling.* -> ours
    "temp": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}

T = TypeVar("T", int, float, str, bool)
Array = TypeVar("Array", StringArray, NDArray[Any])


class Metadata:
    """Typed access to a file's keys; `{arch}` in a key stands for the architecture."""

    def __init__(self, file: GGUFFile) -> None:
        self.file = file
        self.architecture = ""
        self.architecture = self.need("general.architecture", str)

    def need(self, key: str, kind: type[T]) -> T:
        """The value of `key`.

        Raises ModelLoadError naming the key where it is missing or of another type.
        """
        value = self.get(key, kind)
        if value is None:
            raise ModelLoadError(f"{self.file.path}: metadata key {self._key(key)} is missing")
        return value

    def get(self, key: str, kind: type[T]) -> T | None:
        """The value of `key`, or None.

        One number for all layers may be stored as an array of equal ones. Raises ModelLoadError for
        a value of another type, or a float that is negative or not finite.
        """
        key = self._key(key)
        value: Any = self.file.metadata.get(key)
        if value is None:
            return None
        if isinstance(value, np.ndarray) and value.size and (value == value[0]).all():
            value = value[0].item()
        if kind is float and isinstance(value, int):
            value = float(value)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise ModelLoadError(f"{self.file.path}: metadata key {key} is not one {kind.__name__}")
        if isinstance(value, float) and not 0 <= value < math.inf:
            raise ModelLoadError(f"{self.file.path}: metadata key {key} cannot be {value}")
        return value

    def strings(self, key: str) -> StringArray | None:
        """An array of strings, or None. Raises ModelLoadError for anything else."""
        return self._array(key, StringArray, "strings")

    def numbers(self, key: str) -> NDArray[Any] | None:
        """An array of numbers, or None. Raises ModelLoadError for anything else."""
        return self._array(key, np.ndarray, "numbers")

    def _array(self, key: str, kind: type[Array], words: str) -> Array | None:
        value = self.file.metadata.get(self._key(key))
        if value is not None and not isinstance(value, kind):
            raise ModelLoadError(
                f"{self.file.path}: metadata key {self._key(key)} is not an array of {words}"
            )
        return value

    def _key(self, key: str) -> str:
        return key.replace("{arch}", self.architecture)


def read_config(metadata: Metadata) -> ModelConfig:
    """Raises ModelLoadError for unknown architectures, missing keys, and what cannot run."""
    architecture = ARCHITECTURES.get(metadata.architecture)
    if architecture is None:
        raise ModelLoadError(
            f"{metadata.file.path}: architecture {metadata.architecture!r} is not supported "
            f"(supported: {', '.join(ARCHITECTURES)})"
        )
    _refuse_variants(metadata)
    tensors = metadata.file.tensors
    if "token_embd.weight" not in tensors:
        raise ModelLoadError(f"{metadata.file.path}: tensor token_embd.weight is missing")
    hidden_size = metadata.need("{arch}.embedding_length", int)
    num_heads = metadata.need("{arch}.attention.head_count", int)
    num_layers = metadata.need("{arch}.block_count", int)
    head_dim = metadata.get("{arch}.attention.key_length", int) or hidden_size // max(num_heads, 1)
    window = metadata.get("{arch}.attention.sliding_window", int)
    _check_head(metadata, head_dim)
    config = ModelConfig(
        architecture=architecture,
        vocab_size=tensors["token_embd.weight"].shape[0],
        hidden_size=hidden_size,
        intermediate_size=metadata.need("{arch}.feed_forward_length", int),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=metadata.get("{arch}.attention.head_count_kv", int) or num_heads,
        head_dim=head_dim,
        rms_norm_eps=metadata.need("{arch}.attention.layer_norm_rms_epsilon", float),
        rope=_read_rope(metadata),
        max_position_embeddings=metadata.need("{arch}.context_length", int),
        tie_word_embeddings="output.weight" not in tensors,
        qkv_bias="blk.0.attn_q.bias" in tensors,
        o_bias="blk.0.attn_output.bias" in tensors,
        mlp_bias="blk.0.ffn_up.bias" in tensors,
        qk_norm="blk.0.attn_q_norm.weight" in tensors,
        windows=(window,) * min(num_layers, len(tensors)) if window else (),
    )
    check_config(config, str(metadata.file.path))
    return config


def read_sampling_defaults(metadata: Metadata) -> dict[str, float | int]:
    """What the authors recommend; newer converters copy it from generation_config.json.

    Whether the values make sense is seen where they are used (`engine.resolve`).
    """
    defaults: dict[str, float | int] = {}
    for key, name in _SAMPLING_KEYS.items():
        value: Any = metadata.file.metadata.get(f"general.sampling.{key}")
        if isinstance(value, float) and math.isfinite(value):
            defaults[name] = float(f"{value:.6g}")  # 0.7 again: it was stored in 32 bits
        elif isinstance(value, int) and not isinstance(value, bool):
            defaults[name] = value
    return defaults


def _refuse_variants(metadata: Metadata) -> None:
    path = metadata.file.path
    if metadata.get("general.type", str) == "adapter":
        raise ModelLoadError(f"{path} is an adapter (LoRA), not a model; merge it into its base")
    if metadata.get("{arch}.attention.causal", bool) is False:
        raise ModelLoadError(f"{path}: attention in both directions is not supported")
    if metadata.get("{arch}.expert_count", int):
        raise ModelLoadError(f"{path}: mixture-of-experts models are not supported")


def _check_head(metadata: Metadata, head_dim: int) -> None:
    for key in ("{arch}.attention.value_length", "{arch}.rope.dimension_count"):
        size = metadata.get(key, int)
        if size is not None and size != head_dim:
            raise ModelLoadError(
                f"{metadata.file.path}: {key.replace('{arch}', metadata.architecture)} is {size}, "
                f"but a head has {head_dim} dimensions; such models are not supported"
            )


def _read_rope(metadata: Metadata) -> RopeConfig:
    theta = metadata.get("{arch}.rope.freq_base", float) or 10000.0
    kind = metadata.get("{arch}.rope.scaling.type", str) or "none"
    factor = metadata.get("{arch}.rope.scaling.factor", float) or 1.0
    legacy = metadata.get("{arch}.rope.scale_linear", float)
    if kind == "none" and legacy and legacy != 1.0:  # before `rope.scaling.*` existed
        kind, factor = "linear", legacy
    factors = _rope_factors(metadata.file)
    if kind == "none":
        return RopeConfig(theta=theta, freq_factors=factors)
    if kind == "linear":
        return RopeConfig(theta=theta, kind=kind, factor=factor, freq_factors=factors)
    if kind != "yarn":
        raise ModelLoadError(
            f"{metadata.file.path}: rope scaling {kind!r} is not supported "
            "(supported: none, linear, yarn)"
        )
    # ggml multiplies this on top of the factor that YaRN derives from the scaling.
    extra = metadata.get("{arch}.rope.scaling.attn_factor", float)
    return RopeConfig(
        theta=theta,
        kind=kind,
        factor=factor,
        original_max_position=metadata.get("{arch}.rope.scaling.original_context_length", int)
        or metadata.need("{arch}.context_length", int),
        beta_fast=metadata.get("{arch}.rope.scaling.yarn_beta_fast", float) or 32.0,
        beta_slow=metadata.get("{arch}.rope.scaling.yarn_beta_slow", float) or 1.0,
        attention_factor=None if extra is None else extra * (1.0 + 0.1 * log(factor)),
        freq_factors=factors,
    )


def _rope_factors(file: GGUFFile) -> tuple[float, ...] | None:
    """`rope_freqs.weight`: how converters write Llama 3's scaling, one divisor for each pair."""
    info = file.tensors.get("rope_freqs.weight")
    if info is None:
        return None
    raw = file.raw(info)  # refuses types that are not supported
    values = SUPPORTED[info.type_id].unpack(raw).dequantize()
    return tuple(float(value) for value in values.reshape(-1))
