"""The native back end: C++ kernels of one instruction set, on the process-wide thread pool."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tinyserve.kernels.abi import (
    SampleArgsStruct,
    SampleResultStruct,
    address,
    load_library,
    variants,
)
from tinyserve.kernels.formats import F32, FloatWeight, Int8Weight, U4Weight, Weight, concat_rows
from tinyserve.kernels.ops import I32, Array, Draw, Drawn, KVSlabs, Ops
from tinyserve.kernels.packing import interleave_panels, interleave_vector, pack
from tinyserve.kernels.recorder import NativeLinear, Program, Recorder

_RESULT = np.dtype(SampleResultStruct)


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
        self._variant = self.variant.encode()

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
        rows, width = len(draws), logits.shape[1]
        args = (SampleArgsStruct * rows).from_buffer(bytearray().join([*map(_args_of, draws)]))
        probs = {i: np.empty(width, np.float32) for i in _wanting_probs(draws)}
        for i, row in probs.items():
            args[i].probs = address(row)
        results = np.empty(rows, _RESULT)
        most = max([1, *[draw.num_logprobs for draw in draws]])
        top_ids = np.zeros((rows, most), np.int32)
        top_logprobs = np.zeros((rows, most), np.float32)
        load_library().ts_sample(
            *(self._variant, self.threads, logits.ctypes.data, logits.strides[0] // 4, width),
            *(args, rows, address(results), address(top_ids), address(top_logprobs), most),
        )
        columns = [results[name].tolist() for name in ("token_id", "failure", "logprob", "rank")]
        drawn = list(map(Drawn, *columns))
        for i, row in probs.items():
            drawn[i].probs = None if drawn[i].failure else row
        for i in [i for i, draw in enumerate(draws) if draw.num_logprobs > 0]:
            count = min(draws[i].num_logprobs, width)
            drawn[i].top_ids = top_ids[i, :count].tolist()
            drawn[i].top_logprobs = top_logprobs[i, :count].tolist()
        return drawn


def _wanting_probs(draws: Sequence[Draw]) -> list[int]:
    return [i for i, draw in enumerate(draws) if draw.wants_probs and draw.target < 0]


def _args_of(draw: Draw) -> Any:
    """The draw's arguments, written once and kept with it, but for what may have changed."""
    args = draw.prepared
    if args is None:
        args = draw.prepared = SampleArgsStruct()
        _fill_args(args, draw)
    args.row = draw.row
    args.position = draw.position
    if draw.output_ids is not None:
        _fill_ids(args, "output", draw.output_ids)
    return args


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
