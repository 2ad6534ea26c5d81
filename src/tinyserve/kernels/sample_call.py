"""`SampleCall`: one native sampling call, kept while the same draws come again.

Owns the memory that the call reads and writes, so that a step whose sequences just go on only says
which rows are drawn at which positions. What it returns shares no memory with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tinyserve.kernels.abi import ALL_MASKED, SampleArgsStruct, SampleResultStruct, address
from tinyserve.kernels.formats import F32
from tinyserve.kernels.ops import I32, Draw, SampledToken

_ARGS, _RESULT = np.dtype(SampleArgsStruct), np.dtype(SampleResultStruct)


class SampleCall:
    """Arguments and results of `ts_sample` for these draws from these logits [R, V]."""

    def __init__(self, logits: F32, draws: Sequence[Draw]) -> None:
        self.logits = logits
        self.draws = list(draws)
        num_rows, width = len(draws), logits.shape[1]
        memory = bytearray().join([*map(_args_of, draws)])
        self._args = (SampleArgsStruct * num_rows).from_buffer(memory)
        fields: Any = np.frombuffer(memory, _ARGS)
        self._rows, self._positions = fields["row"], fields["position"]
        self._growing = [i for i, draw in enumerate(draws) if draw.output_ids is not None]
        self._wanting = [i for i, d in enumerate(draws) if d.wants_probs and d.target < 0]
        self._reported = [i for i, draw in enumerate(draws) if draw.num_logprobs >= 0]
        self._probs: dict[int, F32] = {}
        results: Any = np.zeros(num_rows, _RESULT)
        self._token_ids, self._failures = results["token_id"], results["failure"]
        self._logprobs, self._ranks = results["logprob"], results["rank"]
        most = max([1, *[draw.num_logprobs for draw in draws]])
        self._top_ids = np.zeros((num_rows, most), np.int32)
        self._top_logprobs = np.zeros((num_rows, most), np.float32)
        self.arguments = (
            *(logits.ctypes.data, logits.strides[0] // 4, width, self._args, num_rows),
            *map(address, (results, self._top_ids, self._top_logprobs)),
            most,
        )

    def is_for(self, logits: F32, draws: Sequence[Draw]) -> bool:
        """Whether it was made for these very logits and draws, so that it may be called again."""
        return logits is self.logits and draws == self.draws

    def update(self) -> None:
        """Take in what may have changed in the draws since the last time."""
        self._rows[:] = [draw.row for draw in self.draws]
        self._positions[:] = [draw.position for draw in self.draws]
        for i in self._growing:
            _fill_ids(self._args[i], "output", self.draws[i].output_ids)
        for i in self._wanting:
            self._probs[i] = np.empty(self.logits.shape[1], np.float32)
            self._args[i].probs = address(self._probs[i])

    def tokens(self) -> list[SampledToken]:
        """What the call has drawn or scored."""
        tokens = list(map(SampledToken, self._token_ids.tolist()))
        failures = self._failures.tolist()
        for i in self._reported:
            self._report(i, tokens[i])
        for i in self._wanting:
            tokens[i].probs = self._probs[i]
        if any(failures):
            for i, failure in enumerate(failures):
                if failure:
                    is_blocked = failure == ALL_MASKED
                    tokens[i] = SampledToken(
                        tokens[i].token_id, is_nan=not is_blocked, is_blocked=is_blocked
                    )
        return tokens

    def _report(self, i: int, token: SampledToken) -> None:
        count = min(self.draws[i].num_logprobs, self.logits.shape[1])
        token.logprob = float(self._logprobs[i])
        token.rank = int(self._ranks[i])
        token.top = tuple(
            zip(
                self._top_ids[i, :count].tolist(),
                self._top_logprobs[i, :count].tolist(),
                strict=True,
            )
        )


def _args_of(draw: Draw) -> Any:
    """The draw's arguments, written once and kept with it; what may change follows in `update`."""
    if draw.prepared is None:
        draw.prepared = SampleArgsStruct()
        _fill_args(draw.prepared, draw)
    return draw.prepared


def _fill_args(arg: Any, draw: Draw) -> None:
    arg.target, arg.num_logprobs = draw.target, draw.num_logprobs
    arg.temperature, arg.top_p, arg.min_p, arg.top_k = (
        draw.temperature,
        draw.top_p,
        draw.min_p,
        draw.top_k,
    )
    arg.presence, arg.frequency, arg.repetition = draw.presence, draw.frequency, draw.repetition
    arg.choice, arg.seed = draw.choice, draw.seed & (2**64 - 1)
    if draw.bias_ids is not None and draw.bias_values is not None:
        arg.num_bias, arg.bias_ids = len(draw.bias_ids), draw.bias_ids.ctypes.data
        arg.bias_values = draw.bias_values.ctypes.data
    if draw.mask is not None:
        arg.mask = draw.mask.ctypes.data
    _fill_ids(arg, "banned", draw.banned_ids)
    _fill_ids(arg, "allowed", draw.allowed_ids)
    _fill_ids(arg, "prompt", draw.prompt_ids)


def _fill_ids(arg: Any, name: str, ids: I32 | None) -> None:
    if ids is not None and len(ids):
        setattr(arg, f"num_{name}", len(ids))
        setattr(arg, f"{name}_ids", address(ids))
