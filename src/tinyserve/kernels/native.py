"""The native back end: C++ kernels of one instruction set, on the process-wide thread pool."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tinyserve.kernels.abi import load_library, variants
from tinyserve.kernels.formats import F32, FloatWeight, Int8Weight, U4Weight, Weight, concat_rows
from tinyserve.kernels.ops import Array, Draw, KVSlabs, Ops, SampledToken
from tinyserve.kernels.packing import interleave_panels, interleave_vector, pack
from tinyserve.kernels.recorder import NativeLinear, Program, Recorder
from tinyserve.kernels.sample_call import SampleCall


class NativeBackend:
    """C++ kernels of one instruction set (`variant`; "" picks the best) on `threads` threads.

    `bf16x2`: bf16 weights are multiplied by activations in two bf16 parts, 16 of their 24 bits. It
    is for the matrix unit; other instruction sets give the same bits, at half of their speed.
    `sample` keeps its latest call for the next one: it may run on one thread at a time.
    """

    name = "native"
    exact = True

    def __init__(self, threads: int, variant: str = "", *, bf16x2: bool = False) -> None:
        runnable, _ = variants()
        self.variant = variant or runnable[0]
        if self.variant not in runnable:
            raise ValueError(f"no kernels for {self.variant!r} here; there are {runnable}")
        self.threads = threads
        self.bf16x2 = bf16x2
        self._variant = self.variant.encode()
        self._sample_call: SampleCall | None = None

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
        recorder = Recorder(max_rows, logits=logits, bf16x2=self.bf16x2)
        output = function(recorder)
        return Program(recorder, output, kv, variant=self.variant, threads=self.threads)

    def sample(self, logits: F32, draws: Sequence[Draw]) -> list[SampledToken]:
        call = self._sample_call
        if call is None or not call.is_for(logits, draws):
            call = self._sample_call = SampleCall(logits, draws)
        call.update()
        load_library().ts_sample(self._variant, self.threads, *call.arguments)
        return call.tokens()


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
