"""A GGUF file as a `Checkpoint`, with its tensors under Hugging Face's names.

Owns the differences between the two worlds: names, the row order of llama's Q and K, and where rope
scaling, tied heads and ends of text are written down. Knows neither the container (gguf_file) nor
block layouts (gguf_types). Opening reads metadata only; the vocabulary and the tensors are read
when asked for.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tinyserve.errors import ModelLoadError
from tinyserve.kernels.formats import F32, Weight
from tinyserve.models.cache import contents_fingerprint, files_fingerprint
from tinyserve.models.checkpoint import Checkpoint, drawable_ids
from tinyserve.models.config import ModelConfig
from tinyserve.models.gguf_file import GGUFFile, TensorInfo
from tinyserve.models.gguf_metadata import Metadata, read_config, read_sampling_defaults
from tinyserve.models.gguf_parts import open_gguf
from tinyserve.models.gguf_tokenizer_spec import read_eos_token_ids, read_tokenizer_spec
from tinyserve.models.gguf_types import SUPPORTED
from tinyserve.models.layout import LM_HEAD, check_layout, tensor_shapes

_GLOBAL_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_FUSED = re.compile(r"(blk\.\d+\.attn_)qkv\.(weight|bias)")
_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
# Rope frequencies are read with the metadata; the others are leftovers of early converters.
_NOT_WEIGHTS = re.compile(r"rope_freqs\.weight|blk\.\d+\.(attn_rot_embd|rope_freqs)\.weight")


def load_gguf(path: Path, name: str) -> Checkpoint:
    """Open a GGUF model.

    Raises ModelLoadError naming the key, tensor or type that is missing or unsupported.
    """
    file, paths = open_gguf(path)
    _split_fused(file.tensors)
    metadata = Metadata(file)
    config = read_config(metadata)
    contents = contents_fingerprint(paths)
    tensors = GGUFTensors(file, config, unpermute=metadata.architecture == "llama")
    return Checkpoint(
        config=config,
        tensors=tensors,
        eos_token_ids=drawable_ids(read_eos_token_ids(metadata), config, str(path)),
        sampling_defaults=read_sampling_defaults(metadata),
        tokenizer_spec=lambda: read_tokenizer_spec(metadata),
        fingerprint=files_fingerprint(paths, contents),
        name=name,
        pooling={1: "mean", 3: "last"}.get(metadata.get("{arch}.pooling_type", int) or 0),
        contents=contents,
        stored_bytes=tensors.num_bytes,
    )


def _split_fused(tensors: dict[str, TensorInfo]) -> None:
    """Put Q, K and V in the place of the one tensor that converters may join them to."""
    for name, fused in list(tensors.items()):
        match = _FUSED.fullmatch(name)
        output = tensors.get(f"{match[1]}output.weight") if match else None
        if match is None or output is None or not (fused.shape and output.shape):
            continue
        num_q = output.shape[-1]
        num_kv = (fused.shape[0] - num_q) // 2
        if num_kv < 1:
            continue
        del tensors[name]
        for kind, start, size in (
            ("q", 0, num_q),
            ("k", num_q, num_kv),
            ("v", num_q + num_kv, num_kv),
        ):
            part = f"{match[1]}{kind}.{match[2]}"
            tensors[part] = fused.rows(part, start, size)


class GGUFTensors:
    """The file's tensors under Hugging Face's names; quantized ones keep their quantization.

    `unpermute`: converters interleave the rows of Q and K for architecture "llama", so that rope
    turns neighbouring dimensions; here they are put back into Hugging Face's half-split order.
    """

    def __init__(self, file: GGUFFile, config: ModelConfig, *, unpermute: bool) -> None:
        self._file = file
        self._infos = _by_hugging_face_name(file)
        if config.tie_word_embeddings:
            self._infos.pop(LM_HEAD, None)
        check_layout(config, {n: i.shape for n, i in self._infos.items()}, str(file.path))
        self._check_known(config)
        self.num_bytes = sum(info.num_bytes for info in self._infos.values())
        self._heads = (
            {"q_proj": config.num_heads, "k_proj": config.num_kv_heads} if unpermute else {}
        )

    def names(self) -> Collection[str]:
        return self._infos.keys()

    def weight(self, name: str) -> Weight:
        info = self._infos[name]
        raw, order = self._file.raw(info), self._row_order(name, info.shape[0])
        return SUPPORTED[info.type_id].unpack(raw if order is None else raw[order])

    def vector(self, name: str) -> F32:
        info = self._infos[name]
        values = SUPPORTED[info.type_id].unpack(self._file.raw(info)).dequantize().reshape(-1)
        order = self._row_order(name, values.size)
        return values if order is None else values[order]

    def _row_order(self, name: str, num_rows: int) -> NDArray[np.int64] | None:
        """For each row in half-split order, its place in the file; None: already so."""
        heads = self._heads.get(name.split(".")[-2])
        if heads is None:
            return None
        interleaved = np.arange(num_rows).reshape(heads, num_rows // heads // 2, 2)
        return interleaved.swapaxes(1, 2).reshape(-1)

    def _check_known(self, config: ModelConfig) -> None:
        """A tensor the decoder would ignore means another architecture than the file claims."""
        expected = tensor_shapes(config)
        for name, info in self._infos.items():
            if name not in expected:
                raise ModelLoadError(f"{self._file.path}: tensor {info.name} is not supported")
            try:
                info.num_bytes  # noqa: B018 - raises for unsupported types
            except ModelLoadError as error:
                raise ModelLoadError(f"{self._file.path}: {error}") from None


def _by_hugging_face_name(file: GGUFFile) -> dict[str, TensorInfo]:
    return {
        _hugging_face_name(name): info
        for name, info in file.tensors.items()
        if not _NOT_WEIGHTS.fullmatch(name)
    }


def _hugging_face_name(name: str) -> str:
    """`blk.0.attn_q.bias` -> `model.layers.0.self_attn.q_proj.bias`; unknown names stay."""
    layer = _LAYER.fullmatch(name)
    if layer and layer[2] in _LAYER_NAMES:
        return f"model.layers.{layer[1]}.{_LAYER_NAMES[layer[2]]}.{layer[3]}"
    stem, _, kind = name.rpartition(".")
    return f"{_GLOBAL_NAMES[stem]}.{kind}" if stem in _GLOBAL_NAMES else name
