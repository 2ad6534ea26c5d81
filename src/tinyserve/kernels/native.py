"""The native back end: C++ kernels of one instruction set, on the process-wide thread pool."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tinyserve.kernels.abi import SampleArgsStruct, SampleResultStruct, load_library, variants
from tinyserve.kernels.formats import F32, FloatWeight, Int8Weight, U4Weight, Weight, concat_rows
from tinyserve.kernels.ops import I32, Array, Draw, Drawn, KVSlabs, Ops
from tinyserve.kernels.packing import interleave_panels, interleave_vector, pack
from tinyserve.kernels.recorder import NativeLinear, Program, Recorder


class NativeBackend:
    """C++ kernels of one instruction set (`variant`; "" picks the best) on `threads` threads."""

    name = "native"
    exact = True

    def __init__(self, threads: int, variant: str = "") -> None:
        runnable, _ = variants()
        self.variant = variant or runnable[0]
        if self.variant not in runnable:
            raise ValueError(f"no kernels for {self.variant!r} here; there are {runnable}")
        self.threads = threads

    def linear(
        self, parts: Sequence[Weight], bias: F32 | None = None, *, silu_mul: bool = False
    ) -> NativeLinear:
        usable = [_supported(part) for part in parts]
        if silu_mul:
            gate, up = _same_format(usable)
            if bias is not None:
                bias = interleave_vector(*np.split(bias, 2))
            return NativeLinear([pack(interleave_panels(gate, up))], bias, True)
        if concat_rows(usable) is None and any(part.shape[0] % 16 for part in usable[:-1]):
            usable = [FloatWeight(part.dequantize()) for part in usable]
        return NativeLinear([pack(part) for part in _merged(usable)], bias, False)

    def compile(
        self, function: Callable[[Ops], Array], kv: KVSlabs, *, max_rows: int, logits: bool = False
    ) -> Program:
        recorder = Recorder(kv, max_rows, int(logits))
        return Program(
            recorder,
            function(recorder),
            kv,
            max_rows=max_rows,
            variant=self.variant,
            threads=self.threads,
        )

    def sample(self, logits: F32, draws: Sequence[Draw]) -> list[Drawn]:
        rows = len(draws)
        most = max(max((d.num_logprobs for d in draws), default=0), 1)
        args = (SampleArgsStruct * rows)()
        for arg, draw in zip(args, draws, strict=True):
            _fill_args(arg, draw)
        probs = {i: np.empty(logits.shape[1], np.float32) for i in _wanting_probs(draws)}
        for i, row in probs.items():
            args[i].probs = row.ctypes.data
        results = (SampleResultStruct * rows)()
        top_ids = np.zeros((rows, most), np.int32)
        top_logprobs = np.zeros((rows, most), np.float32)
        load_library().ts_sample(
            *(self.variant.encode(), self.threads, logits.ctypes.data, logits.strides[0] // 4),
            *(logits.shape[1], args, rows, results, top_ids.ctypes.data, top_logprobs.ctypes.data),
            most,
        )
        drawn = [Drawn(r.token_id, r.failure, r.logprob, r.rank) for r in results]
        for i, row in probs.items():
            drawn[i].probs = None if drawn[i].failure else row
        for i, draw in enumerate(draws):
            if draw.num_logprobs > 0:
                count = min(draw.num_logprobs, logits.shape[1])
                drawn[i].top_ids = top_ids[i, :count].tolist()
                drawn[i].top_logprobs = top_logprobs[i, :count].tolist()
        return drawn


def _wanting_probs(draws: Sequence[Draw]) -> list[int]:
    return [i for i, draw in enumerate(draws) if draw.wants_probs and draw.target < 0]


def _fill_args(arg: Any, draw: Draw) -> None:
    arg.row, arg.target, arg.num_logprobs = draw.row, draw.target, draw.num_logprobs
    arg.temperature, arg.top_p, arg.min_p, arg.top_k = (
        draw.temperature,
        draw.top_p,
        draw.min_p,
        draw.top_k,
    )
    arg.presence, arg.frequency, arg.repetition = draw.presence, draw.frequency, draw.repetition
    arg.choice, arg.seed, arg.position = draw.choice, draw.seed & (2**64 - 1), draw.position
    if draw.bias_ids is not None and draw.bias_values is not None:
        arg.num_bias, arg.bias_ids = len(draw.bias_ids), draw.bias_ids.ctypes.data
        arg.bias_values = draw.bias_values.ctypes.data
    if draw.mask is not None:
        arg.mask = draw.mask.ctypes.data
    _fill_ids(arg, "banned", draw.banned_ids)
    _fill_ids(arg, "allowed", draw.allowed_ids)
    _fill_ids(arg, "prompt", draw.prompt_ids)
    _fill_ids(arg, "output", draw.output_ids)


def _fill_ids(arg: Any, name: str, ids: I32 | None) -> None:
    if ids is not None and len(ids):
        setattr(arg, f"num_{name}", len(ids))
        setattr(arg, f"{name}_ids", ids.ctypes.data)


def _supported(weight: Weight) -> Weight:
    """The weight itself, or widened where its shape does not fit the integer kernels."""
    if isinstance(weight, Int8Weight) and (weight.group % 16 or weight.group > 512):
        return FloatWeight(weight.dequantize())
    return weight


def _same_format(parts: list[Weight]) -> list[Weight]:
    """Gate and up in one format, exactly: four bits widen to int8, anything else to f32."""
    if concat_rows(parts) is not None:
        return parts
    as_int8: list[Weight] = [
        part.to_int8() if isinstance(part, U4Weight) else part for part in parts
    ]
    if concat_rows(as_int8) is not None:
        return as_int8
    return [FloatWeight(part.dequantize()) for part in parts]


def _merged(parts: list[Weight]) -> list[Weight]:
    """Neighbours of one format as one matrix."""
    merged: list[Weight] = []
    for part in parts:
        joined = concat_rows([merged[-1], part]) if merged else None
        if joined is None:
            merged.append(part)
        else:
            merged[-1] = joined
    return merged
