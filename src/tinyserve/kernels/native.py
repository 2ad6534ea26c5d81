"""The native back end: ctypes over csrc/, and the recorder that turns a forward function into a program.

Owns the library handle and the mirrors of the structs in csrc/abi.h. The GIL is released during every call.
"""

from __future__ import annotations

import ctypes as c
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tinyserve.kernels.formats import F32, FloatWeight, Int8Weight, U4Weight, Weight, concat_rows
from tinyserve.kernels.ops import (
    I32,
    Array,
    AttentionSpec,
    Batch,
    Draw,
    Drawn,
    KVSlabs,
    Ops,
)
from tinyserve.kernels.packing import (
    FORMATS,
    PackedWeight,
    aligned_bytes,
    interleave_panels,
    interleave_vector,
    pack,
)

EMBED, RMS_NORM, LINEAR, ROPE_AND_CACHE, ATTENTION, GATHER_ROWS = range(6)


class _Buffer(c.Structure):
    _fields_ = [("data", c.c_void_p), ("stride", c.c_int64)]


class _Weight(c.Structure):
    _fields_ = [
        ("data", c.c_void_p),
        ("format", c.c_int32),
        ("n", c.c_int32),
        ("k", c.c_int32),
        ("group", c.c_int32),
        ("has_min", c.c_int32),
        ("f16_scale", c.c_int32),
    ]


class _Op(c.Structure):
    _fields_ = [
        ("kind", c.c_int32),
        ("rows", c.c_int32),
        ("input", _Buffer),
        ("output", _Buffer),
        ("residual", _Buffer),
        ("weight", _Weight),
        ("vector", c.c_void_p),
        ("width", c.c_int32),
        ("silu_mul", c.c_int32),
        ("eps", c.c_float),
        ("scale", c.c_float),
        ("layer", c.c_int32),
        ("num_heads", c.c_int32),
        ("num_kv_heads", c.c_int32),
        ("head_dim", c.c_int32),
        ("window", c.c_int32),
        ("cos", c.c_void_p),
        ("sin", c.c_void_p),
        ("q_norm", c.c_void_p),
        ("k_norm", c.c_void_p),
    ]


class _KVCache(c.Structure):
    _fields_ = [
        ("k", c.c_void_p),
        ("v", c.c_void_p),
        ("k_scale", c.c_void_p),
        ("v_scale", c.c_void_p),
        ("format", c.c_int32),
        ("block_size", c.c_int32),
        ("num_layers", c.c_int32),
        ("num_kv_heads", c.c_int32),
        ("head_dim", c.c_int32),
    ]


class _Step(c.Structure):
    _fields_ = [
        ("num_tokens", c.c_int32),
        ("num_seqs", c.c_int32),
        ("num_logits", c.c_int32),
        ("token_ids", c.c_void_p),
        ("positions", c.c_void_p),
        ("slots", c.c_void_p),
        ("seq_starts", c.c_void_p),
        ("block_ids", c.c_void_p),
        ("block_starts", c.c_void_p),
        ("logit_rows", c.c_void_p),
    ]


class _SampleArgs(c.Structure):
    _fields_ = [
        ("row", c.c_int32),
        ("target", c.c_int32),
        ("num_logprobs", c.c_int32),
        ("num_bias", c.c_int32),
        ("num_banned", c.c_int32),
        ("num_allowed", c.c_int32),
        ("num_prompt", c.c_int32),
        ("num_output", c.c_int32),
        ("temperature", c.c_float),
        ("top_p", c.c_float),
        ("min_p", c.c_float),
        ("presence", c.c_float),
        ("frequency", c.c_float),
        ("repetition", c.c_float),
        ("top_k", c.c_int32),
        ("choice", c.c_int32),
        ("seed", c.c_uint64),
        ("position", c.c_int64),
        ("bias_ids", c.c_void_p),
        ("bias_values", c.c_void_p),
        ("banned_ids", c.c_void_p),
        ("allowed_ids", c.c_void_p),
        ("mask", c.c_void_p),
        ("prompt_ids", c.c_void_p),
        ("output_ids", c.c_void_p),
    ]


class _SampleResult(c.Structure):
    _fields_ = [
        ("token_id", c.c_int32),
        ("rank", c.c_int32),
        ("failure", c.c_int32),
        ("logprob", c.c_float),
    ]


_library: c.CDLL | None = None


def library_path() -> Path | None:
    """Where the compiled kernels lie, looked for along the package's `__path__` (an editable install has two)."""
    import tinyserve.kernels

    for folder in tinyserve.kernels.__path__:
        path = Path(folder) / "_kernels.so"
        if path.exists():
            return path
    return None


def load_library() -> c.CDLL:
    """The compiled kernels. Raises OSError where they were not built, cannot be loaded, or are of another version."""
    global _library
    if _library is not None:
        return _library
    path = library_path()
    if path is None:
        raise OSError("the native kernels were not built (no C++ compiler at install time)")
    library = c.CDLL(str(path))
    sizes = (c.c_int32 * 5)()
    library.ts_struct_sizes(sizes)
    ours = [c.sizeof(s) for s in (_Op, _KVCache, _Step, _SampleArgs, _SampleResult)]
    if list(sizes) != ours:
        raise OSError(f"{path} belongs to another version of tinyserve; reinstall it")
    library.ts_program_create.restype = c.c_void_p
    library.ts_program_create.argtypes = [
        *(c.POINTER(_Op), c.c_int, c.POINTER(_KVCache), c.c_int, c.c_char_p, c.c_int)
    ]
    library.ts_program_run.argtypes = [c.c_void_p, c.POINTER(_Step)]
    library.ts_program_free.argtypes = [c.c_void_p]
    library.ts_sample.argtypes = [
        *(c.c_char_p, c.c_int, c.c_void_p, c.c_int64, c.c_int, c.POINTER(_SampleArgs), c.c_int),
        *(c.POINTER(_SampleResult), c.c_void_p, c.c_void_p, c.c_int),
    ]
    _library = library
    return library


def variants() -> tuple[list[str], list[str]]:
    """(instruction sets that were built and run here, those built that do not), best first."""
    text = c.create_string_buffer(256)
    load_library().ts_variants(text, 256)
    names = text.value.decode().split()
    return [n for n in names if n[0] != "-"], [n[1:] for n in names if n[0] == "-"]


class NativeLinear:
    """A prepared matrix: parts of one format each, every part starting at a multiple of 16 columns."""

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


class _Matrix:
    """An activation buffer of a program, [max_rows, width]; its memory returns to the recorder when it is dropped."""

    def __init__(self, data: F32, width: int, give_back: Callable[[F32], None] | None) -> None:
        self.data = data
        self.width = width
        if give_back is not None:
            weakref.finalize(self, give_back, data)

    def as_struct(self) -> _Buffer:
        return _Buffer(self.data.ctypes.data, self.data.shape[1])


class Recorder:
    """`Ops` that write themselves down. Buffers whose last user is recorded are reused, by reference count."""

    def __init__(self, kv: KVSlabs, max_rows: int, row_space: int) -> None:
        self.ops: list[_Op] = []
        self.keep: list[Any] = []  # everything the program points to
        self.nbytes = 0
        self._kv = kv
        self._max_rows = max_rows
        self._row_space = row_space
        self._free: dict[int, list[F32]] = {}

    def embed(self, table: NativeLinear) -> Array:
        out = self._matrix(table.k)
        self._record(EMBED, output=out.as_struct(), weight=self._weight(table.parts[0]))
        return out

    def rms_norm(self, x: _Matrix, weight: F32, eps: float) -> Array:
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

    def linear(self, x: _Matrix, weight: NativeLinear, *, residual: _Matrix | None = None) -> Array:
        out = self._matrix(weight.n // 2 if weight.silu_mul else weight.n)
        column = 0
        for part in weight.parts:
            fields: dict[str, Any] = {"input": x.as_struct(), "weight": self._weight(part)}
            fields["output"] = _shifted(out, column)
            fields["silu_mul"] = int(weight.silu_mul)
            if residual is not None:
                fields["residual"] = _shifted(residual, column)
            if weight.bias is not None:
                fields["vector"] = self._pointer(weight.bias) + 4 * column
            self._record(LINEAR, **fields)
            column += part.n
        return out

    def rope_and_cache(self, qkv: _Matrix, attention: AttentionSpec) -> None:
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

    def paged_attention(self, qkv: _Matrix, attention: AttentionSpec) -> Array:
        out = self._matrix(attention.num_heads * attention.head_dim)
        fields = {"input": qkv.as_struct(), "output": out.as_struct(), **_heads(attention)}
        self._record(ATTENTION, window=attention.window or 0, **fields)
        return out

    def gather_rows(self, x: _Matrix) -> Array:
        out = self._matrix(x.width)
        self.keep.append(x)  # the rows of another program: its buffer must live as long as this one
        self._record(GATHER_ROWS, input=x.as_struct(), output=out.as_struct(), width=x.width)
        return out

    def _record(self, kind: int, **fields: Any) -> None:
        self.ops.append(_Op(kind=kind, rows=self._row_space, **fields))

    def _matrix(self, width: int) -> _Matrix:
        free = self._free.setdefault(width, [])
        if free:
            data = free.pop()
        else:
            stride = -(-width // 16) * 16
            data = (
                aligned_bytes(self._max_rows * stride * 4, huge=False)
                .view(np.float32)
                .reshape(-1, stride)
            )
            self.keep.append(data)
            self.nbytes += data.nbytes
        return _Matrix(data, width, free.append)

    def _weight(self, packed: PackedWeight) -> _Weight:
        self.keep.append(packed)
        return _Weight(
            packed.data.ctypes.data,
            packed.format,
            packed.n,
            packed.k,
            packed.group,
            int(packed.has_min),
            int(packed.f16_scale),
        )

    def _pointer(self, array: F32) -> int:
        self.keep.append(array)
        return array.ctypes.data

    def _norm(self, weight: F32 | None) -> int | None:
        return None if weight is None else self._pointer(_padded_vector(weight))


class Program:
    """A recorded forward function; `run` is one native call."""

    def __init__(
        self,
        recorder: Recorder,
        output: _Matrix,
        kv: KVSlabs,
        backend: NativeBackend,
        max_rows: int,
    ) -> None:
        self.output = output
        self.nbytes = recorder.nbytes
        self._recorder = recorder
        self._kv = kv
        self._logits = bool(recorder.ops and recorder.ops[0].rows)
        self._library = load_library()
        ops = (_Op * len(recorder.ops))(*recorder.ops)
        handle = self._library.ts_program_create(
            ops, len(ops), _kv_struct(kv), max_rows, backend.variant.encode(), backend.threads
        )
        if not handle:
            raise MemoryError("the native back end could not create its program")
        self._handle = c.c_void_p(handle)
        self._finalizer = weakref.finalize(self, self._library.ts_program_free, self._handle)

    def run(self, batch: Batch) -> F32:
        step = _Step(
            len(batch.token_ids),
            len(batch.seq_starts) - 1,
            len(batch.logit_rows),
            batch.token_ids.ctypes.data,
            batch.positions.ctypes.data,
            batch.slots.ctypes.data,
            batch.seq_starts.ctypes.data,
            batch.block_ids.ctypes.data,
            batch.block_starts.ctypes.data,
            batch.logit_rows.ctypes.data,
        )
        self._library.ts_program_run(self._handle, step)
        rows = step.num_logits if self._logits else step.num_tokens
        return self.output.data[:rows, : self.output.width]


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
        return Program(recorder, function(recorder), kv, self, max_rows)

    def sample(self, logits: F32, draws: Sequence[Draw]) -> list[Drawn]:
        rows = len(draws)
        most = max(max((d.num_logprobs for d in draws), default=0), 1)
        args = (_SampleArgs * rows)()
        for arg, draw in zip(args, draws, strict=True):
            _fill_args(arg, draw)
        results = (_SampleResult * rows)()
        top_ids = np.zeros((rows, most), np.int32)
        top_logprobs = np.zeros((rows, most), np.float32)
        load_library().ts_sample(
            *(self.variant.encode(), self.threads, logits.ctypes.data, logits.strides[0] // 4),
            *(logits.shape[1], args, rows, results, top_ids.ctypes.data, top_logprobs.ctypes.data),
            most,
        )
        drawn = [Drawn(r.token_id, r.failure, r.logprob, r.rank) for r in results]
        for i, draw in enumerate(draws):
            if draw.num_logprobs > 0:
                count = min(draw.num_logprobs, logits.shape[1])
                drawn[i].top_ids = top_ids[i, :count].tolist()
                drawn[i].top_logprobs = top_logprobs[i, :count].tolist()
        return drawn


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


def _heads(a: AttentionSpec) -> dict[str, int]:
    return {
        "layer": a.layer,
        "num_heads": a.num_heads,
        "num_kv_heads": a.num_kv_heads,
        "head_dim": a.head_dim,
    }


def _shifted(matrix: _Matrix, column: int) -> _Buffer:
    return _Buffer(matrix.data.ctypes.data + 4 * column, matrix.data.shape[1])


def _padded_vector(vector: F32) -> F32:
    out = np.zeros(-(-len(vector) // 16) * 16, np.float32)
    out[: len(vector)] = vector
    return out


def _kv_struct(kv: KVSlabs) -> _KVCache:
    def address(array: Any) -> int | None:
        return None if array is None else array.ctypes.data

    shape = kv.layout
    return _KVCache(
        *(address(kv.k), address(kv.v), address(kv.k_scale), address(kv.v_scale)),
        *(FORMATS[shape.dtype], shape.block_size, shape.num_layers),
        *(shape.num_kv_heads, shape.head_dim),
    )


def _supported(weight: Weight) -> Weight:
    """The weight itself, or widened where its shape does not fit the integer kernels."""
    if isinstance(weight, Int8Weight) and (weight.group % 16 or weight.group > 512):
        return FloatWeight(weight.dequantize())
    return weight


def _same_format(parts: list[Weight]) -> list[Weight]:
    """Gate and up in one format, exactly: four bits widen to int8, anything else to f32."""
    if concat_rows(parts) is not None:
        return parts
    as_int8 = [part.to_int8() if isinstance(part, U4Weight) else part for part in parts]
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
