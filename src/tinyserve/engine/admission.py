"""Admission: checks and completes a request into a `Job`, or refuses what could never run.

Owns what is decided once per request (seed, length limit, stop ids). Whatever passes can run alone
in an empty pool, so the scheduler never spins on it.
"""

from __future__ import annotations

import secrets

from tinyserve.engine.model_limits import ModelLimits
from tinyserve.engine.prompt_rows import reader_of
from tinyserve.engine.request import EngineRequest
from tinyserve.engine.sequence import Job
from tinyserve.errors import RequestError
from tinyserve.kv.prefix_cache import cache_namespace

SEED_MASK = 2**64 - 1


def settle(request: EngineRequest, limits: ModelLimits, eos_token_ids: tuple[int, ...]) -> Job:
    """Check and resolve a request. Raises RequestError (ContextLengthError where it cannot fit)."""
    params = request.params
    prompt_ids = tuple(request.prompt_token_ids)
    limits.check_ids(prompt_ids)
    params.check_vocab(limits.vocab_size)
    if request.cache_salt is not None and not request.cache_salt:
        raise RequestError("cache_salt must not be empty", param="cache_salt")
    if request.pooling is not None and (params.max_tokens, params.n) != (0, 1):
        raise RequestError("an embedding draws no tokens: max_tokens is 0 and n is 1")
    # A grammar ends at an EOS; ignore_eos then puts it off, as long as anything else may follow.
    is_endless = params.ignore_eos and request.grammar is None
    eos_ids = frozenset(() if is_endless else eos_token_ids)
    stop_ids = eos_ids.union(params.stop_token_ids)
    return Job(
        request=request,
        prompt_ids=prompt_ids,
        seed=(secrets.randbits(64) if params.seed is None else params.seed) & SEED_MASK,
        max_len=len(prompt_ids) + limits.max_tokens(len(prompt_ids), params),
        namespace=cache_namespace(salt=request.cache_salt),
        eos_ids=eos_ids,
        stop_ids=stop_ids,
        min_banned=tuple(sorted(stop_ids)) if params.min_tokens else (),
        reader=reader_of(request, prompt_ids),
    )
