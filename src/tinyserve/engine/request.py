"""What goes into the engine and what comes out: plain values that may cross threads.

Owns the shapes of a request and of its outputs, and the seam through which text is made. Knows no
tokenizer, no scheduler, no KV-cache. A request is never changed once it was added; an output is
never changed once `step()` returned it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from tinyserve.engine.sampling import SampledToken, SamplingParams

FinishReason = Literal["stop", "length", "abort", "error"]
Pooling = Literal["last", "mean"]


class TextOutput(Protocol):
    """The text of one choice: turns token ids into text and watches for stop strings.

    Text is returned as soon as it is certain; what could still be part of a character or of a stop
    string is held back. The engine calls `push` for every token that has visible text, in order,
    and `flush` once if the choice ends without a stop string.
    """

    def push(self, token_id: int, can_stop: bool) -> str:
        """The text that became certain. Stop strings count only where `can_stop` (min_tokens)."""
        ...

    def flush(self) -> str:
        """The text that was still held back."""
        ...

    @property
    def stop_hit(self) -> str | None:
        """The stop string that the latest `push` completed; its text is already cut."""
        ...


class TokenGrammar(Protocol):
    """Which tokens may come next in one choice. Only tokens that the choice has taken move it, so
    neither preemption nor a rejected draft leaves a trace.
    """

    def masks(self, drafts: Sequence[int] = ()) -> list[NDArray[np.uint32]]:
        """Packed allow-lists (`SampleRow.mask`), as wide as the logits: for the next token, then
        for the one after each of `drafts`. Fewer than len(drafts) + 1 where a draft may not follow.

        Raises RequestError where it cannot say; the request then ends.
        """
        ...

    def take(self, token_id: int) -> None:
        """The choice has taken this token."""
        ...

    def count_valid(self, drafts: Sequence[int]) -> int:
        """How many of `drafts`, from the first on, may follow."""
        ...


@dataclass(slots=True, kw_only=True, eq=False)
class EngineRequest:
    """One request of `params.n` choices over one prompt.

    `priority`: lower runs first. `arrival`: `time.monotonic` when the request came, before it was
    tokenized; earlier runs first, and ties in the order of `add_request`. `queued`: when it began
    to wait. `cache_salt` separates prefix caches. `client`: to whom the fair policy counts it.
    `text` makes the text output of one choice and is called once per choice; None: token ids only.
    `bad_words_ids`: token sequences that are never completed, `params.bad_words` in the model's
    tokens. `pooling`: make an embedding of the prompt and no token (`params.max_tokens` is 0): the
    hidden state of its last token, or the mean over its tokens. `speculative` False: no drafts for
    this request, whatever the engine is set to. `grammar` makes the grammar of one choice, like
    `text`. `keeps_space`: how that text begins (`Tokenizer.detokenizer`).
    """

    request_id: str
    prompt_token_ids: Sequence[int]
    params: SamplingParams = field(default_factory=SamplingParams)
    priority: int = 0
    arrival: float = field(default_factory=time.monotonic)
    queued: float = field(default_factory=time.monotonic)
    cache_salt: str | None = None
    client: str = ""
    text: Callable[[], TextOutput] | None = None
    keeps_space: bool = False
    bad_words_ids: tuple[tuple[int, ...], ...] = ()
    pooling: Pooling | None = None
    speculative: bool = True
    grammar: Callable[[], TokenGrammar] | None = None


@dataclass(slots=True)
class RequestOutput:
    """What one step added to one choice; its last output, and only that, has a `finish_reason`.

    A stopping token (EOS or one of `stop_token_ids`) is the last of `new_token_ids`, and its text
    is shown only under `include_stop_str_in_output`. `stop_reason` is the stop string, or the id of
    `stop_token_ids`; None for EOS. `logprobs` has one entry per new token when the request asked
    for them. `prompt_logprobs` comes once, with the first output of choice 0: one entry per prompt
    token, the first None. `num_cached_tokens`: prompt tokens whose KV was found in the prefix
    cache. `error` says why a choice ended with "error". `embedding` [hidden]: the pooled state
    after the last norm, not normalised. Lengths count tokens.
    """

    request_id: str
    index: int
    new_token_ids: list[int]
    new_text: str
    num_prompt_tokens: int
    num_cached_tokens: int
    logprobs: list[SampledToken] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    prompt_logprobs: list[SampledToken | None] | None = None
    error: Exception | None = None
    embedding: NDArray[np.float32] | None = None


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Gauges (what is so now) and counters (what has happened since the start). Plain numbers.

    Requests are counted by choice: a request of n choices is n of them once its prompt was
    computed.
    """

    num_waiting: int  # never started, or dropped to be recomputed
    num_running: int
    num_swapped: int
    num_free_blocks: int  # hold nothing
    num_cached_blocks: int  # owned by no sequence, but a prefix hit may revive them
    num_total_blocks: int
    num_free_swap_blocks: int
    num_total_swap_blocks: int
    num_steps: int
    num_prompt_tokens: int  # of requests whose prompt is done with: computed, or not needed
    num_generation_tokens: int
    num_scheduled_tokens: int  # rows that went through the model, recomputed ones too
    num_preemptions_swap: int
    num_preemptions_recompute: int
    num_prefix_query_tokens: int
    num_prefix_hit_tokens: int
    num_cow_copies: int
    num_swapped_out_blocks: int
    num_swapped_in_blocks: int
    num_draft_tokens: int
    num_accepted_tokens: int
    num_corrupted: int  # requests failed because their logits were not numbers
    num_recomputed_tokens: int = 0  # rows whose KV had been dropped by a preemption
    num_drafts: int = 0  # runs of draft tokens that were verified
    num_accepted_per_position: tuple[int, ...] = ()  # [i]: runs of which draft i was accepted
