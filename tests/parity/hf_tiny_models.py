"""Tiny random models of every family, made and saved by transformers, as `TinyModel` cases.

Dimensions are awkward on purpose (no power of two where a kernel could lean on it). Weights have
the scale of trained ones; biases and norms are random too (transformers starts them at 0 and 1).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BASE: dict[str, Any] = {
    "vocab_size": 331,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}


@dataclass(frozen=True)
class TinyModel:
    """One case. `family` is the prefix of transformers' class names, `fields` its configuration.

    `legacy_rope` rewrites config.json as transformers 4 wrote it (rope_theta beside rope_scaling);
    `legacy_rope_key` is the name of the kind in it. `dtype` is the type in the file.
    """

    name: str
    family: str
    fields: dict[str, Any] = field(default_factory=dict)
    dtype: str = "float32"
    max_shard_size: str = "1GB"
    legacy_rope_key: str | None = None

    def __str__(self) -> str:
        return self.name


def rope(kind: str, **fields: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 5000.0, **fields}}


LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
YARN = {"factor": 4.0, "original_max_position_embeddings": 64}

MODELS = [
    TinyModel("llama", "Llama"),
    TinyModel("llama-tied-mha", "Llama", {"tie_word_embeddings": True, "num_key_value_heads": 4}),
    TinyModel("llama-mqa-biases", "Llama", {"num_key_value_heads": 1, "attention_bias": True,
                                             "mlp_bias": True}),
    TinyModel("llama-bf16-sharded", "Llama", dtype="bfloat16", max_shard_size="40KB"),
    TinyModel("llama-f16", "Llama", dtype="float16"),
    TinyModel("llama-rope-linear", "Llama", rope("linear", factor=4.0)),
    TinyModel("llama-rope-linear-old", "Llama", rope("linear", factor=4.0), legacy_rope_key="type"),
    TinyModel("llama-rope-llama3", "Llama", rope("llama3", factor=4.0, **LLAMA3)),
    TinyModel("llama-rope-llama3-old", "Llama", rope("llama3", factor=4.0, **LLAMA3),
              legacy_rope_key="rope_type"),
    TinyModel("llama-rope-yarn", "Llama", rope("yarn", **YARN)),
    TinyModel("llama-rope-yarn-mscale", "Llama",
              rope("yarn", mscale=0.8, mscale_all_dim=1.2, beta_fast=16.0, truncate=False, **YARN)),
    TinyModel("qwen2", "Qwen2"),
    TinyModel("qwen2-tied-sharded", "Qwen2", {"tie_word_embeddings": True}, max_shard_size="40KB"),
    TinyModel("qwen2-windows", "Qwen2", {"use_sliding_window": True, "sliding_window": 24,
                                         "max_window_layers": 1, "num_hidden_layers": 3}),
    TinyModel("qwen2-yarn-old", "Qwen2", rope("yarn", **YARN), legacy_rope_key="type"),
    TinyModel("qwen3", "Qwen3", {"head_dim": 24}),
    TinyModel("qwen3-tied", "Qwen3", {"head_dim": 32, "tie_word_embeddings": True}),
    TinyModel("mistral", "Mistral", {"sliding_window": None}),
    TinyModel("mistral-window", "Mistral", {"sliding_window": 24, "head_dim": 20}),
]  # fmt: skip


def save(case: TinyModel, folder: Path, seed: int = 0) -> Path:
    """Write the model, its configuration and a byte-level tokenizer into `folder`."""
    import torch
    import transformers

    config = getattr(transformers, f"{case.family}Config")(**{**BASE, **case.fields})
    model = getattr(transformers, f"{case.family}ForCausalLM")(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(_like_trained(name, noise))
    model = model.to(getattr(torch, case.dtype))
    model.save_pretrained(folder, max_shard_size=case.max_shard_size)
    if case.legacy_rope_key:
        _spell_rope_like_transformers_4(folder / "config.json", case.legacy_rope_key)
    _save_tokenizer(folder)
    return folder


def _like_trained(name: str, noise: Any) -> Any:
    if name.endswith("norm.weight"):
        return 1 + 0.2 * noise
    if name.endswith("bias"):
        return 0.2 * noise
    if "embed_tokens" in name:
        return 0.3 * noise
    return noise / noise.shape[1] ** 0.5


def _spell_rope_like_transformers_4(path: Path, key: str) -> None:
    config = json.loads(path.read_text())
    parameters = config.pop("rope_parameters")
    config["rope_theta"] = parameters.pop("rope_theta")
    config["rope_scaling"] = {key: parameters.pop("rope_type"), **parameters}
    path.write_text(json.dumps(config))


def _save_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    # Every id of the model has a token: ids that a tokenizer does not know are never drawn.
    specials = ["<unk>", "<s>", "</s>"]
    known = specials + sorted(pre_tokenizers.ByteLevel.alphabet())
    known += [f"[{i}]" for i in range(len(known), BASE["vocab_size"])]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(known)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(specials)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>"})
    )
