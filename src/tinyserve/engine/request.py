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
    """One request of `params.n` choices over one prompt."""

    request_id: str
    prompt_token_ids: Sequence[int]
    params: SamplingParams = field(default_factory=SamplingParams)
    priority: int = 0  # lower runs first
    # `time.monotonic` when the request came, before it was tokenized. Of one priority the earlier
    # runs first; ties go by the order of `add_request`.
    arrival: float = field(default_factory=time.monotonic)
    queued: float = field(default_factory=time.monotonic)  # when it began to wait
    cache_salt: str | None = None  # requests share cached prefixes only under the same salt
    client: str = ""  # whose service the fair policy counts it as
    new_text: Callable[[], TextOutput] | None = None  # for each choice; None: token ids only
    keeps_space: bool = False  # how the text begins; see `Tokenizer.detokenizer`
    bad_words_ids: tuple[tuple[int, ...], ...] = ()  # `params.bad_words` as the model's tokens
    # An embedding instead of tokens (`params.max_tokens` is 0): the hidden state of the prompt's
    # last token, or the mean over all of them.
    pooling: Pooling | None = None
    speculative: bool = True  # False: no drafts, whatever the engine is set to
    new_grammar: Callable[[], TokenGrammar] | None = None  # for each choice


@dataclass(slots=True)
class RequestOutput:
    """What one step added to one choice; its last output, and only that, has a `finish_reason`.

    A stopping token (EOS or one of `stop_token_ids`) is the last of `new_token_ids`, and its text
    is shown only under `include_stop_str_in_output`.
    """

    request_id: str
    index: int
    new_token_ids: list[int]
    new_text: str
    num_prompt_tokens: int
    num_cached_tokens: int  # of the prompt, whose KV was found in the prefix cache
    logprobs: list[SampledToken] | None = None  # one per new token, if they were asked for
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None  # the stop string, or the stop token's id; None for EOS
    # One per prompt token, the first None; with the first output of choice 0 alone.
    prompt_logprobs: list[SampledToken | None] | None = None
    error: Exception | None = None  # why it finished with "error"
    embedding: NDArray[np.float32] | None = None  # [hidden], after the last norm, not normalised


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
