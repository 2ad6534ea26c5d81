"""The ctypes mirror of csrc/abi.h, and the compiled library behind it.

Every struct here has its twin there, field by field; the library refuses to load where their sizes
differ. The GIL is released during every call.
"""

from __future__ import annotations

import ctypes as c
from pathlib import Path
from typing import Any

from tinyserve.kernels.ops import KVSlabs
from tinyserve.kernels.packing import FORMATS

EMBED, RMS_NORM, LINEAR, ROPE_AND_CACHE, ATTENTION, GATHER_ROWS = range(6)
TOKENS, LOGITS = range(2)  # which rows of a step an operation computes


class BufferStruct(c.Structure):
    _fields_ = [("data", c.c_void_p), ("stride", c.c_int64)]


class WeightStruct(c.Structure):
    _fields_ = [
        ("data", c.c_void_p),
        ("format", c.c_int32),
        ("n", c.c_int32),
        ("k", c.c_int32),
        ("group", c.c_int32),
        ("has_min", c.c_int32),
        ("f16_scale", c.c_int32),
    ]


class OpStruct(c.Structure):
    _fields_ = [
        ("kind", c.c_int32),
        ("rows", c.c_int32),
        ("input", BufferStruct),
        ("output", BufferStruct),
        ("residual", BufferStruct),
        ("weight", WeightStruct),
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


class KVCacheStruct(c.Structure):
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


class StepStruct(c.Structure):
    _fields_ = [
        ("num_tokens", c.c_int32),
        ("num_seqs", c.c_int32),
        ("num_logits", c.c_int32),
        ("cascade", c.c_int32),
        ("token_ids", c.c_void_p),
        ("positions", c.c_void_p),
        ("slots", c.c_void_p),
        ("seq_starts", c.c_void_p),
        ("block_ids", c.c_void_p),
        ("block_starts", c.c_void_p),
        ("logit_rows", c.c_void_p),
    ]


class SampleArgsStruct(c.Structure):
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
        ("probs", c.c_void_p),
    ]


ALL_MASKED = 2  # a `failure`: no token is allowed. 1: the logits hold NaN or infinity


class SampleResultStruct(c.Structure):
    _fields_ = [
        ("token_id", c.c_int32),
        ("rank", c.c_int32),
        ("failure", c.c_int32),
        ("logprob", c.c_float),
    ]


_Nothing = c.c_char * 0
_library: c.CDLL | None = None


def library_path() -> Path | None:
    """Where the compiled kernels lie, looked for along the package's `__path__`.

    An editable install has two folders; of two libraries the newest is meant, so that
    `make native` is seen without a reinstall.
    """
    import tinyserve.kernels

    paths = [Path(folder) / "_kernels.so" for folder in tinyserve.kernels.__path__]
    found = [path for path in paths if path.exists()]
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def load_library() -> c.CDLL:
    """The compiled kernels. Raises OSError where they were not built, cannot be loaded, or are of
    another version.
    """
    global _library
    if _library is None:
        path = library_path()
        if path is None:
            raise OSError(
                "the native kernels were not built (no C++ compiler at install time, or it failed)"
            )
        library = c.CDLL(str(path))
        _check_version(library, path)
        _declare(library)
        _library = library
    return _library


def _check_version(library: c.CDLL, path: Path) -> None:
    structs = (OpStruct, KVCacheStruct, StepStruct, SampleArgsStruct, SampleResultStruct)
    sizes = (c.c_int32 * len(structs))()
    library.ts_struct_sizes(sizes)
    if list(sizes) != [c.sizeof(struct) for struct in structs]:
        raise OSError(f"{path} belongs to another version of tinyserve; reinstall it")


def _declare(library: c.CDLL) -> None:
    """Tell ctypes the functions' types, as csrc/program.cpp has them."""
    pointer, text, number, size = c.c_void_p, c.c_char_p, c.c_int, c.c_int64
    ops, kv, step = c.POINTER(OpStruct), c.POINTER(KVCacheStruct), c.POINTER(StepStruct)
    draws = c.POINTER(SampleArgsStruct)
    library.ts_program_create.restype = pointer
    library.ts_program_create.argtypes = [ops, number, kv, number, text, number]
    library.ts_program_run.argtypes = [pointer, step]
    library.ts_program_free.argtypes = [pointer]
    library.ts_program_keys_read.restype = size
    library.ts_program_keys_read.argtypes = [pointer]
    # Where the logits are, how far their rows lie apart, and how wide they are.
    logits: list[Any] = [pointer, size, number]
    results: list[Any] = [pointer, pointer, pointer, number]  # drawn; likeliest ids, logprobs
    library.ts_sample.argtypes = [text, number, *logits, draws, number, *results]
    library.ts_probe.restype = size
    library.ts_probe.argtypes = [text, number, number, pointer, size]


def variants() -> tuple[list[str], list[str]]:
    """(instruction sets that were built and run here, those built that do not), best first."""
    text = c.create_string_buffer(256)
    load_library().ts_variants(text, 256)
    names = text.value.decode().split()
    return [n for n in names if n[0] != "-"], [n[1:] for n in names if n[0] == "-"]


def address(array: Any) -> int:
    """Where the memory of a contiguous, writable array begins: `ctypes.data` at a third of the
    time, for calls of every step.
    """
    return c.addressof(_Nothing.from_buffer(array))


def kv_struct(kv: KVSlabs) -> KVCacheStruct:
    def begin(array: Any) -> int | None:
        return None if array is None else array.ctypes.data

    shape = kv.layout
    return KVCacheStruct(
        k=begin(kv.k),
        v=begin(kv.v),
        k_scale=begin(kv.k_scale),
        v_scale=begin(kv.v_scale),
        format=FORMATS[shape.dtype],
        block_size=shape.block_size,
        num_layers=shape.num_layers,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
    )
