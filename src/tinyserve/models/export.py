"""Any checkpoint as a folder that Hugging Face and every other engine can read.

The inverse of `hf_folder.load_folder`: config.json, safetensors, tokenizer files. Used to hand the
synthetic model to tests, benchmarks and reference implementations.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinyserve.kernels.formats import F32, to_bf16
from tinyserve.models.checkpoint import Checkpoint
from tinyserve.models.config import ModelConfig, RopeConfig
from tinyserve.models.hf_config import read_model_config
from tinyserve.text.tokenizer import Tokenizer
from tinyserve.text.tokenizer_cache import load_backend
from tinyserve.text.tokenizer_spec import TokenizerSpec

_MODEL_TYPES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
_TORCH_NAMES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}


def write_checkpoint(checkpoint: Checkpoint, folder: Path, *, dtype: str = "bf16") -> Path:
    """Write config.json, generation_config.json, safetensors and the tokenizer's files.

    `dtype` is f32 | f16 | bf16 (values are rounded to it). Returns the folder. Raises ValueError
    for what config.json cannot say.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = checkpoint.config
    _write_json(folder / "config.json", config_json(config, checkpoint.eos_token_ids, dtype))
    generation = {"eos_token_id": list(checkpoint.eos_token_ids), **checkpoint.sampling_defaults}
    if checkpoint.max_new_tokens is not None:
        generation["max_new_tokens"] = checkpoint.max_new_tokens
    _write_json(folder / "generation_config.json", generation)
    _write_tokenizer(checkpoint.tokenizer_spec(), folder)
    write_safetensors(folder / "model.safetensors", _tensors(checkpoint, dtype))
    return folder


def config_json(config: ModelConfig, eos_ids: Sequence[int], dtype: str) -> dict[str, Any]:
    """`config` in Hugging Face's words. Raises ValueError for what they cannot express."""
    if config.architecture not in _MODEL_TYPES:
        raise ValueError(f"no config.json for architecture {config.architecture}")
    data: dict[str, Any] = {
        "architectures": [config.architecture],
        "model_type": _MODEL_TYPES[config.architecture],
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": config.rms_norm_eps,
        "tie_word_embeddings": config.tie_word_embeddings,
        "attention_bias": config.o_bias,
        "mlp_bias": config.mlp_bias,
        "eos_token_id": list(eos_ids),
        "torch_dtype": _TORCH_NAMES[dtype],
    }
    data.update(_window_fields(config))
    data.update(_rope_fields(config))
    _check_readable(config, data)
    return data


def _check_readable(config: ModelConfig, data: dict[str, Any]) -> None:
    """Raise ValueError where it would be read back as another model: some flags come with the
    family and have no field.
    """
    read = read_model_config(data, "config.json")
    for field in fields(config):
        if field.name not in ("rope", "max_position_embeddings"):
            value = getattr(config, field.name)
            if getattr(read, field.name) != value:
                raise ValueError(f"a {config.architecture} cannot have {field.name}={value}")


def _window_fields(config: ModelConfig) -> dict[str, Any]:
    windows = set(config.windows) - {None}
    if len(windows) > 1:
        raise ValueError("config.json holds one sliding window, not one for each layer")
    window = windows.pop() if windows else None
    if config.architecture == "MistralForCausalLM":
        if window is not None and None in config.windows:
            raise ValueError("a Mistral slides in every layer or in none")
        return {"sliding_window": window}
    if window is None:
        return {}
    if config.architecture == "LlamaForCausalLM":
        raise ValueError("a Llama has no sliding window")
    kinds = ["full_attention" if w is None else "sliding_attention" for w in config.windows]
    first = kinds.index("sliding_attention")
    return {
        "use_sliding_window": True,
        "sliding_window": window,
        "max_window_layers": first,
        "layer_types": kinds,
    }


def _rope_fields(config: ModelConfig) -> dict[str, Any]:
    rope, positions = config.rope, config.max_position_embeddings
    if rope.freq_factors is not None:
        raise ValueError("config.json cannot hold rope frequency factors")
    if rope.kind == "none":
        return {"rope_theta": rope.theta, "max_position_embeddings": positions}
    if rope.kind == "dynamic":
        positions = rope.original_max_position or positions
    elif rope.kind == "linear":
        positions = int(positions / rope.factor)
    return {
        "rope_theta": rope.theta,
        "max_position_embeddings": positions,
        "rope_scaling": _scaling(rope),
    }


def _scaling(rope: RopeConfig) -> dict[str, Any]:
    scaling: dict[str, Any] = {"rope_type": rope.kind, "factor": rope.factor}
    if rope.kind in ("llama3", "yarn"):
        scaling["original_max_position_embeddings"] = rope.original_max_position
    names = {
        "llama3": ("low_freq_factor", "high_freq_factor"),
        "yarn": (
            "beta_fast",
            "beta_slow",
            "attention_factor",
            "mscale",
            "mscale_all_dim",
            "truncate",
        ),
    }.get(rope.kind, ())
    values = {name: getattr(rope, name) for name in names}
    return {**scaling, **{name: value for name, value in values.items() if value is not None}}


def _write_tokenizer(spec: TokenizerSpec, folder: Path) -> None:
    """tokenizer.json and tokenizer_config.json of the same tokenizer, whatever it came from."""
    tokenizer = Tokenizer.from_spec(spec)
    backend = json.loads(load_backend(spec).to_str())
    _write_json(folder / "tokenizer.json", backend)
    templates = dict(spec.named_templates)
    if spec.chat_template is not None:
        templates["default"] = spec.chat_template
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **tokenizer.special_tokens,
        "clean_up_tokenization_spaces": False,
    }
    for name, rule in (("add_bos_token", spec.add_bos), ("add_eos_token", spec.add_eos)):
        if rule is not None:
            config[name] = rule
    if list(templates) == ["default"]:
        config["chat_template"] = templates["default"]
    elif templates:
        named = [{"name": name, "template": text} for name, text in templates.items()]
        config["chat_template"] = named
    _write_json(folder / "tokenizer_config.json", config)


def _tensors(checkpoint: Checkpoint, dtype: str) -> dict[str, NDArray[Any]]:
    source = checkpoint.tensors
    return {
        name: _round(
            source.vector(name) if _is_vector(name) else source.weight(name).dequantize(), dtype
        )
        for name in source.names()
    }


def _is_vector(name: str) -> bool:
    return name.endswith("bias") or "norm" in name


def _round(values: F32, dtype: str) -> NDArray[Any]:
    if dtype == "bf16":
        return to_bf16(values)
    return values.astype({"f32": np.float32, "f16": np.float16}[dtype])


def write_safetensors(path: Path, tensors: dict[str, NDArray[Any]]) -> None:
    """Write f32, f16 and bf16 (uint16 bit patterns) arrays; the library's writer knows no bf16."""
    kinds = {"float32": "F32", "float16": "F16", "uint16": "BF16"}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name, array in tensors.items():
        header[name] = {
            "dtype": kinds[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [position, position + array.nbytes],
        }
        position += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for array in tensors.values():
            file.write(np.ascontiguousarray(array).data)


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
