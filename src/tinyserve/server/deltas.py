"""From engine outputs to deltas: the pieces that both a stream and a whole answer are made of.

A stream writes each delta as it comes; a whole answer joins the same deltas. So they are equal by
construction: text, token ids, logprobs, usage and finish reason. Knows tokens and text, no JSON
shapes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tinyserve.engine.request import EngineRequest, RequestOutput
from tinyserve.engine.sampling import SampledToken
from tinyserve.text.detokenizer import IncrementalDetokenizer
from tinyserve.text.tokenizer import Tokenizer

MIN_LOGPROB = -9999.0  # stands for minus infinity, which JSON cannot write


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """One token with its logprob (None for a prompt's first token) and the likeliest at its place.

    `offset` is where the token's text begins in the choice's text, in characters. `strip`: how many
    of its leading spaces are no text, but SentencePiece's mark of a text's first word.
    """

    token_id: int
    logprob: float | None
    top: tuple[tuple[int, float], ...]
    offset: int
    strip: int = 0


@dataclass(slots=True)
class Delta:
    """What is added to one choice. The last of a choice, and only that, has a `finish_reason`."""

    index: int
    text: str
    token_ids: list[int]
    logprobs: list[ScoredToken] | None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    embedding: NDArray[np.float32] | None = None


@dataclass(slots=True)
class Usage:
    """Token counts of one HTTP request. A prompt counts once, whatever n is.

    `reasoning_tokens`, which belong to the completion's, are None where nobody tells them apart.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int | None = None


@dataclass(frozen=True)
class GroupPrompt:
    """One prompt of a group: its engine request, and the text that echo shows first."""

    request: EngineRequest
    first_index: int  # choice index of its first choice
    echo_text: str = ""

    @property
    def token_ids(self) -> Sequence[int]:
        return self.request.prompt_token_ids


@dataclass(frozen=True)
class DeltaOptions:
    """Which parts of the outputs the client asked for."""

    logprobs: int | None = None  # how many likeliest tokens; None: no logprobs at all
    score_prompt: bool = False  # logprobs begin with the prompt's
    skip_special_tokens: bool = True
    visible_ids: frozenset[int] = frozenset()  # special tokens that are text all the same


@dataclass(slots=True)
class _Choice:
    """The state of one choice: tokens held back until they have text to go with, and where the text
    ends.
    """

    index: int
    offsets: _Offsets
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[ScoredToken] = field(default_factory=list)
    has_begun: bool = False


class DeltaMaker:
    """Turns the outputs of one HTTP request into deltas, and counts its usage."""

    def __init__(
        self, tokenizer: Tokenizer, prompts: Sequence[GroupPrompt], options: DeltaOptions
    ) -> None:
        self._tokenizer = tokenizer
        self.prompts = tuple(prompts)
        self._by_request = {prompt.request.request_id: prompt for prompt in prompts}
        self._options = options
        self._choices: dict[int, _Choice] = {}
        self._seen_prompts: set[str] = set()
        self._prompt_scores: dict[str, list[SampledToken | None]] = {}
        self._prompt_tokens: dict[str, list[ScoredToken]] = {}  # the same for all its choices
        self.usage = Usage(prompt_tokens=sum(len(prompt.token_ids) for prompt in prompts))

    @property
    def scores_prompts(self) -> bool:
        """Whether the first delta of each choice has the prompt's tokens."""
        return self._options.score_prompt

    def prompt_logprobs(self, prompt: GroupPrompt) -> list[SampledToken | None] | None:
        """The scores of a prompt's tokens, if they were asked for and have come."""
        return self._prompt_scores.get(prompt.request.request_id)

    def feed(self, output: RequestOutput) -> Delta | None:
        """The delta of one output; None while its text is held back.

        Token ids and logprobs wait for text to go with, so that no part of a stop string shows
        early; what is still held goes out with the finish reason.
        """
        prompt = self._by_request[output.request_id]
        self._count(output)
        choice = self._choice(prompt, output.index)
        text = output.new_text
        if not choice.has_begun:
            choice.has_begun = True
            text = self._echo(prompt, choice) + text
        self._hold(choice, output)
        if not text and output.finish_reason is None:
            return None
        return self._emit(choice, text, output)

    def _count(self, output: RequestOutput) -> None:
        self.usage.completion_tokens += len(output.new_token_ids)
        if output.request_id not in self._seen_prompts:
            self._seen_prompts.add(output.request_id)
            self.usage.cached_tokens += output.num_cached_tokens
        if output.prompt_logprobs is not None:
            self._prompt_scores[output.request_id] = output.prompt_logprobs

    def _choice(self, prompt: GroupPrompt, index: int) -> _Choice:
        index += prompt.first_index
        choice = self._choices.get(index)
        if choice is None:
            detokenizer = self._tokenizer.detokenizer(
                skip_special_tokens=self._options.skip_special_tokens,
                visible_ids=self._options.visible_ids,
                keeps_space=prompt.request.keeps_space,
            )
            choice = self._choices[index] = _Choice(index, _Offsets(detokenizer))
        return choice

    def _echo(self, prompt: GroupPrompt, choice: _Choice) -> str:
        if self._options.score_prompt:
            request_id = prompt.request.request_id
            if request_id not in self._prompt_tokens:
                self._prompt_tokens[request_id] = list(self._scored_prompt(prompt))
            choice.logprobs += self._prompt_tokens[request_id]
        choice.offsets.jump_to(len(prompt.echo_text))
        return prompt.echo_text

    def _scored_prompt(self, prompt: GroupPrompt) -> Iterator[ScoredToken]:
        """The prompt's tokens at their places in the text that echo shows. A special token is there
        where that text spells it; a BOS that was added to a text is not.
        """
        special_ids, text = self._tokenizer.special_ids, prompt.echo_text
        offsets = _Offsets(self._tokenizer.detokenizer())
        scores = self._prompt_scores.get(prompt.request.request_id, [])
        for token_id, score in zip(prompt.token_ids, scores, strict=True):
            is_special = token_id in special_ids
            if is_special and not self._options.skip_special_tokens:
                offsets.end_character()
            yield self._scored(offsets, token_id, score)
            if is_special:
                offsets.pass_over(self._tokenizer.token_text(token_id), text)

    def _hold(self, choice: _Choice, output: RequestOutput) -> None:
        choice.token_ids += output.new_token_ids
        if self._options.logprobs is not None and output.logprobs is not None:
            for token_id, score in zip(output.new_token_ids, output.logprobs, strict=True):
                choice.logprobs.append(self._scored(choice.offsets, token_id, score))

    def _scored(self, offsets: _Offsets, token_id: int, score: SampledToken | None) -> ScoredToken:
        strip = offsets.strip
        offset = offsets.next_offset(token_id)
        if score is None:
            return ScoredToken(token_id, None, (), offset, strip)
        top = tuple((i, _finite(p)) for i, p in score.top[: self._options.logprobs])
        return ScoredToken(token_id, _finite(score.logprob), top, offset, strip)

    def _emit(self, choice: _Choice, text: str, output: RequestOutput) -> Delta:
        with_logprobs = self._options.logprobs is not None
        delta = Delta(
            choice.index,
            text,
            choice.token_ids,
            choice.logprobs if with_logprobs else None,
            output.finish_reason,
            output.stop_reason,
            output.embedding,
        )
        choice.token_ids, choice.logprobs = [], []
        return delta


class _Offsets:
    """Where each token's text begins: the length of the text of all tokens before it."""

    __slots__ = ("_detokenizer", "_length")

    def __init__(self, detokenizer: IncrementalDetokenizer) -> None:
        self._detokenizer = detokenizer
        self._length = 0

    @property
    def strip(self) -> int:
        return self._detokenizer.strip

    def next_offset(self, token_id: int) -> int:
        # A token that cuts off an unfinished character turns that into U+FFFD, and begins after it.
        offset = self._length + self._detokenizer.is_cut_by(token_id)
        self._length += len(self._detokenizer.push(token_id))
        return offset

    def end_character(self) -> None:
        """What follows completes no character that has begun."""
        self._length += len(self._detokenizer.flush())

    def pass_over(self, spelled: str, text: str) -> None:
        """A special token that was skipped stands in `text` after all, if it is spelled there. What
        comes after it may begin with the mark of a first word again, as the text itself does.
        """
        if text.startswith(spelled, self._length):
            self._length += len(spelled)
            self._detokenizer.begin_text(keeps_space=text.startswith(" ", self._length))

    def jump_to(self, length: int) -> None:
        """The echoed prompt may be longer than its decoded ids (text the tokenizer normalised)."""
        self._length = length


def _finite(logprob: float | None) -> float:
    return MIN_LOGPROB if logprob is None else max(logprob, MIN_LOGPROB)


@dataclass(slots=True)
class WholeChoice:
    """All deltas of one choice, joined."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[ScoredToken] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


def join(deltas: Sequence[Delta], num_choices: int) -> list[WholeChoice]:
    """The whole choices, by index."""
    choices = [WholeChoice(index) for index in range(num_choices)]
    texts: list[list[str]] = [[] for _ in range(num_choices)]
    for delta in deltas:
        choice = choices[delta.index]
        texts[delta.index].append(delta.text)
        choice.token_ids += delta.token_ids
        if delta.logprobs is not None:
            choice.logprobs = (choice.logprobs or []) + delta.logprobs
        if delta.finish_reason is not None:
            choice.finish_reason = delta.finish_reason
            choice.stop_reason = delta.stop_reason
    for choice, parts in zip(choices, texts, strict=True):
        choice.text = "".join(parts)
    return choices
