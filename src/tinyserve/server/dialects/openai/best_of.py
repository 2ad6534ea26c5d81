"""`best_of`: of more choices than are shown, the likeliest by mean logprob of the generated tokens.

Only whole answers can choose. All that was generated counts as usage, as with OpenAI.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from tinyserve.server.deltas import Delta, DeltaMaker, ScoredToken
from tinyserve.server.dialects.openai.writer import CompletionWriter, WriterOptions
from tinyserve.server.writer import Identity
from tinyserve.text.tokenizer import Tokenizer


class BestOfWriter(CompletionWriter):
    """Shows `num_choices` of the choices that its deltas hold, the same share of each prompt's.

    The deltas carry logprobs, which are shown only if `shows_logprobs`; with `scores_prompt` they
    begin with the prompt's.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        identity: Identity,
        options: WriterOptions,
        *,
        num_choices: int,
        shows_logprobs: bool,
        scores_prompt: bool,
    ) -> None:
        super().__init__(tokenizer, identity, options, num_choices=num_choices)
        self._shows_logprobs = shows_logprobs
        self._scores_prompt = scores_prompt

    def whole(self, deltas: Sequence[Delta], maker: DeltaMaker) -> dict[str, Any]:
        scores = self._mean_logprobs(deltas, maker)
        num_prompts = len(maker.prompts)
        num_made, num_shown = len(scores) // num_prompts, self._num_choices // num_prompts
        places: dict[int, int] = {}  # choice index as generated -> as shown
        for i, prompt in enumerate(maker.prompts):
            made = range(prompt.first_index, prompt.first_index + num_made)
            ranked = sorted(made, key=lambda index: (-scores[index], index))
            places.update({c: i * num_shown + place for place, c in enumerate(ranked[:num_shown])})
        kept = [self._shown(d, places[d.index]) for d in deltas if d.index in places]
        return super().whole(kept, maker)

    def _mean_logprobs(self, deltas: Sequence[Delta], maker: DeltaMaker) -> dict[int, float]:
        """Of each choice, over the generated tokens alone."""
        tokens: dict[int, list[ScoredToken]] = {}
        for delta in deltas:
            tokens.setdefault(delta.index, []).extend(delta.logprobs or ())
        per_prompt = len(tokens) // len(maker.prompts)
        means = {}
        for index, scored in tokens.items():
            prompt = maker.prompts[index // per_prompt].token_ids if self._scores_prompt else ()
            logprobs = [token.logprob or 0.0 for token in scored[len(prompt) :]]
            means[index] = sum(logprobs) / max(1, len(logprobs))
        return means

    def _shown(self, delta: Delta, index: int) -> Delta:
        logprobs = delta.logprobs if self._shows_logprobs else None
        return dataclasses.replace(delta, index=index, logprobs=logprobs)
