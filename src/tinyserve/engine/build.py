"""`build_engine`: from a configuration to a running engine. Used by the offline API and by the
server.

Puts the parts together (`engine/resolve.py` settles what was left open). Owns no state; the parts
own theirs.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from tinyserve.config import ModelOptions, TinyServeConfig
from tinyserve.engine.core import EngineCore
from tinyserve.engine.intake import Intake
from tinyserve.engine.memory import give_back_freed
from tinyserve.engine.plan import Runner
from tinyserve.engine.resolve import (
    resolve,
    resolve_message_format,
    resolve_pooling,
    sampling_defaults,
)
from tinyserve.engine.runner import ModelRunner
from tinyserve.engine.speculation import make_drafter, make_draw
from tinyserve.kernels.ops import NUMERICS_VERSION
from tinyserve.kv.manager import KVManager
from tinyserve.models.cache import cache_dir
from tinyserve.models.checkpoint import Checkpoint, Progress, load_checkpoint
from tinyserve.models.config import ModelConfig
from tinyserve.models.weights import resolve_kv_dtype
from tinyserve.spec.drafter import Drafter
from tinyserve.text.grammar import GrammarCompiler
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
    # Two threads gain time although the tokenizer's library holds the interpreter's lock while it
    # works: reading weights does not.
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
    use_own = config.model.generation_config == "auto"
    chat_max_tokens = checkpoint.max_new_tokens if use_own else None
    uses_bf16x2 = isinstance(runner, ModelRunner) and runner.uses_bf16x2
    notes = (*notes, *_more_notes(config.model, defaults, chat_max_tokens, uses_bf16x2))
    for note in notes:
        logger.info("%s", note)
    return Engine(
        core=core,
        intake=Intake(
            tokenizer=tokenizer,
            limits=core.limits,
            grammars=GrammarCompiler(tokenizer, vocab_size, eos_token_ids),
            embedding_size=checkpoint.config.hidden_size,
            sampling_defaults=defaults,
            pooling=resolve_pooling(config.model, checkpoint),
            template_kwargs=config.model.default_chat_template_kwargs or {},
            message_format=resolve_message_format(config.model, tokenizer),
            chat_max_tokens=chat_max_tokens,
        ),
        config=config,
        # A path need not be Unicode; what answers and metrics show must be.
        model_name=os.fsencode(checkpoint.name).decode(errors="replace"),
        fingerprint=_system_fingerprint(config.model, checkpoint, uses_bf16x2),
        notes=notes,
        model=checkpoint.config,
        weight_formats=runner.decoder.formats() if isinstance(runner, ModelRunner) else (),
    )


def _more_notes(
    options: ModelOptions,
    defaults: Mapping[str, Any],
    chat_max_tokens: int | None,
    uses_bf16x2: bool,
) -> Iterator[str]:
    """What was chosen beside the sizes, and why."""
    if defaults:
        shown = ", ".join(f"{name}={value}" for name, value in sorted(defaults.items()))
        yield f"sampling defaults of the model, where a request names none: {shown}"
    if chat_max_tokens is not None and "max_tokens" not in defaults:
        yield f"max_new_tokens of the model, where a conversation names none: {chat_max_tokens}"
    if uses_bf16x2:
        why = "the matrix unit" if options.bf16_products == "auto" else "model.bf16_products"
        yield f"bf16 weights meet activations in two bf16 parts (bf16x2): {why}"


def ends_of_text(checkpoint: Checkpoint, tokenizer: Tokenizer) -> tuple[int, ...]:
    """The ids that the model's files name, and its tokenizer's own EOS. Fine-tuning on
    conversations often changes only the latter; without it answers would never end.
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


def _system_fingerprint(options: ModelOptions, checkpoint: Checkpoint, uses_bf16x2: bool) -> str:
    """Changes whenever the same request may give other bits, and is the same for servers with
    copies of one model.
    """
    identity: tuple[object, ...] = (
        checkpoint.contents,
        options.dtype,
        options.quantization,
        resolve_kv_dtype(checkpoint, options),
    )
    if uses_bf16x2:
        identity += ("bf16x2",)
    digest = hashlib.sha256(repr(identity).encode()).hexdigest()[:12]
    return f"ts{NUMERICS_VERSION}-{digest}"
