"""config.json and generation_config.json as a `ModelConfig`, EOS ids and sampling defaults.

Absent fields have the defaults of Hugging Face's configuration classes, since files may leave those
out. What the decoder cannot run (another architecture, activation, rope scaling, or quantization)
is refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tinyserve.errors import ModelLoadError
from tinyserve.models.config import ModelConfig
from tinyserve.models.hf_rope import max_positions, read_rope
from tinyserve.models.layout import check_config

ARCHITECTURES = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
)
_BY_MODEL_TYPE = {"llama": 0, "mistral": 1, "qwen2": 2, "qwen3": 3}
_SAMPLING_FIELDS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
# These say nothing once an author has asked for greedy decoding.
_RANDOM_FIELDS = ("temperature", "top_p", "top_k", "min_p")

Json = Mapping[str, Any]


def read_json(path: Path, *, required: bool = True) -> dict[str, Any]:
    """A JSON object; {} where an optional file is absent. Raises ModelLoadError naming the file."""
    if not required and not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"cannot read {path}: {error}") from error
    if not isinstance(value, dict):
        raise ModelLoadError(f"{path} does not hold a JSON object")
    return value


def read_model_config(data: Json, source: str) -> ModelConfig:
    """`data` is config.json, `source` its path for messages.

    Raises ModelLoadError naming what is wrong.
    """
    architecture = _architecture(data, source)
    _refuse_variants(data, source)
    hidden_size, num_heads = (
        _need(data, "hidden_size", source),
        _need(data, "num_attention_heads", source),
    )
    num_layers = _need(data, "num_hidden_layers", source)
    default_kv = 8 if architecture == "MistralForCausalLM" else num_heads
    default_head = 128 if architecture == "Qwen3ForCausalLM" else hidden_size // num_heads
    bias = bool(data.get("attention_bias", False)) and architecture in (
        "LlamaForCausalLM",
        "Qwen3ForCausalLM",
    )
    config = ModelConfig(
        architecture=architecture,
        vocab_size=_need(data, "vocab_size", source),
        hidden_size=hidden_size,
        intermediate_size=_need(data, "intermediate_size", source),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=_int(data, "num_key_value_heads", default_kv, source),
        head_dim=_int(data, "head_dim", default_head, source),
        rms_norm_eps=float(data.get("rms_norm_eps", 1e-6)),
        rope=read_rope(data, source),
        max_position_embeddings=max_positions(data),
        tie_word_embeddings=bool(data.get("tie_word_embeddings", False)),
        qkv_bias=bias or architecture == "Qwen2ForCausalLM",
        o_bias=bias,
        mlp_bias=bool(data.get("mlp_bias", False)) and architecture == "LlamaForCausalLM",
        qk_norm=architecture == "Qwen3ForCausalLM",
        windows=_windows(data, architecture, num_layers, source),
    )
    check_config(config, source)
    return config


def read_eos_token_ids(config: Json, generation: Json) -> tuple[int, ...]:
    """Every end-of-text id that either file names, generation_config.json's first."""
    ids: list[int] = []
    for source in (generation, config):
        value = source.get("eos_token_id")
        ids += [value] if isinstance(value, int) else value or []
    return tuple(dict.fromkeys(int(token_id) for token_id in ids))


def read_sampling_defaults(generation: Json) -> dict[str, float | int]:
    """What generation_config.json recommends, without randomness if `do_sample` is false."""
    defaults: dict[str, float | int] = {}
    for name in _SAMPLING_FIELDS:
        value = generation.get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            defaults[name] = value
    if generation.get("do_sample") is False:
        return {name: value for name, value in defaults.items() if name not in _RANDOM_FIELDS}
    return defaults


def _architecture(data: Json, source: str) -> str:
    named = data.get("architectures") or []
    for name in named:
        if name in ARCHITECTURES:
            return str(name)
    if not named and data.get("model_type") in _BY_MODEL_TYPE:
        return ARCHITECTURES[_BY_MODEL_TYPE[data["model_type"]]]
    found = ", ".join(map(str, named)) or f"model_type {data.get('model_type')!r}"
    raise ModelLoadError(
        f"{source}: architecture {found} is not supported (supported: {', '.join(ARCHITECTURES)})"
    )


def _refuse_variants(data: Json, source: str) -> None:
    quantization = data.get("quantization_config") or data.get("compression_config")
    if quantization:
        method = quantization.get("quant_method", "unknown")
        raise ModelLoadError(
            f"{source}: checkpoints quantized with {method} are not supported yet; use a GGUF file "
            "or the unquantized model (--quantization int8|int4 quantizes it at load)"
        )
    activation = data.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise ModelLoadError(f"{source}: hidden_act {activation!r} is not supported (only silu)")


def _windows(data: Json, architecture: str, num_layers: int, source: str) -> tuple[int | None, ...]:
    """Each layer's sliding window.

    Mistral slides everywhere; Qwen where `layer_types` or the older fields say.
    """
    if architecture == "LlamaForCausalLM":
        return ()
    window = data.get("sliding_window", 4096)
    if architecture == "MistralForCausalLM":
        return (int(window),) * num_layers if window else ()
    if not data.get("use_sliding_window", False) or not window:
        return ()
    types = data.get("layer_types")
    if types is None:
        first = data.get("max_window_layers", 28)
        slides = [layer >= first for layer in range(num_layers)]
    else:
        slides = [kind == "sliding_attention" for kind in types]
        if len(slides) != num_layers:
            raise ModelLoadError(f"{source}: {len(slides)} layer_types for {num_layers} layers")
    return tuple(int(window) if slide else None for slide in slides)


def _need(data: Json, key: str, source: str) -> int:
    if data.get(key) is None:
        raise ModelLoadError(f"{source}: {key} is missing")
    return _int(data, key, 0, source)


def _int(data: Json, key: str, default: int, source: str) -> int:
    value = data.get(key)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ModelLoadError(f"{source}: {key} must be a positive integer, got {value!r}")
    return value
