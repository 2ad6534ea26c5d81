"""From `SpecConfig` to a `Drafter`: which proposer, with which limits, under which controller; and
the loading of a draft model beside the served one.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from tinyserve.config import SpecConfig, TinyServeConfig
from tinyserve.engine.draft_model import DraftLimits, DraftModelProposer
from tinyserve.engine.drawing import DrawRows, draw_by_rejection, draw_coupled
from tinyserve.engine.memory import total_memory
from tinyserve.engine.resolve import least_weight_bytes
from tinyserve.engine.runner import ModelRunner
from tinyserve.errors import ConfigError
from tinyserve.kv.manager import KVManager
from tinyserve.kv_budget import block_bytes, readable
from tinyserve.models.cache import cache_dir
from tinyserve.models.checkpoint import Checkpoint, Progress, load_checkpoint
from tinyserve.models.weights import resolve_kv_dtype
from tinyserve.spec.controller import AdaptiveController
from tinyserve.spec.drafter import Drafter
from tinyserve.spec.ngram import NgramProposer
from tinyserve.spec.proposer import Proposer
from tinyserve.spec.suffix import SuffixProposer
from tinyserve.text.tokenizer import Tokenizer


def make_drafter(
    config: TinyServeConfig,
    tokenizer: Tokenizer,
    target: ModelRunner,
    progress: Progress | None = None,
) -> Drafter | None:
    """The drafter that a resolved configuration asks for; None where speculation is off.

    Raises ConfigError for a draft model that does not fit, ModelLoadError for one that cannot be
    read.
    """
    spec = config.spec
    if not spec.enabled:
        return None
    proposer: Proposer[Any]
    if spec.method == "draft_model":
        proposer = load_draft_model(config, tokenizer, target, progress)
    else:
        proposer = make_proposer(spec)
    return Drafter(proposer, AdaptiveController() if spec.adaptive else None)


def make_draw(spec: SpecConfig) -> DrawRows:
    """How the engine draws its tokens."""
    is_rejection = spec.enabled and spec.verification == "rejection"
    return draw_by_rejection if is_rejection else draw_coupled


def make_proposer(spec: SpecConfig) -> Proposer[Any]:
    """The proposer of a method that needs no model."""
    most = spec.num_speculative_tokens
    if spec.method == "suffix":
        return SuffixProposer(most, max_past=spec.max_past_tokens)
    return NgramProposer(most, min_n=spec.prompt_lookup_min, max_n=spec.prompt_lookup_max)


def load_draft_model(
    config: TinyServeConfig,
    tokenizer: Tokenizer,
    target: ModelRunner,
    progress: Progress | None = None,
) -> DraftModelProposer:
    """Load `spec.draft_model` as the served model is loaded, with a KV-cache of as many blocks.
    Raises ConfigError where it does not fit the served model, ModelLoadError where it cannot be
    read.
    """
    spec, cache, scheduler = config.spec, config.cache, config.scheduler
    assert spec.draft_model is not None
    assert scheduler.max_model_len is not None
    assert cache.num_blocks is not None
    checkpoint = load_checkpoint(spec.draft_model, progress=progress)
    own = Tokenizer.from_spec(
        checkpoint.tokenizer_spec(), cache_dir(), fingerprint=checkpoint.fingerprint
    )
    logits_size, vocab_size = target.decoder.config.vocab_size, checkpoint.config.vocab_size
    difference = tokenizer_difference(tokenizer, own)
    if difference is not None:
        raise ConfigError(
            f"spec.draft_model {spec.draft_model!r} has another vocabulary than the served model: "
            f"{difference}. Tokens: {own.vocab_size} against {tokenizer.vocab_size}; logits: "
            f"{vocab_size} against {logits_size}"
        )
    _check_memory(config, checkpoint, target)
    max_len = min(scheduler.max_model_len, checkpoint.config.max_position_embeddings)
    runner = ModelRunner.create(
        checkpoint,
        dataclasses.replace(config.model, name=spec.draft_model, chat_template=None),
        dataclasses.replace(cache, num_swap_blocks=0),
        dataclasses.replace(scheduler, max_model_len=max_len),
        backend=target.backend,
        progress=progress,
    )
    runner.known_vocab = min(vocab_size, tokenizer.vocab_size, logits_size)
    runner.check_numbers()
    return DraftModelProposer(
        runner,
        KVManager(cache.num_blocks, cache.block_size),
        DraftLimits(vocab_size, logits_size, max_len, min(scheduler.max_num_batched_tokens, 512)),
        spec.num_speculative_tokens,
        wants_probs=spec.verification == "rejection",
    )


def _check_memory(config: TinyServeConfig, draft: Checkpoint, target: ModelRunner) -> None:
    """Raise ConfigError where the machine could never hold the draft model and its KV-cache beside
    the served model's.
    """
    cache, total = config.cache, total_memory()
    assert cache.num_blocks is not None
    dtype = resolve_kv_dtype(draft, config.model)
    weights = least_weight_bytes(draft, config.model)
    blocks = cache.num_blocks * block_bytes(draft.config, cache.block_size, dtype)
    report = target.memory_report()
    held = sum(report[name]["reserved"] for name in ("weights", "kv_cache"))
    if held + weights + blocks > total:
        raise ConfigError(
            f"spec.draft_model {config.spec.draft_model!r}: its weights take {readable(weights)} "
            f"and its KV-cache, of as many blocks as the served model's, {readable(blocks)}, "
            f"beside {readable(held)} for that model, but this machine has {readable(total)}; "
            "fewer cache.num_blocks or a smaller draft model take less"
        )


def tokenizer_difference(target: Tokenizer, draft: Tokenizer) -> str | None:
    """What keeps the ids of one tokenizer from meaning the same in the other; None: nothing does.

    One may have more ids than the other only where the rest stands for no text (padding).
    """
    for token_id in range(max(target.vocab_size, draft.vocab_size)):
        texts = draft.token_bytes(token_id), target.token_bytes(token_id)
        if texts[0] != texts[1]:
            return f"token {token_id} is {texts[0]!r} against {texts[1]!r}"
    if target.bos_token_id != draft.bos_token_id:
        return f"BOS is token {draft.bos_token_id} against {target.bos_token_id}"
    return None
