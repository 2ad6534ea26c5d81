"""`build_engine`: from a configuration to a running engine. Used by the offline API and by the
server.

Automatic choices (context length, KV blocks) are resolved here once, into a new frozen
configuration, and each is noted with its reason. Owns no state; the parts it puts together own
theirs.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from tinyserve.config import (
    DEFAULT_MAX_MODEL_LEN,
    CacheConfig,
    ModelOptions,
    SchedulerConfig,
    TinyServeConfig,
)
from tinyserve.engine.core import EngineCore
from tinyserve.engine.intake import Intake
from tinyserve.engine.memory import available_memory, give_back_freed, total_memory
from tinyserve.engine.plan import Runner
from tinyserve.engine.request import Pooling
from tinyserve.engine.runner import ModelRunner
from tinyserve.engine.sampling import SamplingParams
from tinyserve.engine.speculation import make_drafter, make_draw
from tinyserve.errors import ConfigError, RequestError
from tinyserve.kernels.ops import NUMERICS_VERSION
from tinyserve.kv.manager import KVManager
from tinyserve.kv_budget import block_bytes, blocks_for, blocks_in_budget, readable
from tinyserve.models.cache import cache_dir
from tinyserve.models.checkpoint import Checkpoint, Progress, load_checkpoint
from tinyserve.models.config import ModelConfig
from tinyserve.models.weights import resolve_kv_dtype
from tinyserve.spec.drafter import Drafter
from tinyserve.text.grammar import GrammarCompiler
from tinyserve.text.message_format import MessageFormat
from tinyserve.text.template import read_chat_template
from tinyserve.text.tokenizer import Tokenizer
from tinyserve.text.tokenizer_spec import TokenizerSpec

logger = logging.getLogger("tinyserve")


@dataclass(frozen=True)
class Engine:
    """A model ready to answer. `config` is resolved: no automatic value is left in it.

    `notes` are the automatic choices with their reasons, for the start-up summary.
    """

    core: EngineCore
    intake: Intake
    config: TinyServeConfig
    model_name: str
    fingerprint: str
    notes: tuple[str, ...] = ()
    model: ModelConfig | None = None
    weight_formats: tuple[str, ...] = ()  # most of them first


def build_engine(config: TinyServeConfig, progress: Progress | None = None) -> Engine:
    """Load the model and put an engine around it.

    Raises ConfigError for settings that the model or the machine cannot meet, ModelLoadError for a
    model that cannot be read.
    """
    checkpoint = load_checkpoint(config.model.name, progress=progress)
    config, notes = resolve(config, checkpoint)
    spec = tokenizer_spec(config.model, checkpoint)
    # The tokenizer's library holds the interpreter while it works; reading weights does not.
    with ThreadPoolExecutor(1, "tinyserve-tokenizer") as beside:
        found = beside.submit(
            Tokenizer.from_spec, spec, cache_dir(), fingerprint=checkpoint.fingerprint
        )
        runner = ModelRunner.create(
            checkpoint, config.model, config.cache, config.scheduler, progress=progress
        )
    tokenizer = found.result()
    # Embeddings may be padded past the tokenizer's last id; such ids are never drawn.
    runner.known_vocab = min(runner.known_vocab, tokenizer.vocab_size)
    runner.check_numbers()
    drafter = make_drafter(config, tokenizer, runner, progress)
    engine = assemble(config, checkpoint, tokenizer, runner, notes, drafter)
    give_back_freed()
    runner.note_process(engine.core.memory_report())
    return engine


def assemble(
    config: TinyServeConfig,
    checkpoint: Checkpoint,
    tokenizer: Tokenizer,
    runner: Runner,
    notes: Sequence[str] = (),
    drafter: Drafter | None = None,
) -> Engine:
    """An engine over any runner; `config` is resolved."""
    vocab_size = checkpoint.config.vocab_size
    eos_token_ids = ends_of_text(checkpoint, tokenizer)
    core = EngineCore(
        runner,
        KVManager.from_config(config.cache),
        config.scheduler,
        eos_token_ids=eos_token_ids,
        vocab_size=vocab_size,
        drafter=drafter,
        draw=make_draw(config.spec),
    )
    defaults = sampling_defaults(config.model, checkpoint)
    if defaults:
        shown = ", ".join(f"{name}={value}" for name, value in sorted(defaults.items()))
        notes = (*notes, f"sampling defaults of the model, where a request names none: {shown}")
    uses_bf16x3 = isinstance(runner, ModelRunner) and runner.uses_bf16x3
    if uses_bf16x3:
        why = "the matrix unit" if config.model.bf16_products == "auto" else "model.bf16_products"
        notes = (*notes, f"bf16 weights meet activations in three bf16 parts (bf16x3): {why}")
    for note in notes:
        logger.info("%s", note)
    return Engine(
        core=core,
        intake=Intake(
            tokenizer,
            core.limits,
            GrammarCompiler(tokenizer, vocab_size, eos_token_ids),
            checkpoint.config.hidden_size,
            defaults,
            resolve_pooling(config.model, checkpoint),
            config.model.default_chat_template_kwargs or {},
            resolve_message_format(config.model, tokenizer),
        ),
        config=config,
        # A path need not be Unicode; what answers and metrics show must be.
        model_name=os.fsencode(checkpoint.name).decode(errors="replace"),
        fingerprint=_system_fingerprint(config.model, checkpoint, uses_bf16x3),
        notes=tuple(notes),
        model=checkpoint.config,
        weight_formats=runner.decoder.formats() if isinstance(runner, ModelRunner) else (),
    )


def ends_of_text(checkpoint: Checkpoint, tokenizer: Tokenizer) -> tuple[int, ...]:
    """The ids that the model's files name, and its tokenizer's own EOS. Who fine-tunes a model on
    conversations often changes the latter alone, and answers would never end.
    """
    own, named = tokenizer.eos_token_id, checkpoint.eos_token_ids
    if own is None or own in named or own >= checkpoint.config.vocab_size:
        return named
    return (*named, own)


def tokenizer_spec(options: ModelOptions, checkpoint: Checkpoint) -> TokenizerSpec:
    """The checkpoint's tokenizer, with `model.chat_template` in place of its own if that is set."""
    spec = checkpoint.tokenizer_spec()
    if options.chat_template is not None:
        spec = spec.with_chat_template(read_chat_template(options.chat_template))
    return spec


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

    Raises ConfigError where a budget is too small for one sequence, or the machine for the blocks
    or those that swapping may take.
    """
    cache = config.cache
    max_model_len = scheduler.max_model_len
    assert max_model_len is not None
    dtype = resolve_kv_dtype(checkpoint, config.model)
    one = block_bytes(checkpoint.config, cache.block_size, dtype)
    notes = []
    num_blocks = cache.num_blocks
    if num_blocks is None:
        budget, why = cache.kv_cache_memory, "cache.kv_cache_memory"
        if budget is None:
            full = blocks_for(max_model_len, cache.block_size) * scheduler.max_num_seqs * one
            budget = min(full, available_memory() // 2)
            why = "every seat at full length" if budget == full else "half of the free memory"
        num_blocks = blocks_in_budget(
            checkpoint.config,
            budget,
            block_size=cache.block_size,
            kv_cache_dtype=dtype,
            max_model_len=max_model_len,
        )
        notes.append(f"num_blocks is {num_blocks} ({readable(num_blocks * one)}): {why}")
    total = total_memory()
    if num_blocks * one > total:
        raise ConfigError(
            f"cache.num_blocks {num_blocks} takes {readable(num_blocks * one)}, but this machine "
            f"has {readable(total)}; at most {total // one} blocks fit, for a "
            f"scheduler.max_model_len of at most {total // one * cache.block_size}"
        )
    if cache.num_swap_blocks * one > total and cache.num_swap_blocks != CacheConfig.num_swap_blocks:
        raise ConfigError(  # the default is reserved and used as far as the memory goes
            f"cache.num_swap_blocks {cache.num_swap_blocks} takes "
            f"{readable(cache.num_swap_blocks * one)}, but this machine has {readable(total)}; at "
            f"most {total // one} blocks fit"
        )
    capacity = num_blocks * cache.block_size
    if capacity < max_model_len:
        notes.append(
            f"the KV-cache holds {capacity} tokens, less than max_model_len {max_model_len}: "
            "longer requests are refused"
        )
    resolved = dataclasses.replace(cache, num_blocks=num_blocks, kv_cache_memory=None)
    return resolved, notes


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


def _system_fingerprint(options: ModelOptions, checkpoint: Checkpoint, uses_bf16x3: bool) -> str:
    """Changes whenever the same request may give other bits."""
    identity: tuple[object, ...] = (
        checkpoint.fingerprint,
        options.dtype,
        options.quantization,
        resolve_kv_dtype(checkpoint, options),
    )
    if uses_bf16x3:
        identity += ("bf16x3",)
    digest = hashlib.sha256(repr(identity).encode()).hexdigest()[:12]
    return f"ts{NUMERICS_VERSION}-{digest}"
