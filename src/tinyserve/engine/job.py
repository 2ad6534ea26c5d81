"""`Job`: a request that the engine has taken in, with what is decided once for all its choices.

`job_of` makes it, or refuses what could never run: whatever passes can run alone in an empty pool,
so the scheduler never spins on it.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tinyserve.engine.model_limits import ModelLimits
from tinyserve.engine.prompt_rows import PromptReader, reader_of
from tinyserve.engine.request import EngineRequest
from tinyserve.engine.sampling import SamplingParams
from tinyserve.errors import RequestError

if TYPE_CHECKING:
    from tinyserve.engine.sequence import Sequence

SEED_MASK = 2**64 - 1


@dataclass(slots=True, eq=False)
class Job:
    """A request, shared by its choices: everything that was settled once."""

    request: EngineRequest
    prompt_ids: tuple[int, ...]
    seed: int  # the request's, or else drawn
    max_len: int  # known tokens at which a choice ends, from max_tokens and the context
    eos_ids: frozenset[int]  # those of `stop_ids` that are no stop reason
    stop_ids: frozenset[int]  # tokens that end a choice
    min_banned: tuple[int, ...]  # masked while a choice is shorter than min_tokens
    reader: PromptReader | None  # takes the prompt's logprobs or hidden states, if any are wanted
    sequences: list[Sequence] = field(default_factory=list)
    num_cached_tokens: int = 0
    has_forked: bool = False  # choices 1 .. n-1 have left choice 0
    fault: Exception | None = None  # why the request cannot go on, found between two steps
    # Copies of what every token asks for, to be read without going through `request`.
    params: SamplingParams = field(init=False)
    may_ban: bool = field(init=False)  # tokens may be banned for some of its draws
    request_id: str = field(init=False)
    min_tokens: int = field(init=False)
    has_logprobs: bool = field(init=False)

    def __post_init__(self) -> None:
        self.params = params = self.request.params
        self.request_id = self.request.request_id
        self.min_tokens = params.min_tokens
        self.has_logprobs = params.logprobs is not None
        is_put_off = params.ignore_eos and bool(self.eos_ids)
        self.may_ban = is_put_off or params.min_tokens > 0 or bool(self.request.bad_words_ids)

    @property
    def wanted_positions(self) -> range:
        """The prompt positions whose rows are still to be read."""
        return self.reader.positions if self.reader is not None else range(0)

    @property
    def may_read_cache(self) -> bool:
        """False while a row before the prompt's last is wanted: cached tokens have no row."""
        wanted = self.wanted_positions
        return not wanted or wanted.start >= len(self.prompt_ids) - 1

    def forget(self) -> None:
        """All choices are finished: drop the references to them, which refer back to this job, so
        that no reference cycle is left to the garbage collector.
        """
        self.sequences.clear()


def job_of(request: EngineRequest, limits: ModelLimits, eos_token_ids: tuple[int, ...]) -> Job:
    """Check and resolve a request. Raises RequestError (ContextLengthError where it cannot fit)."""
    params = request.params
    prompt_ids = tuple(request.prompt_token_ids)
    limits.check_ids(prompt_ids)
    params.check_vocab(limits.vocab_size)
    if request.cache_salt is not None and not request.cache_salt:
        raise RequestError("cache_salt must not be empty", param="cache_salt")
    if request.pooling is not None and (params.max_tokens, params.n) != (0, 1):
        raise RequestError("an embedding draws no tokens: max_tokens is 0 and n is 1")
    # A grammar ends only with an EOS: there ignore_eos means not while anything else may follow.
    is_endless = params.ignore_eos and request.new_grammar is None
    eos_ids = frozenset(() if is_endless else eos_token_ids)
    stop_ids = eos_ids.union(params.stop_token_ids)
    return Job(
        request=request,
        prompt_ids=prompt_ids,
        seed=(secrets.randbits(64) if params.seed is None else params.seed) & SEED_MASK,
        max_len=len(prompt_ids) + limits.max_tokens(len(prompt_ids), params),
        eos_ids=eos_ids,
        stop_ids=stop_ids,
        min_banned=tuple(sorted(stop_ids)) if params.min_tokens else (),
        reader=reader_of(request, prompt_ids),
    )
