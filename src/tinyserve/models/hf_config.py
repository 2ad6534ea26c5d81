"""config.json and generation_config.json as a `ModelConfig`, EOS ids and sampling defaults.

Absent fields have the defaults of Hugging Face's configuration classes, since files may leave those
out. What the decoder cannot run (another architecture, activation, rope scaling, or quantization)
is refused by name.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from tinyserve.errors import ModelLoadError, reason_of
from tinyserve.files import read_text
from tinyserve.models.config import ModelConfig
from tinyserve.models.hf_fields import (
    Json,
    count,
    flag,
    is_integer,
    need_count,
    number,
    section,
    strings,
)
from tinyserve.models.hf_rope import max_positions, read_rope
from tinyserve.models.layout import check_config

# `model_type` -> class name; either identifies the architecture.
ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
# Other class names: models saved without a head, for embeddings; Llama's first spelling.
_ALIASES = {name.replace("ForCausalLM", "Model"): name for name in ARCHITECTURES.values()}
_ALIASES["LLaMAForCausalLM"] = "LlamaForCausalLM"
# max_position_embeddings where a file leaves it out; all others have Llama's default.
_CONTEXTS = {
    "MistralForCausalLM": 131072,
    "Qwen2ForCausalLM": 32768,
    "Qwen3ForCausalLM": 32768,
}
_SAMPLING_FIELDS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
_LAYER_TYPES = ("full_attention", "sliding_attention")
# To be ignored where the author has asked for greedy decoding.
_RANDOM_FIELDS = ("temperature", "top_p", "top_k", "min_p")


def read_json(path: Path, *, required: bool = True) -> dict[str, Any]:
    """A JSON object; {} where an optional file is absent. Raises ModelLoadError naming the file."""
    if not required and not path.is_file():
        return {}
    value = read_value(path)
    if not isinstance(value, dict):
        raise ModelLoadError(f"{path} does not hold a JSON object")
    return value


def read_value(path: Path) -> Any:
    """Any JSON. Raises ModelLoadError naming the file."""
    try:
        return json.loads(read_text(path))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelLoadError(f"cannot read {path}: {reason_of(error)}") from error


def read_model_config(data: Json, source: str) -> ModelConfig:
    """`data` is config.json, `source` its path for messages.

    Raises ModelLoadError naming what is wrong.
    """
    architecture = _architecture(data, source)
    _refuse_variants(data, source)
    if architecture in _CONTEXTS and data.get("max_position_embeddings") is None:
        data = {**data, "max_position_embeddings": _CONTEXTS[architecture]}
    hidden_size = need_count(data, "hidden_size", source)
    num_heads = need_count(data, "num_attention_heads", source)
    num_layers = need_count(data, "num_hidden_layers", source)
    # null means as many as attention heads. So does an absent field, but Mistral's class has 8.
    is_said = architecture != "MistralForCausalLM" or "num_key_value_heads" in data
    default_kv = num_heads if is_said else 8
    default_head = 128 if architecture == "Qwen3ForCausalLM" else hidden_size // num_heads
    bias = flag(data, "attention_bias", False, source) and architecture in (
        "LlamaForCausalLM",
        "Qwen3ForCausalLM",
    )
    config = ModelConfig(
        architecture=architecture,
        vocab_size=need_count(data, "vocab_size", source),
        hidden_size=hidden_size,
        intermediate_size=need_count(data, "intermediate_size", source),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=count(data, "num_key_value_heads", default_kv, source),
        head_dim=count(data, "head_dim", default_head, source),
        rms_norm_eps=number(data, "rms_norm_eps", 1e-6, source),
        rope=read_rope(data, source),
        max_position_embeddings=max_positions(data, source),
        tie_word_embeddings=flag(data, "tie_word_embeddings", False, source),
        qkv_bias=bias or architecture == "Qwen2ForCausalLM",
        o_bias=bias,
        mlp_bias=architecture == "LlamaForCausalLM" and flag(data, "mlp_bias", False, source),
        qk_norm=architecture == "Qwen3ForCausalLM",
        windows=_windows(data, architecture, num_layers, source),
    )
    check_config(config, source)
    return config


def read_eos_token_ids(config: Json, generation: Json, source: str = "") -> tuple[int, ...]:
    """Every end-of-text id that either file names, generation_config.json's first.

    Raises ModelLoadError for what is no id.
    """
    ids: list[int] = []
    for data in (generation, config):
        value = data.get("eos_token_id")
        named = value if isinstance(value, list) else [value]
        ids += [token_id for token_id in named if token_id is not None]
    for token_id in ids:
        if not is_integer(token_id):
            raise ModelLoadError(f"{source}: eos_token_id {token_id!r} is not a token id")
    return tuple(dict.fromkeys(ids))


def read_sampling_defaults(generation: Json) -> dict[str, float | int]:
    """What generation_config.json recommends, without randomness if `do_sample` is false.

    Whether the values make sense is seen where they are used (`engine.resolve`).
    """
    defaults: dict[str, float | int] = {}
    for name in _SAMPLING_FIELDS:
        value: Any = generation.get(name)
        if is_integer(value) or (isinstance(value, float) and math.isfinite(value)):
            defaults[name] = value
    if generation.get("do_sample") is False:
        return {name: value for name, value in defaults.items() if name not in _RANDOM_FIELDS}
    return defaults


def read_max_new_tokens(generation: Json) -> int | None:
    """The longest answer, in tokens, that generation_config.json sensibly allows, if any."""
    value: Any = generation.get("max_new_tokens")
    return value if is_integer(value) and 1 <= value < 2**31 else None


def _architecture(data: Json, source: str) -> str:
    named = strings(data, "architectures", source)
    kind = data.get("model_type")
    for name in named:
        if name in ARCHITECTURES.values():
            return name
        if name in _ALIASES:
            return _ALIASES[name]
    if not named and isinstance(kind, str) and kind in ARCHITECTURES:
        return ARCHITECTURES[kind]
    found = ", ".join(named) or f"model_type {kind!r}"
    supported = ", ".join(ARCHITECTURES.values())
    raise ModelLoadError(
        f"{source}: architecture {found} is not supported (supported: {supported})"
    )


def _refuse_variants(data: Json, source: str) -> None:
    quantization = section(data, "quantization_config", source) or section(
        data, "compression_config", source
    )
    of_mlx = section(data, "quantization", source)
    if quantization or of_mlx:
        method = "MLX" if of_mlx else quantization.get("quant_method", "unknown")
        raise ModelLoadError(
            f"{source}: checkpoints quantized with {method} are not supported yet; use a GGUF file "
            "or the unquantized model (--quantization int8|int4 quantizes it at load)"
        )
    if not flag(data, "is_causal", True, source):
        raise ModelLoadError(
            f"{source}: is_causal is false: attention in both directions is not supported"
        )
    activation = data.get("hidden_act") or "silu"
    if activation not in ("silu", "swish"):
        raise ModelLoadError(f"{source}: hidden_act {activation!r} is not supported (only silu)")


def _windows(data: Json, architecture: str, num_layers: int, source: str) -> tuple[int | None, ...]:
    """Each layer's sliding window.

    Where `layer_types` say; else Mistral slides everywhere, and Qwen where the older fields say.
    """
    if architecture == "LlamaForCausalLM":
        return ()
    # An absent window is 4096, as in Hugging Face's classes; null, false and 0 are none.
    window = data.get("sliding_window", 4096) or None
    if window is not None:
        window = count(data, "sliding_window", 4096, source)
    slides = architecture == "MistralForCausalLM"
    if window is None or not (slides or flag(data, "use_sliding_window", False, source)):
        return ()
    types = strings(data, "layer_types", source)
    if not types and slides:
        return (window,) * num_layers
    if not types:
        first = count(data, "max_window_layers", 28, source, least=0)
        return tuple(window if layer >= first else None for layer in range(num_layers))
    if len(types) != num_layers:
        raise ModelLoadError(f"{source}: {len(types)} layer_types for {num_layers} layers")
    for kind in types:
        if kind not in _LAYER_TYPES:
            raise ModelLoadError(f"{source}: layer type {kind!r} is not supported")
    return tuple(window if kind == "sliding_attention" else None for kind in types)
