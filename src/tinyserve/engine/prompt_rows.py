"""What is read from the rows of a prompt while it is computed: logprobs of its tokens, or the
pooled hidden state of an embedding.

A reader owns what it has read so far and which positions it still wants; whatever the chunks, it is
given its rows one after another in the order of positions, each once. So nothing here depends on
how a prompt was cut, on the batch, or on preemption. Knows no scheduler and no runner.

    position      0    1    2   ...   n-1
    scores             the logprob of token p + 1 comes from row p: rows 0 .. n-2
    states, mean  x    x    x    x    x
    states, last                      x
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tinyserve.engine.request import EngineRequest, RequestOutput
from tinyserve.engine.sampling import SampledToken, SampleRow, SamplingParams
from tinyserve.kernels.formats import F32


class PromptReader(Protocol):
    """Reads rows of one prompt."""

    @property
    def positions(self) -> range:
        """The positions whose rows are still wanted, in order. The prefix cache must not skip them
        (it never skips the last of a prompt).
        """
        ...

    def row(self, position: int, row: int) -> SampleRow:
        """What to read at `position`; `row` is its row among the step's logits."""
        ...

    def take(self, read: Sequence[SampledToken]) -> None:
        """The next rows that were asked for, in order."""
        ...

    def deliver(self, output: RequestOutput) -> None:
        """All is read: put it into the first output of choice 0."""
        ...


class PromptScores:
    """The logprob of each prompt token given those before it; the first has none."""

    def __init__(self, prompt_ids: Sequence[int], params: SamplingParams) -> None:
        self._prompt_ids = prompt_ids
        self._params = params
        self._scores: list[SampledToken | None] = [None]

    @property
    def positions(self) -> range:
        return range(len(self._scores) - 1, len(self._prompt_ids) - 1)

    def row(self, position: int, row: int) -> SampleRow:
        ids, at = self._prompt_ids, position + 1
        read = SampleRow(row, self._params, position=at, prompt_ids=ids, target=ids[at])
        read.num_logprobs = self._params.prompt_logprobs
        return read

    def take(self, read: Sequence[SampledToken]) -> None:
        self._scores += read

    def deliver(self, output: RequestOutput) -> None:
        output.prompt_logprobs = self._scores


class PooledState:
    """The mean of the hidden states from position `first` on, summed in f64, one row after another.
    That of the last token alone is its own state, bit for bit.
    """

    def __init__(self, prompt_ids: Sequence[int], params: SamplingParams, first: int) -> None:
        self._prompt_ids = prompt_ids
        self._params = params
        self._first = self._next = first
        self._sum: NDArray[np.float64] | None = None

    @property
    def positions(self) -> range:
        return range(self._next, len(self._prompt_ids))

    def row(self, position: int, row: int) -> SampleRow:
        read = SampleRow(row, self._params, position=position + 1, prompt_ids=self._prompt_ids)
        read.wants_state = True
        return read

    def take(self, read: Sequence[SampledToken]) -> None:
        for token in read:
            assert token.state is not None
            state = token.state.astype(np.float64)
            self._sum = state if self._sum is None else self._sum + state
            self._next += 1

    def deliver(self, output: RequestOutput) -> None:
        assert self._sum is not None
        output.embedding = (self._sum / (self._next - self._first)).astype(np.float32)
        output.finish_reason = "stop"


def reader_of(request: EngineRequest, prompt_ids: Sequence[int]) -> PromptReader | None:
    """The reader that a request asks for, if any."""
    params = request.params
    if request.pooling is not None:
        first = 0 if request.pooling == "mean" else len(prompt_ids) - 1
        return PooledState(prompt_ids, params, first)
    return PromptScores(prompt_ids, params) if params.prompt_logprobs is not None else None


def unit(vector: F32) -> F32:
    """An embedding at length 1 (a zero vector stays zero). The sum of squares is exact before it is
    rounded, so that no library's order of addition shows.
    """
    wide = vector.astype(np.float64)
    length = math.sqrt(math.fsum((wide * wide).tolist()))
    return (wide / length).astype(np.float32) if length else vector
