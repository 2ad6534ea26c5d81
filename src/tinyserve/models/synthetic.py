"""A model of random weights made from a seed, with a real tokenizer: for tests, benchmarks, and
trying the server where no model can be fetched. Nothing it says means anything.

Invariants: a tensor depends on the seed, its place in the model and its shape alone, so tensors can
be drawn in any order and only when asked for; weights are scaled so that activations keep their
size and logits spread about as a trained model's do (standard deviation 2).
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import numpy as np

from tinyserve.errors import ModelLoadError
from tinyserve.kernels.formats import F32, FloatWeight
from tinyserve.models.checkpoint import Checkpoint
from tinyserve.models.config import ModelConfig, RopeConfig
from tinyserve.models.layout import EMBEDDING, LM_HEAD, tensor_shapes
from tinyserve.models.synthetic_tokenizer import EOS_ID, tokenizer_spec

_LOGIT_SPREAD = 2.0

_FAMILIES: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {},
    "MistralForCausalLM": {},
    "Qwen2ForCausalLM": {"qkv_bias": True},
    "Qwen3ForCausalLM": {"qk_norm": True},
}
_TINY: dict[str, Any] = {
    "architecture": "LlamaForCausalLM",
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_layers": 2,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "rope": RopeConfig(theta=10000.0),
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}
# The shapes of real models, for benchmarks without their weights.
PRESETS: dict[str, dict[str, Any]] = {
    "tiny": _TINY,
    "135m": {
        **_TINY,
        "vocab_size": 49152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_layers": 30,
        "num_heads": 9,
        "num_kv_heads": 3,
        "head_dim": 64,
        "rope": RopeConfig(theta=100000.0),
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
    },
    "qwen2.5-0.5b": {
        **_TINY,
        "architecture": "Qwen2ForCausalLM",
        "vocab_size": 151936,
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_layers": 24,
        "num_heads": 14,
        "num_kv_heads": 2,
        "head_dim": 64,
        "rms_norm_eps": 1e-6,
        "rope": RopeConfig(theta=1000000.0),
        "max_position_embeddings": 32768,
        "tie_word_embeddings": True,
    },
    "qwen2.5-1.5b": {
        **_TINY,
        "architecture": "Qwen2ForCausalLM",
        "vocab_size": 151936,
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_layers": 28,
        "num_heads": 12,
        "num_kv_heads": 2,
        "head_dim": 128,
        "rms_norm_eps": 1e-6,
        "rope": RopeConfig(theta=1000000.0),
        "max_position_embeddings": 32768,
        "tie_word_embeddings": True,
    },
}


def synthetic_config(preset: str = "tiny", **overrides: Any) -> ModelConfig:
    """A preset's shape with fields of `ModelConfig` replaced.

    An architecture brings its family's biases and norms along, unless they are overridden too.
    Raises ModelLoadError for an unknown preset.
    """
    if preset not in PRESETS:
        raise ModelLoadError(
            f"there is no synthetic model {preset!r} (there are: {', '.join(PRESETS)})"
        )
    fields = {**PRESETS[preset], **overrides}
    return ModelConfig(**{**_FAMILIES.get(fields["architecture"], {}), **fields})


def synthetic_checkpoint(seed: int = 0, *, preset: str = "tiny", **overrides: Any) -> Checkpoint:
    """A model in memory; `overrides` are fields of `ModelConfig`. Tensors are f32."""
    config = synthetic_config(preset, **overrides)
    return Checkpoint(
        config=config,
        tensors=SyntheticTensors(config, seed),
        eos_token_ids=(EOS_ID,),
        sampling_defaults={},
        tokenizer_spec=lambda: tokenizer_spec(config.vocab_size),
        fingerprint="",
        name="synthetic" if preset == "tiny" else f"synthetic:{preset}",
        contents=f"synthetic {seed} {config}",
    )


class SyntheticTensors:
    """A `TensorSource` that draws each tensor when asked."""

    def __init__(self, config: ModelConfig, seed: int) -> None:
        self._shapes = tensor_shapes(config)
        self._order = {name: index for index, name in enumerate(self._shapes)}
        self._seed = seed

    def names(self) -> Collection[str]:
        return self._shapes.keys()

    def weight(self, name: str) -> FloatWeight:
        fan_in = self._shapes[name][1]
        spread = _LOGIT_SPREAD if name in (EMBEDDING, LM_HEAD) else 1.0
        return FloatWeight(self._normal(name, spread / math.sqrt(fan_in)))

    def vector(self, name: str) -> F32:
        values = self._normal(name, 0.1)
        return values if name.endswith("bias") else values + np.float32(1.0)

    def _normal(self, name: str, spread: float) -> F32:
        generator = np.random.Generator(np.random.Philox(key=[self._seed, self._order[name]]))
        values = generator.standard_normal(self._shapes[name], dtype=np.float32)
        values *= np.float32(spread)
        return values
