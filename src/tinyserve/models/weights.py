"""From a checkpoint's tensors to a `Decoder` of prepared weights.

Owns which matrices are joined (q, k, v; gate and up), the conversions that `dtype` and
`quantization` ask for, and the cache of packed models on disk that makes the next start fast.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tinyserve.config import ModelOptions
from tinyserve.kernels.formats import (
    F32,
    FloatWeight,
    Weight,
    concat_rows,
    quantize_int4,
    quantize_int8,
    to_bf16,
)
from tinyserve.kernels.ops import AttentionSpec, Backend, Linear
from tinyserve.models.checkpoint import Checkpoint, Progress
from tinyserve.models.config import ModelConfig
from tinyserve.models.decoder import Decoder, Layer
from tinyserve.models.layout import EMBEDDING, LM_HEAD
from tinyserve.models.packed_cache import PackedCache
from tinyserve.models.rope import rope_table

INT4_GROUP = 32
INT8_GROUPS = (192, 128, 64, 32)  # weights that share a scale: the first that divides a row
AT_ONCE = 1 << 22  # weights that are quantized at once


def int8_group(features: int) -> int:
    """How many weights of a row of `features` share a scale once they are quantized to int8."""
    return next(group for group in INT8_GROUPS if features % group == 0)


@dataclass(frozen=True)
class Conversion:
    """What `model.dtype` and `model.quantization` make of each matrix.

    dtype auto keeps the checkpoint's types; any other dtype widens quantized matrices and converts
    them all. quantization int8 or int4 then quantizes what is float; int4 keeps the embedding and
    the head in int8, which small models need. Matrices whose rows do not divide into groups of 32
    stay float. Larger groups of int8 are scaled less often: up to 1.6 times as fast with 32 rows.
    """

    dtype: str
    quantization: str | None

    def __call__(self, name: str, weight: Weight) -> Weight:
        if self.dtype != "auto":
            weight = _to_float(weight, self.dtype)
        if self.quantization is None or not isinstance(weight, FloatWeight):
            return weight
        features = weight.shape[1]
        if features % INT4_GROUP:
            return weight
        if self.quantization == "int8" or name in (EMBEDDING, LM_HEAD):
            group = int8_group(features)
            return _piecewise(weight, lambda values: quantize_int8(values, group))
        return _piecewise(weight, quantize_int4)


def load_decoder(
    checkpoint: Checkpoint,
    backend: Backend,
    options: ModelOptions,
    max_positions: int,
    progress: Progress | None = None,
    num_positions: int | None = None,
) -> Decoder:
    """Prepare every weight of the model for `backend`; rotary tables are those of `max_positions`,
    of which `num_positions` can occur (None: all).

    Raises ModelLoadError naming the tensor that is missing or unsupported.
    """
    cache = PackedCache.for_model(checkpoint, backend, options)
    loader = _Loader(checkpoint, backend, options, cache, progress)
    return loader.decoder(max_positions, num_positions)


class _Loader:
    def __init__(
        self,
        checkpoint: Checkpoint,
        backend: Backend,
        options: ModelOptions,
        cache: PackedCache,
        progress: Progress | None,
    ) -> None:
        self.config: ModelConfig = checkpoint.config
        self.tensors = checkpoint.tensors
        self.backend = backend
        self.convert = Conversion(options.dtype, options.quantization)
        self.cache = cache
        self.progress = progress

    def decoder(self, max_positions: int, num_positions: int | None) -> Decoder:
        config = self.config
        cos, sin = rope_table(config.rope, config.head_dim, max_positions, num_positions)
        layers = []
        for index in range(config.num_layers):
            if self.progress is not None:
                self.progress("loading weights", index, config.num_layers, unit="layers")
            layers.append(self._layer(index, cos, sin))
        embedding = self._matrix("embedding", [EMBEDDING])
        head = embedding
        if not config.tie_word_embeddings:
            head = self._matrix("head", [LM_HEAD])
        norm = self._vector("model.norm.weight")
        if self.progress is not None:
            self.progress("loading weights", config.num_layers, config.num_layers, unit="layers")
        self.cache.save()
        return Decoder(config, embedding, tuple(layers), norm, head)

    def _layer(self, index: int, cos: F32, sin: F32) -> Layer:
        config, prefix = self.config, f"model.layers.{index}."
        attention = AttentionSpec(
            layer=index,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            window=config.window(index),
            cos=cos,
            sin=sin,
            q_norm=self._vector(prefix + "self_attn.q_norm.weight") if config.qk_norm else None,
            k_norm=self._vector(prefix + "self_attn.k_norm.weight") if config.qk_norm else None,
            norm_eps=config.rms_norm_eps,
        )
        heads = [f"{prefix}self_attn.{part}_proj" for part in "qkv"]
        inner = [f"{prefix}mlp.{part}_proj" for part in ("gate", "up")]
        return Layer(
            input_norm=self._vector(prefix + "input_layernorm.weight"),
            qkv=self._projection(f"{index}.qkv", heads, config.qkv_bias),
            attention=attention,
            o=self._projection(f"{index}.o", [prefix + "self_attn.o_proj"], config.o_bias),
            post_norm=self._vector(prefix + "post_attention_layernorm.weight"),
            gate_up=self._projection(f"{index}.gate_up", inner, config.mlp_bias, silu_mul=True),
            down=self._projection(f"{index}.down", [prefix + "mlp.down_proj"], config.mlp_bias),
        )

    def _projection(
        self, key: str, names: list[str], has_bias: bool, *, silu_mul: bool = False
    ) -> Linear:
        bias: Callable[[], F32] | None = None
        if has_bias:

            def bias() -> F32:
                return np.concatenate([self._vector(f"{name}.bias") for name in names])

        return self._matrix(key, [f"{name}.weight" for name in names], bias, silu_mul=silu_mul)

    def _matrix(
        self,
        key: str,
        names: list[str],
        bias: Callable[[], F32] | None = None,
        *,
        silu_mul: bool = False,
    ) -> Linear:
        def prepare() -> Linear:
            parts = [self.convert(name, self.tensors.weight(name)) for name in names]
            return self.backend.linear(parts, bias() if bias else None, silu_mul=silu_mul)

        return self.cache.get(key, prepare)

    def _vector(self, name: str) -> F32:
        """A copy: a view would keep the whole file mapped."""
        return np.array(self.tensors.vector(name))


def _piecewise(weight: FloatWeight, quantize: Callable[[F32], Weight]) -> Weight:
    """Quantize some rows at a time: what is computed on the way takes sixteen bytes a weight, for a
    whole embedding more than the model.
    """
    rows = max(1, AT_ONCE // weight.shape[1])
    parts = [
        quantize(FloatWeight(weight.data[start : start + rows]).dequantize())
        for start in range(0, weight.shape[0], rows)
    ]
    whole = concat_rows(parts)
    assert whole is not None  # all parts are of one format
    return whole


def _to_float(weight: Weight, dtype: str) -> FloatWeight:
    if isinstance(weight, FloatWeight) and weight.dtype == dtype:
        return weight
    values = weight.dequantize()
    if dtype == "f32":
        return FloatWeight(values)
    if dtype == "bf16":
        return FloatWeight(to_bf16(values))
    with np.errstate(over="ignore"):
        return FloatWeight(values.astype(np.float16))


def weight_type(checkpoint: Checkpoint, options: ModelOptions) -> str:
    """The type that the model's matrices end up in, for people and for automatic choices: that of
    the first layer's query projection.
    """
    name = "model.layers.0.self_attn.q_proj.weight"
    weight = Conversion(options.dtype, options.quantization)(name, checkpoint.tensors.weight(name))
    if isinstance(weight, FloatWeight):
        return weight.dtype
    return "int8" if weight.q.dtype == np.int8 else "u4"


def resolve_kv_dtype(checkpoint: Checkpoint, options: ModelOptions) -> str:
    """`kv_cache_dtype`, automatic being f32 with f32 weights and f16 otherwise."""
    if options.kv_cache_dtype != "auto":
        return options.kv_cache_dtype
    return "f32" if weight_type(checkpoint, options) == "f32" else "f16"
