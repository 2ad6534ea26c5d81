"""What a configuration leaves open, settled by the model's files and the machine.

Automatic settings (context length, KV blocks) are resolved once, into a new frozen configuration,
and each is noted with its reason.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from typing import Any

from tinyserve.config import (
    DEFAULT_MAX_MODEL_LEN,
    CacheConfig,
    ModelOptions,
    SchedulerConfig,
    TinyServeConfig,
)
from tinyserve.engine.memory import available_memory, total_memory
from tinyserve.engine.request import Pooling
from tinyserve.engine.sampling import SamplingParams
from tinyserve.errors import ConfigError, RequestError
from tinyserve.kv_budget import block_bytes, blocks_for, blocks_in_budget, readable
from tinyserve.models.checkpoint import Checkpoint
from tinyserve.models.config import ModelConfig
from tinyserve.models.weights import resolve_kv_dtype
from tinyserve.text.answer_format import MessageFormat
from tinyserve.text.tokenizer import Tokenizer

logger = logging.getLogger("tinyserve")

# The least that a stored byte becomes in memory, where weights are made smaller while loading.
_LEAST_CONVERTED = {"f16": 0.5, "bf16": 0.5, "int8": 0.25, "int4": 0.125}


def resolve(config: TinyServeConfig, checkpoint: Checkpoint) -> tuple[TinyServeConfig, list[str]]:
    """The configuration without automatic values, and why each was chosen."""
    scheduler, notes = resolve_max_model_len(config.scheduler, checkpoint.config)
    cache, more = resolve_num_blocks(config, scheduler, checkpoint)
    return config.replace(scheduler=scheduler, cache=cache), notes + more


def resolve_pooling(options: ModelOptions, checkpoint: Checkpoint) -> Pooling:
    """How embeddings are made: as set, as the checkpoint says, or else the mean, which fits a model
    that was never trained for embeddings better than its last state.
    """
    wanted = options.pooling if options.pooling != "auto" else checkpoint.pooling
    return "last" if wanted == "last" else "mean"


def resolve_message_format(options: ModelOptions, tokenizer: Tokenizer) -> MessageFormat:
    """How the model writes tool calls and thinking: as set, or by its chat template."""
    return MessageFormat.detect(
        tokenizer.chat_template.all_sources,
        tool_call_parser=options.tool_call_parser,
        reasoning_parser=options.reasoning_parser,
    )


def resolve_max_model_len(
    scheduler: SchedulerConfig, model: ModelConfig
) -> tuple[SchedulerConfig, list[str]]:
    """The context length: as set, or the model's; the default shrinks to a smaller model.

    Raises ConfigError where more was asked for than the model has.
    """
    limit = model.max_position_embeddings
    wanted = scheduler.max_model_len
    if wanted is not None and wanted <= limit:
        return scheduler, []
    if wanted is not None and wanted != DEFAULT_MAX_MODEL_LEN:
        raise ConfigError(
            f"scheduler.max_model_len is {wanted}, but the model's context is {limit} tokens"
        )
    note = f"max_model_len is {limit}: the model's context"
    return dataclasses.replace(scheduler, max_model_len=limit), [note]


def resolve_num_blocks(
    config: TinyServeConfig, scheduler: SchedulerConfig, checkpoint: Checkpoint
) -> tuple[CacheConfig, list[str]]:
    """The number of KV blocks: as set, from a memory budget, or from the memory that is free.

    Raises ConfigError where a budget is too small for one sequence, or the machine for the weights
    and the blocks, or those that swapping may take.
    """
    cache = config.cache
    max_model_len = scheduler.max_model_len
    assert max_model_len is not None
    dtype = resolve_kv_dtype(checkpoint, config.model)
    one = block_bytes(checkpoint.config, cache.block_size, dtype)
    weights = least_weight_bytes(checkpoint, config.model)
    notes = []
    num_blocks = cache.num_blocks
    if num_blocks is not None and num_blocks == CacheConfig.num_blocks:
        kv = num_blocks * one
        if kv <= total_memory() < kv + weights:
            num_blocks = None  # the default gives way to the weights
    if num_blocks is None:
        budget, why = cache.kv_cache_memory, "cache.kv_cache_memory"
        if budget is None:
            full = blocks_for(max_model_len, cache.block_size) * scheduler.max_num_seqs * one
            budget = min(full, max(0, available_memory() - weights) // 2)
            why = "every seat at full length" if budget == full else "half of the free memory"
        num_blocks = blocks_in_budget(
            checkpoint.config,
            budget,
            block_size=cache.block_size,
            kv_cache_dtype=dtype,
            max_model_len=max_model_len,
        )
        notes.append(f"num_blocks is {num_blocks} ({readable(num_blocks * one)}): {why}")
    num_swap_blocks = _swap_beside(cache, num_blocks, one, weights)
    if num_swap_blocks < cache.num_swap_blocks:
        notes.append(
            f"num_swap_blocks is {num_swap_blocks}: what the weights and the KV-cache leave of "
            "the memory; what is preempted beyond that is recomputed"
        )
    capacity = num_blocks * cache.block_size
    if capacity < max_model_len:
        notes.append(
            f"the KV-cache holds {capacity} tokens, less than max_model_len {max_model_len}: "
            "longer requests are refused"
        )
    resolved = dataclasses.replace(
        cache, num_blocks=num_blocks, num_swap_blocks=num_swap_blocks, kv_cache_memory=None
    )
    return resolved, notes


def least_weight_bytes(checkpoint: Checkpoint, options: ModelOptions) -> int:
    """What the weights take in memory, or less: known before any is read."""
    least = min(
        _LEAST_CONVERTED.get(kind or "", 1) for kind in (options.dtype, options.quantization)
    )
    return int(checkpoint.stored_bytes * least)


def _swap_beside(cache: CacheConfig, num_blocks: int, block_bytes: int, weights: int) -> int:
    """How many blocks swapping gets: as many as are set, or fewer of the default.

    Raises ConfigError where the machine could never hold the blocks beside the weights, or those
    of swapping beside both: the system would end the process without a word once they are in use.
    """
    total = total_memory()
    most = max(0, total - weights) // block_bytes
    if num_blocks > most:
        key = "num_blocks" if cache.kv_cache_memory is None else "kv_cache_memory"
        beside = f" and the weights {readable(weights)}" if weights else ""
        fitting = (
            f"at most {most} blocks fit, for a scheduler.max_model_len of at most "
            f"{most * cache.block_size}"
            if most
            else "a smaller model fits, or model.quantization"
        )
        raise ConfigError(
            f"cache.{key}: {num_blocks} blocks take {readable(num_blocks * block_bytes)}{beside}, "
            f"but this machine has {readable(total)}; {fitting}"
        )
    left = most - num_blocks
    if cache.num_swap_blocks > left and cache.num_swap_blocks != CacheConfig.num_swap_blocks:
        raise ConfigError(
            f"cache.num_swap_blocks {cache.num_swap_blocks} takes "
            f"{readable(cache.num_swap_blocks * block_bytes)}, but this machine has "
            f"{readable(total)}; at most {left} blocks fit beside weights and KV-cache"
        )
    return min(cache.num_swap_blocks, left)


def sampling_defaults(options: ModelOptions, checkpoint: Checkpoint) -> dict[str, Any]:
    """What fills sampling fields that a request leaves out.

    A value of the model's that no request could have is left out with a warning, rather than
    failing every request. Raises ConfigError for one of the operator's.
    """
    defaults: dict[str, Any] = {}
    use_own = options.generation_config == "auto"
    own: Mapping[str, Any] = checkpoint.sampling_defaults if use_own else {}
    for name, value in own.items():
        try:
            SamplingParams(**{name: value})
        except RequestError as error:
            logger.warning("sampling defaults of the model: %s; it is ignored", error)
        else:
            defaults[name] = value
    defaults |= options.override_generation_config or {}
    try:
        SamplingParams(**defaults)
    except (RequestError, TypeError) as error:
        raise ConfigError(f"model.override_generation_config: {error}") from error
    return defaults
