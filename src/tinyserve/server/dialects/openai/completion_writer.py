"""`CompletionWriter`: the answers of `/v1/completions`, whole and streamed; with `best_of`, whole.

`best_of` shows the likeliest of more choices, by the mean logprob of the generated tokens. All that
was generated counts as usage, as with OpenAI.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from json.encoder import encode_basestring as quote
from typing import Any

from tinyserve.server.deltas import Delta, DeltaMaker, ScoredToken, WholeChoice
from tinyserve.server.dialects.openai.writer import OpenAIWriter, WriterOptions
from tinyserve.server.protocol import CompletionRequest
from tinyserve.server.writer import Identity, Writer
from tinyserve.text.tokenizer import Tokenizer


def completion_writer(
    body: CompletionRequest, tokenizer: Tokenizer, identity: Identity, num_prompts: int
) -> Writer:
    """The writer of a request's answer."""
    options, num_choices = WriterOptions.of(body), (body.n or 1) * num_prompts
    if not body.shows_best:
        return CompletionWriter(tokenizer, identity, options, num_choices=num_choices)
    return BestOfWriter(
        tokenizer,
        identity,
        options,
        num_choices=num_choices,
        shows_logprobs=body.logprobs is not None,
        scores_prompt=body.scores_prompt,
    )


class CompletionWriter(OpenAIWriter):
    """`/v1/completions`."""

    whole_object = "text_completion"
    chunk_object = "text_completion"

    def opening(self, maker: DeltaMaker) -> bytes:
        per_prompt = self._num_choices // len(maker.prompts)
        self._prompts = {i: maker.prompts[i // per_prompt] for i in range(self._num_choices)}
        return b""

    def _place(
        self, answer: dict[str, Any], choice: dict[str, Any], fields: dict[str, Any]
    ) -> None:
        choice.update(fields)

    def _delta_text(self, delta: Delta) -> str:
        return f'"text":{quote(delta.text)}'

    def _whole_text(self, choice: WholeChoice) -> dict[str, Any]:
        return {"text": choice.text}

    def logprobs(self, tokens: Sequence[ScoredToken]) -> dict[str, Any]:
        return {
            "tokens": [self.token_text(t.token_id, t.strip) for t in tokens],
            "token_logprobs": [t.logprob for t in tokens],
            "top_logprobs": [self._top(t) for t in tokens],
            "text_offset": [t.offset for t in tokens],
        }

    def _top(self, token: ScoredToken) -> Mapping[str, float] | None:
        if token.logprob is None:
            return None
        top: dict[str, float] = {}
        for i, p in (*token.top, (token.token_id, token.logprob)):
            text = self.token_text(i, token.strip)
            top.setdefault(text, p)  # the likeliest of tokens that read alike
        return top


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
        """The mean logprob of each choice's generated tokens."""
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
