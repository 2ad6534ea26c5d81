"""Tiny GGUF files of every type, as llama.cpp's converter would write a synthetic model."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tinyserve.models.checkpoint import Checkpoint
from tinyserve.models.config import ModelConfig
from tinyserve.models.layout import tensor_shapes
from tinyserve.models.synthetic_tokenizer import BOS_ID, CHAT_TEMPLATE, EOS_ID, vocabulary

Q = gguf.GGMLQuantizationType

ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
_PARTS = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.layers": "blk",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
# Where a block's f16 numbers lie, for the types that the gguf package can read but not write.
_F16_AT = {Q.Q4_K: (0, 2), Q.Q5_K: (0, 2), Q.Q6_K: (208,)}
DROP = object()  # as the value of a metadata key: leave the key out


def write_tiny_gguf(
    path: Path,
    checkpoint: Checkpoint,
    kind: gguf.GGMLQuantizationType = Q.F32,
    *,
    metadata: Mapping[str, Any] | None = None,
    without: Collection[str] = (),
    extra: Mapping[str, np.ndarray] | None = None,
    split_max_tensors: int = 0,
    fuse_qkv: bool = False,
) -> Path:
    """Write `checkpoint` with matrices of type `kind`; vectors are F32. The first file's path.

    `metadata` adds, replaces or drops keys, `without` drops tensors (GGUF names), `extra` adds F32
    or I32 ones. K-quants, which the gguf package cannot write, get random blocks instead of the
    weights. `split_max_tensors`: split into files of so many tensors. `fuse_qkv`: join Q, K and V.
    """
    config = checkpoint.config
    arch = ARCHITECTURES[config.architecture]
    writer = gguf.GGUFWriter(path, arch, split_max_tensors=split_max_tensors)
    keys: dict[str, Any] = {**_model_keys(config, arch), **_tokenizer_keys(config)}
    keys.update(metadata or {})
    for key, value in keys.items():
        if value is not DROP:
            _add(writer, key, value)
    fused: dict[str, list[np.ndarray]] = {}
    for name in tensor_shapes(config):
        stored = gguf_name(name)
        part = re.search(r"attn_[qkv](?=\.)", stored) if fuse_qkv else None
        if part is not None:
            joined = stored.replace(part[0], "attn_qkv")
            fused.setdefault(joined, []).append(_values(checkpoint, name, arch))
        elif stored not in without:
            _add_tensor(writer, stored, _values(checkpoint, name, arch), kind)
    for joined, parts in fused.items():
        _add_tensor(writer, joined, np.concatenate(parts), kind)
    for name, values in (extra or {}).items():
        writer.add_tensor(name, values if values.dtype == np.int32 else values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path if path.is_file() else min(path.parent.glob(f"{path.stem}-*"))


def gguf_name(name: str) -> str:
    for ours, theirs in _PARTS.items():
        name = name.replace(ours, theirs)
    return name


def random_blocks(
    kind: gguf.GGMLQuantizationType, rows: int, columns: int, seed: int
) -> np.ndarray:
    """Random bytes that are valid blocks with moderate scales, `[rows, row_bytes]`."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (rows, columns // block, size), dtype=np.uint8)
    for place in _F16_AT[kind]:
        scale = rng.uniform(0.0001, 0.001, blocks.shape[:2]).astype("<f2")
        blocks[:, :, place : place + 2] = scale[..., None].view(np.uint8)
    return blocks.reshape(rows, -1)


def _values(checkpoint: Checkpoint, name: str, arch: str) -> np.ndarray:
    is_vector = name.endswith("bias") or "norm" in name
    source = checkpoint.tensors
    values = source.vector(name) if is_vector else source.weight(name).dequantize()
    heads = {
        "q_proj": checkpoint.config.num_heads,
        "k_proj": checkpoint.config.num_kv_heads,
    }.get(name.split(".")[-2])
    if arch != "llama" or heads is None:
        return values
    # The converter's permutation: of each head, rows 0 and half, 1 and half + 1, ... side by side.
    split = values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
    return split.swapaxes(1, 2).reshape(values.shape)


def _add_tensor(
    writer: gguf.GGUFWriter, name: str, values: np.ndarray, kind: gguf.GGMLQuantizationType
) -> None:
    if values.ndim == 1 or kind == Q.F32:
        writer.add_tensor(name, values)
        return
    if kind in _F16_AT:
        raw = random_blocks(kind, *values.shape, seed=len(name))
    else:
        raw = gguf.quants.quantize(values, kind)
    writer.add_tensor(name, raw, raw_dtype=kind)


def _model_keys(config: ModelConfig, arch: str) -> dict[str, Any]:
    return {
        f"{arch}.block_count": config.num_layers,
        f"{arch}.context_length": config.max_position_embeddings,
        f"{arch}.embedding_length": config.hidden_size,
        f"{arch}.feed_forward_length": config.intermediate_size,
        f"{arch}.attention.head_count": config.num_heads,
        f"{arch}.attention.head_count_kv": config.num_kv_heads,
        f"{arch}.attention.key_length": config.head_dim,
        f"{arch}.attention.value_length": config.head_dim,
        f"{arch}.attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        f"{arch}.rope.freq_base": config.rope.theta,
        f"{arch}.rope.dimension_count": config.head_dim,
    }


def _tokenizer_keys(config: ModelConfig) -> dict[str, Any]:
    vocab = vocabulary(config.vocab_size)
    return {
        "tokenizer.ggml.model": vocab.model,
        "tokenizer.ggml.pre": vocab.pre,
        "tokenizer.ggml.tokens": list(vocab.tokens),
        "tokenizer.ggml.token_type": list(vocab.token_types),
        "tokenizer.ggml.merges": list(vocab.merges),
        "tokenizer.ggml.bos_token_id": BOS_ID,
        "tokenizer.ggml.eos_token_id": EOS_ID,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)
