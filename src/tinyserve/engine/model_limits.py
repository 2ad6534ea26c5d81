"""`ModelLimits`: what bounds a request, in tokens and ids, and the checks that follow from it.

One per engine. The intake checks by it what users hand in, before anything waits; the engine once
more, so that nothing it runs could overrun the model or the pool, whoever made the request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tinyserve.engine.sampling import SamplingParams
from tinyserve.errors import ContextLengthError, RequestError


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """A model's and its KV pool's."""

    vocab_size: int  # width of the logits
    max_model_len: int
    kv_capacity: int  # tokens that the whole KV pool holds

    @property
    def room(self) -> int:
        """The longest prompt plus output. The last token of an output needs no KV."""
        return min(self.max_model_len, self.kv_capacity + 1)

    @property
    def longest_prompt(self) -> int:
        """The longest prompt of a request without an output: the KV of all its tokens is kept."""
        return min(self.max_model_len, self.kv_capacity)

    def check_ids(self, ids: Sequence[int], param: str = "prompt") -> None:
        """Raises RequestError for a prompt without tokens, or with one that the model lacks."""
        if not ids:
            raise RequestError(f"{param} is empty: it has no tokens", param=param)
        size = self.vocab_size
        if set(map(type, ids)) == {int} and min(ids) >= 0 and max(ids) < size:
            return  # a long prompt must not hold up the engine's thread
        for token_id in ids:
            if isinstance(token_id, bool) or not isinstance(token_id, int):
                raise RequestError(f"{param}: {token_id!r} is not a token id", param=param)
            if not 0 <= token_id < size:
                raise RequestError(
                    f"{param}: token id {token_id} is outside the vocabulary (0..{size - 1})",
                    param=param,
                )

    def max_tokens(self, num_prompt: int, params: SamplingParams) -> int:
        """How many tokens may follow a prompt: those asked for, or else all there is room for.

        Raises ContextLengthError where prompt and output do not fit.
        """
        asked = params.max_tokens
        num_output = asked if asked is not None else max(1, params.min_tokens)
        wanted = num_prompt + num_output
        if wanted > self.max_model_len or (asked != 0 and num_prompt >= self.max_model_len):
            raise ContextLengthError(
                f"This model's maximum context length is {self.max_model_len} tokens. However, "
                f"you requested {wanted} tokens ({num_prompt} in the prompt, "
                f"{num_output} for the output). Please shorten the prompt or the output.",
                param="max_tokens" if num_prompt < self.max_model_len else "prompt",
            )
        if wanted > self.kv_capacity + 1 or num_prompt > self.kv_capacity:
            raise ContextLengthError(
                f"The request needs {wanted} tokens ({num_prompt} in the prompt, "
                f"{num_output} for the output), but the whole KV-cache holds "
                f"{self.kv_capacity} (cache.num_blocks).",
                param="max_tokens" if num_prompt <= self.kv_capacity else "prompt",
            )
        return asked if asked is not None else self.room - num_prompt
