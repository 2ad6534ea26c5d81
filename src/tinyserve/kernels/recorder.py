"""Recording a forward function once, and replaying it natively.

`Recorder` satisfies `Ops` by writing each call down; `Program` is what it wrote, and `run` replays
it in one native call. It is to the CPU what a captured graph is to a GPU.
"""

from __future__ import annotations

import ctypes as c
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tinyserve.errors import ModelLoadError
from tinyserve.kernels.abi import (
    ATTENTION,
    EMBED,
    GATHER_ROWS,
    LINEAR,
    LOGITS,
    RMS_NORM,
    ROPE_AND_CACHE,
    TOKENS,
    BufferStruct,
    OpStruct,
    StepStruct,
    WeightStruct,
    address,
    kv_struct,
    load_library,
)
from tinyserve.kernels.formats import F32
from tinyserve.kernels.ops import Array, AttentionSpec, Batch, KVSlabs
from tinyserve.kernels.packing import (
    BF16_FORMAT,
    BF16X2_FORMAT,
    FORMAT_NAMES,
    PackedWeight,
    aligned_bytes,
)

MAX_HEAD_DIM = 512  # csrc/tasks.h has the same
BF16_STEP = 32  # csrc/gemm.h has the same


class NativeLinear:
    """A prepared matrix: parts of one format each, each starting at a multiple of 16."""

    def __init__(self, parts: Sequence[PackedWeight], bias: F32 | None, silu_mul: bool) -> None:
        self.parts = tuple(parts)
        self.bias = None if bias is None else _padded_vector(bias)
        self.silu_mul = silu_mul
        self.n = sum(part.n for part in parts)
        self.k = parts[0].k

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts) + (
            self.bias.nbytes if self.bias is not None else 0
        )

    @property
    def formats(self) -> tuple[str, ...]:
        return tuple(FORMAT_NAMES[part.format] for part in self.parts)


class Matrix:
    """An activation buffer of a program, [max_rows, width]; its memory returns to the recorder when
    it is dropped.
    """

    def __init__(self, data: F32, width: int, give_back: Callable[[F32], None] | None) -> None:
        self.data = data
        self.width = width
        if give_back is not None:
            weakref.finalize(self, give_back, data)

    def as_struct(self) -> BufferStruct:
        return BufferStruct(self.data.ctypes.data, self.data.shape[1])


class Recorder:
    """`Ops` that write themselves down, for steps of at most `max_rows` rows: token rows, or logits
    rows with `logits`. A buffer that the function has let go of is used again.

    `bf16x2` multiplies bf16 weights by activations in two bf16 parts (csrc/gemm.h).
    """

    def __init__(self, max_rows: int, *, logits: bool = False, bf16x2: bool = False) -> None:
        self.max_rows = max_rows
        self.logits = logits
        self.ops: list[OpStruct] = []
        self.keep: list[Any] = []  # everything that `ops` point to
        self.nbytes = 0  # all buffers together
        self._bf16x2 = bf16x2
        self._free: dict[int, list[F32]] = {}  # buffers to use again, per width

    def embed(self, table: NativeLinear) -> Array:
        out = self._matrix(table.k)
        self._record(EMBED, output=out.as_struct(), weight=self._weight(table.parts[0]))
        return out

    def rms_norm(self, x: Matrix, weight: F32, eps: float) -> Array:
        out = self._matrix(x.width)
        vector = self._pointer(_padded_vector(weight))
        self._record(
            RMS_NORM,
            input=x.as_struct(),
            output=out.as_struct(),
            vector=vector,
            width=x.width,
            eps=eps,
        )
        return out

    def linear(self, x: Matrix, weight: NativeLinear, *, residual: Matrix | None = None) -> Array:
        out = self._matrix(weight.n // 2 if weight.silu_mul else weight.n)
        column = 0
        for part in weight.parts:
            fields: dict[str, Any] = {"input": x.as_struct(), "weight": self._factor(part)}
            fields["output"] = _shifted(out, column)
            fields["silu_mul"] = int(weight.silu_mul)
            if residual is not None:
                fields["residual"] = _shifted(residual, column)
            if weight.bias is not None:
                fields["vector"] = self._pointer(weight.bias) + 4 * column
            self._record(LINEAR, **fields)
            column += part.n
        return out

    def rope_and_cache(self, qkv: Matrix, attention: AttentionSpec) -> None:
        if attention.head_dim > MAX_HEAD_DIM:
            raise ModelLoadError(
                f"the native kernels take heads of up to {MAX_HEAD_DIM} features, "
                f"this model's have {attention.head_dim}"
            )
        self._record(
            ROPE_AND_CACHE,
            input=qkv.as_struct(),
            eps=attention.norm_eps,
            scale=attention.head_dim**-0.5,
            cos=self._pointer(attention.cos),
            sin=self._pointer(attention.sin),
            q_norm=self._norm(attention.q_norm),
            k_norm=self._norm(attention.k_norm),
            **_heads(attention),
        )

    def paged_attention(self, qkv: Matrix, attention: AttentionSpec) -> Array:
        out = self._matrix(attention.num_heads * attention.head_dim)
        fields = {"input": qkv.as_struct(), "output": out.as_struct(), **_heads(attention)}
        self._record(ATTENTION, window=attention.window or 0, **fields)
        return out

    def gather_rows(self, x: Matrix) -> Array:
        out = self._matrix(x.width)
        self.keep.append(x)  # the rows of another program: its buffer must live as long as this one
        self._record(GATHER_ROWS, input=x.as_struct(), output=out.as_struct(), width=x.width)
        return out

    def _record(self, kind: int, **fields: Any) -> None:
        self.ops.append(OpStruct(kind=kind, rows=LOGITS if self.logits else TOKENS, **fields))

    def _matrix(self, width: int) -> Matrix:
        free = self._free.setdefault(width, [])
        if free:
            data = free.pop()
        else:
            stride = -(-width // 16) * 16
            data = (
                aligned_bytes(self.max_rows * stride * 4, huge=False)
                .view(np.float32)
                .reshape(-1, stride)
            )
            self.keep.append(data)
            self.nbytes += data.nbytes
        return Matrix(data, width, free.append)

    def _weight(self, packed: PackedWeight) -> WeightStruct:
        self.keep.append(packed)
        return WeightStruct(
            packed.data.ctypes.data,
            packed.format,
            packed.n,
            packed.k,
            packed.group,
            int(packed.has_min),
            int(packed.f16_scale),
        )

    def _factor(self, packed: PackedWeight) -> WeightStruct:
        """A weight that rows are multiplied by, rather than looked up in."""
        weight = self._weight(packed)
        if self._bf16x2 and packed.format == BF16_FORMAT and packed.k % BF16_STEP == 0:
            weight.format, weight.group = BF16X2_FORMAT, BF16_STEP
        return weight

    def _pointer(self, array: F32) -> int:
        self.keep.append(array)
        return array.ctypes.data

    def _norm(self, weight: F32 | None) -> int | None:
        return None if weight is None else self._pointer(_padded_vector(weight))


class Program:
    """A recorded forward function; `run` is one native call.

    `cascade` False computes the attention of each sequence by itself, for measurements and tests:
    the same bits.
    """

    def __init__(
        self,
        recorder: Recorder,
        output: Matrix,
        kv: KVSlabs,
        *,
        variant: str,
        threads: int,
    ) -> None:
        self.output = output
        self.nbytes = recorder.nbytes
        self.cascade = True
        self._recorder, self._kv = recorder, kv  # kept alive: the operations point into them
        self._result = output.data[:0, : output.width]
        self._library = load_library()
        ops = (OpStruct * len(recorder.ops))(*recorder.ops)
        handle = self._library.ts_program_create(
            ops, len(ops), kv_struct(kv), recorder.max_rows, variant.encode(), threads
        )
        if not handle:
            raise MemoryError("the native back end could not create its program")
        self._handle = c.c_void_p(handle)
        finalizer = weakref.finalize(self, self._library.ts_program_free, self._handle)
        finalizer.atexit = False  # a daemon thread may still be running it then

    def run(self, batch: Batch) -> F32:
        step = batch.prepared
        if step is None:
            step = batch.prepared = _step_of(batch)
        step.cascade = self.cascade
        rows = step.num_logits if self._recorder.logits else step.num_tokens
        assert rows <= len(self.output.data), "more rows than the program was compiled for"
        self._library.ts_program_run(self._handle, step)
        if rows != len(self._result):
            self._result = self.output.data[:rows, : self.output.width]
        return self._result

    @property
    def keys_read(self) -> int:
        """Keys that the last step's attention has read, for one layer and kv head: those that
        several sequences share count once for each tile of query rows.
        """
        return int(self._library.ts_program_keys_read(self._handle))


def _step_of(batch: Batch) -> StepStruct:
    """The batch as the kernels see it: where its arrays are."""
    return StepStruct(
        len(batch.token_ids),
        len(batch.seq_starts) - 1,
        len(batch.logit_rows),
        1,
        address(batch.token_ids),
        address(batch.positions),
        address(batch.slots),
        address(batch.seq_starts),
        address(batch.block_ids),
        address(batch.block_starts),
        address(batch.logit_rows),
    )


def _heads(a: AttentionSpec) -> dict[str, int]:
    return {
        "layer": a.layer,
        "num_heads": a.num_heads,
        "num_kv_heads": a.num_kv_heads,
        "head_dim": a.head_dim,
    }


def _shifted(matrix: Matrix, column: int) -> BufferStruct:
    return BufferStruct(matrix.data.ctypes.data + 4 * column, matrix.data.shape[1])


def _padded_vector(vector: F32) -> F32:
    out = np.zeros(-(-len(vector) // 16) * 16, np.float32)
    out[: len(vector)] = vector
    return out
