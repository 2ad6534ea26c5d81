"""Admission: checks and completes a request into a `Job`, or refuses what could never run.

Owns every check that needs the model's limits or the pool's size, and what is decided once per
request (seed, length limit, stop ids). Whatever passes can run alone in an empty pool, so the
scheduler never spins on it.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from tinyserve.engine.prompt_rows import reader_of
from tinyserve.engine.request import EngineRequest
from tinyserve.engine.sequence import Job
from tinyserve.errors import ContextLengthError, RequestError
from tinyserve.kv.manager import KVManager
from tinyserve.kv.prefix_cache import cache_namespace

SEED_MASK = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Limits:
    """What the model and the pool allow. `max_model_len` None: as much as the pool holds."""

    max_model_len: int | None
    eos_token_ids: tuple[int, ...]
    vocab_size: int | None


def settle(request: EngineRequest, limits: Limits, kv: KVManager) -> Job:
    """Check and resolve a request. Raises RequestError (ContextLengthError where it cannot fit)."""
    params = request.params
    prompt_ids = tuple(request.prompt_token_ids)
    if not prompt_ids:
        raise RequestError("the prompt has no tokens", param="prompt")
    if request.cache_salt is not None and not request.cache_salt:
        raise RequestError("cache_salt must not be empty", param="cache_salt")
    if request.pooling is not None and (params.max_tokens, params.n) != (0, 1):
        raise RequestError("an embedding draws no tokens: max_tokens is 0 and n is 1")
    if limits.vocab_size is not None:
        params.check_vocab(limits.vocab_size)
        _check_prompt_ids(prompt_ids, limits.vocab_size)
    # A grammar ends at an EOS; ignore_eos then puts it off, as long as anything else may follow.
    is_endless = params.ignore_eos and request.grammar is None
    eos_ids = frozenset(() if is_endless else limits.eos_token_ids)
    stop_ids = eos_ids.union(params.stop_token_ids)
    return Job(
        request=request,
        prompt_ids=prompt_ids,
        seed=(secrets.randbits(64) if params.seed is None else params.seed) & SEED_MASK,
        max_len=_max_len(len(prompt_ids), params.max_tokens, limits, kv),
        namespace=cache_namespace(salt=request.cache_salt),
        eos_ids=eos_ids,
        stop_ids=stop_ids,
        min_banned=tuple(sorted(stop_ids)) if params.min_tokens else (),
        reader=reader_of(request, prompt_ids),
    )


def _check_prompt_ids(prompt_ids: tuple[int, ...], vocab_size: int) -> None:
    if min(prompt_ids) >= 0 and max(prompt_ids) < vocab_size:
        return
    wrong = next(token_id for token_id in prompt_ids if not 0 <= token_id < vocab_size)
    raise RequestError(
        f"prompt: token id {wrong} is outside the vocabulary (0..{vocab_size - 1})", param="prompt"
    )


def _max_len(num_prompt: int, max_tokens: int | None, limits: Limits, kv: KVManager) -> int:
    """The number of tokens, prompt included, at which a choice ends for its length."""
    context = limits.max_model_len
    shortest = num_prompt if max_tokens == 0 else num_prompt + 1
    if context is not None and shortest > context:
        raise ContextLengthError(
            f"the context holds {context} tokens; the prompt has {num_prompt}, "
            "which leaves no room for an answer",
            param="prompt",
        )
    pool = kv.num_blocks * kv.block_size + 1  # the last token needs no KV
    longest = pool if context is None else context
    if max_tokens is not None:
        longest = min(longest, num_prompt + max_tokens)
    elif num_prompt < pool:
        longest = min(longest, pool)
    if max(longest - 1, num_prompt) >= pool:
        raise ContextLengthError(
            f"the KV-cache holds {pool - 1} tokens; the prompt has {num_prompt} and asks for "
            f"{longest - num_prompt} more: lower max_tokens or raise cache.num_blocks",
            param="prompt" if num_prompt >= pool else "max_tokens",
        )
    return longest
