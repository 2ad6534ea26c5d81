"""How much memory KV blocks take, and how many blocks a budget holds.

Pure arithmetic over a model's shape (any object with num_layers, num_kv_heads, head_dim and
max_position_embeddings, such as `ModelConfig`).
"""

from __future__ import annotations

import importlib
import math
from typing import Any, Protocol

from tinyserve.config import DEFAULT_MAX_MODEL_LEN, CacheConfig, ModelOptions
from tinyserve.errors import ConfigError

ELEMENT_BYTES = {"f32": 4, "f16": 2, "bf16": 2, "int8": 1}
SCALE_BYTES = 4  # int8 carries one f32 scale per token and head, for K and for V
GIB = 1 << 30


class KVShape(Protocol):
    """What decides the size of a token's keys and values."""

    @property
    def num_layers(self) -> int: ...
    @property
    def num_kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def max_position_embeddings(self) -> int: ...


def block_bytes(shape: KVShape, block_size: int, kv_cache_dtype: str) -> int:
    """Bytes of one block over all layers, K and V: 2 x layers x tokens x heads x row bytes."""
    row = shape.head_dim * ELEMENT_BYTES[kv_cache_dtype]
    if kv_cache_dtype == "int8":
        row += SCALE_BYTES
    return 2 * shape.num_layers * block_size * shape.num_kv_heads * row


def blocks_for(num_tokens: int, block_size: int) -> int:
    """Blocks that hold `num_tokens` tokens."""
    return -(-num_tokens // block_size)


def blocks_in_budget(
    shape: KVShape,
    budget: int,
    *,
    block_size: int,
    kv_cache_dtype: str,
    max_model_len: int,
) -> int:
    """Blocks that fit into `budget` bytes.

    Raises ConfigError, with the bytes needed and the largest max_model_len that fits, where not
    even one sequence of `max_model_len` tokens would.
    """
    one = block_bytes(shape, block_size, kv_cache_dtype)
    num_blocks = budget // one
    needed = blocks_for(max_model_len, block_size)
    if num_blocks < needed:
        held = num_blocks * block_size
        shorter = f", or lower scheduler.max_model_len to at most {held}" if held > 1 else ""
        raise ConfigError(
            f"a KV-cache of {readable(budget)} holds "
            f"{held} tokens; one sequence of scheduler.max_model_len {max_model_len} needs "
            f"{readable(needed * one)}. Give cache.kv_cache_memory more{shorter}"
        )
    return num_blocks


def cache_from_budget(
    model: Any,
    *,
    kv_cache_gb: float,
    max_model_len: int | None = None,
    kv_cache_dtype: str = "auto",
    **fields: Any,
) -> CacheConfig:
    """A CacheConfig whose blocks fill `kv_cache_gb` GiB.

    `model` is a ModelConfig, a Checkpoint, or a name or path to load. `kv_cache_dtype` "auto" is
    what the model's weights make it; with a bare ModelConfig, which does not tell, it counts as
    f32, the largest it can become, so that the budget always holds.
    `max_model_len` None is 4096 or the model's context, if that is smaller. `fields` are further
    CacheConfig settings. Raises ConfigError where the budget is too small for one sequence.
    """
    is_number = isinstance(kv_cache_gb, int | float) and not isinstance(kv_cache_gb, bool)
    if not is_number or not 0 < kv_cache_gb < math.inf:
        raise ConfigError(f"kv_cache_gb must be a positive number of GiB, got {kv_cache_gb!r}")
    # The only imports of a higher part, and only where a whole model is given, not its shape.
    if isinstance(model, str):
        model = importlib.import_module("tinyserve.models.checkpoint").load_checkpoint(model)
    if kv_cache_dtype == "auto" and hasattr(model, "tensors"):
        weights = importlib.import_module("tinyserve.models.weights")
        kv_cache_dtype = weights.resolve_kv_dtype(model, ModelOptions())
    shape: KVShape = getattr(model, "config", model)
    base = CacheConfig(**fields)
    limit = max_model_len or min(DEFAULT_MAX_MODEL_LEN, shape.max_position_embeddings)
    num_blocks = blocks_in_budget(
        shape,
        int(kv_cache_gb * GIB),
        block_size=base.block_size,
        kv_cache_dtype="f32" if kv_cache_dtype == "auto" else kv_cache_dtype,
        max_model_len=limit,
    )
    return CacheConfig(**{**fields, "num_blocks": num_blocks})


def readable(num_bytes: float) -> str:
    """ "1.5 GiB"."""
    for unit in ("bytes", "KiB", "MiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.0f} {unit}" if unit == "bytes" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.1f} GiB"
