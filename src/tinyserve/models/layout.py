"""Which tensors a model consists of, under Hugging Face's names, with their shapes.

The one list that loaders check files against and that the synthetic model is drawn from. Knows no
file format.
"""

from __future__ import annotations

from collections.abc import Mapping

from tinyserve.errors import ModelLoadError
from tinyserve.models.config import ModelConfig

EMBEDDING = "model.embed_tokens.weight"
LM_HEAD = "lm_head.weight"

Shape = tuple[int, ...]

_SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_layers",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "max_position_embeddings",
)


def tensor_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Every tensor the decoder reads, in file order. A tied model has no `lm_head.weight`."""
    shapes: dict[str, Shape] = {EMBEDDING: (config.vocab_size, config.hidden_size)}
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}."
        shapes.update({prefix + name: shape for name, shape in layer_shapes(config).items()})
    shapes["model.norm.weight"] = (config.hidden_size,)
    if not config.tie_word_embeddings:
        shapes[LM_HEAD] = (config.vocab_size, config.hidden_size)
    return shapes


def layer_shapes(config: ModelConfig) -> dict[str, Shape]:
    """The tensors of one layer, without the `model.layers.N.` prefix; matrices are [out, in]."""
    hidden, inner, head = config.hidden_size, config.intermediate_size, config.head_dim
    q, kv = config.num_heads * head, config.num_kv_heads * head
    matrices: dict[str, tuple[int, int, bool]] = {
        "self_attn.q_proj": (q, hidden, config.qkv_bias),
        "self_attn.k_proj": (kv, hidden, config.qkv_bias),
        "self_attn.v_proj": (kv, hidden, config.qkv_bias),
        "self_attn.o_proj": (hidden, q, config.o_bias),
        "mlp.gate_proj": (inner, hidden, config.mlp_bias),
        "mlp.up_proj": (inner, hidden, config.mlp_bias),
        "mlp.down_proj": (hidden, inner, config.mlp_bias),
    }
    shapes: dict[str, Shape] = {"input_layernorm.weight": (hidden,)}
    for name, (rows, columns, has_bias) in matrices.items():
        shapes[f"{name}.weight"] = (rows, columns)
        if has_bias:
            shapes[f"{name}.bias"] = (rows,)
    if config.qk_norm:
        shapes["self_attn.q_norm.weight"] = (head,)
        shapes["self_attn.k_norm.weight"] = (head,)
    shapes["post_attention_layernorm.weight"] = (hidden,)
    return shapes


def check_config(config: ModelConfig, source: str) -> None:
    """Raise ModelLoadError naming a size that no transformer can have, or that rope cannot turn."""
    for name in _SIZES:
        if getattr(config, name) < 1:
            raise ModelLoadError(f"{source}: {name} must be positive, got {getattr(config, name)}")
    if config.num_heads % config.num_kv_heads:
        raise ModelLoadError(
            f"{source}: {config.num_heads} attention heads cannot share "
            f"{config.num_kv_heads} key-value heads"
        )
    if config.head_dim % 2:
        raise ModelLoadError(f"{source}: rope needs an even head_dim, got {config.head_dim}")


def check_layout(config: ModelConfig, found: Mapping[str, Shape], source: str) -> None:
    """Raise ModelLoadError naming the first tensor that is missing or of an unexpected shape."""
    if config.num_layers > len(found):  # before a damaged number becomes a list that long
        raise ModelLoadError(
            f"{source}: there are only {len(found)} tensors for {config.num_layers} layers"
        )
    expected = tensor_shapes(config)
    missing = [name for name in expected if name not in found]
    if missing:
        others = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        alike = next((name for name in found if name.endswith(f".{missing[0]}")), None)
        hint = "" if alike is None else f"; there is one called {alike}"
        raise ModelLoadError(f"{source}: tensor {missing[0]} is missing{others}{hint}")
    for name, shape in expected.items():
        if tuple(found[name]) != shape:
            raise ModelLoadError(
                f"{source}: tensor {name} has shape {list(found[name])}, "
                f"but the model's configuration needs {list(shape)}"
            )


def unexpected(config: ModelConfig, found: Mapping[str, Shape]) -> list[str]:
    """Tensors that the decoder would ignore, but for the rotary buffers that old exports hold."""
    expected = tensor_shapes(config)
    return [
        name for name in found if name not in expected and not name.endswith("rotary_emb.inv_freq")
    ]
