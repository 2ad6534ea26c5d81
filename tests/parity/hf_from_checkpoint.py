"""Any `Checkpoint` as a transformers model: the reference on the values that our loader read.

For a quantized file, these are its dequantized weights; transformers has no other way to them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any

import numpy as np
from hf_reference import F32, Reference, quiet

from tinyserve.kernels.formats import FloatWeight
from tinyserve.models.checkpoint import Checkpoint, TensorSource
from tinyserve.models.config import ModelConfig, RopeConfig


@dataclasses.dataclass(frozen=True)
class Dequantized:
    """A tensor source whose every matrix is f32."""

    source: TensorSource

    def names(self) -> Collection[str]:
        return self.source.names()

    def weight(self, name: str) -> FloatWeight:
        return FloatWeight(np.ascontiguousarray(self.source.weight(name).dequantize()))

    def vector(self, name: str) -> F32:
        return self.source.vector(name)


def dequantized(checkpoint: Checkpoint) -> Checkpoint:
    """The same model with f32 weights of the same values, under a fingerprint of its own."""
    return dataclasses.replace(
        checkpoint,
        tensors=Dequantized(checkpoint.tensors),
        fingerprint=checkpoint.fingerprint + "-dequantized",
    )


def reference_of(checkpoint: Checkpoint) -> Reference:
    import torch
    import transformers

    config = checkpoint.config
    family = config.architecture.removesuffix("ForCausalLM")
    with quiet():
        settings = getattr(transformers, f"{family}Config")(**_hf_fields(config))
        settings._attn_implementation = "eager"
        with torch.device("meta"):  # no second copy, and no time spent on random weights
            model = getattr(transformers, f"{family}ForCausalLM")(settings)
        state = {name: torch.from_numpy(array) for name, array in _arrays(checkpoint).items()}
        if config.tie_word_embeddings:
            state["lm_head.weight"] = state["model.embed_tokens.weight"]
        model.load_state_dict(state, strict=True, assign=True)
        # The rotary frequencies are no parameters; they are made anew off the meta device.
        model.model.rotary_emb = rotary = type(model.model.rotary_emb)(settings)
        if config.rope.freq_factors is not None:  # GGUF's llama3: factors in the file, not a rule
            rotary.inv_freq /= torch.tensor(config.rope.freq_factors, dtype=torch.float32)
    return Reference(model)


def _arrays(checkpoint: Checkpoint) -> dict[str, F32]:
    tensors = checkpoint.tensors
    return {
        name: tensors.vector(name).copy()
        if name.endswith(("norm.weight", ".bias"))
        else np.ascontiguousarray(tensors.weight(name).dequantize())
        for name in tensors.names()
    }


def _hf_fields(config: ModelConfig) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.max_position_embeddings,
        "rms_norm_eps": config.rms_norm_eps,
        "tie_word_embeddings": config.tie_word_embeddings,
        "rope_parameters": _hf_rope(config.rope),
        "pad_token_id": None,
    }
    if config.architecture.startswith("Llama"):
        fields |= {"attention_bias": config.qkv_bias, "mlp_bias": config.mlp_bias}
    windows = [window for window in config.windows if window is not None]
    if config.architecture.startswith("Qwen"):
        kinds = ["sliding_attention" if window else "full_attention" for window in config.windows]
        fields |= {"use_sliding_window": bool(windows), "layer_types": kinds or None}
    if windows or config.architecture.startswith("Mistral"):
        fields["sliding_window"] = windows[0] if windows else None
    return fields


def _hf_rope(rope: RopeConfig) -> dict[str, Any]:
    kind = "default" if rope.kind == "none" else rope.kind
    fields: dict[str, Any] = {"rope_type": kind, "rope_theta": rope.theta}
    if kind != "default":
        fields["factor"] = rope.factor
    if kind == "llama3":
        fields |= {
            "low_freq_factor": rope.low_freq_factor,
            "high_freq_factor": rope.high_freq_factor,
        }
    if kind == "yarn":
        fields |= {
            "beta_fast": rope.beta_fast,
            "beta_slow": rope.beta_slow,
            "truncate": rope.truncate,
            "attention_factor": rope.attention_factor,
            "mscale": rope.mscale,
            "mscale_all_dim": rope.mscale_all_dim,
        }
    if kind in ("llama3", "yarn", "dynamic"):
        fields["original_max_position_embeddings"] = rope.original_max_position
    return {name: value for name, value in fields.items() if value is not None}
