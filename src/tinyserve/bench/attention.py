"""Decode attention against the bandwidth at which its keys and values could be read, and a shared
prefix with and without cascade.

    python -m tinyserve.bench.attention --prefix 1000 --streams 32

Attention alone, one token a stream at the end of its context. For each KV type, contexts without
anything shared; then streams that begin with the same blocks, grouped and not, in turns.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from tinyserve.bench.arguments import ints, names_of, positive_int
from tinyserve.bench.ceilings import CACHES, Ceilings
from tinyserve.bench.common import (
    command,
    machine,
    model_parser,
    run_program,
    say,
    table,
    write_json,
)
from tinyserve.kernels.formats import FloatWeight
from tinyserve.kernels.native import NativeBackend
from tinyserve.kernels.ops import AttentionSpec, Batch, KVLayout
from tinyserve.kernels.recorder import Program
from tinyserve.kernels.threads import default_threads
from tinyserve.kv.pool import KVPool
from tinyserve.kv_budget import ELEMENT_BYTES, block_bytes
from tinyserve.models.config import ModelConfig
from tinyserve.models.synthetic import synthetic_config

MODULE = "attention"
BLOCK = 16


@dataclass(frozen=True)
class Case:
    """`streams` decodes over `context` keys each, the first `prefix` in common blocks."""

    streams: int
    context: int
    dtype: str = "f16"
    prefix: int = 0

    @property
    def shared_blocks(self) -> int:
        return self.prefix // BLOCK

    @property
    def own_blocks(self) -> int:
        return -(-self.context // BLOCK) - self.shared_blocks

    @property
    def num_blocks(self) -> int:
        return self.shared_blocks + self.streams * self.own_blocks

    def layer_bytes(self, config: ModelConfig) -> int:
        """Keys and values of one layer, shared ones once; int8's scales too."""
        keys = self.shared_blocks * BLOCK
        keys += self.streams * (self.context - keys)
        return block_bytes(config, keys, self.dtype) // config.num_layers


def main(argv: list[str] | None = None) -> None:
    parser = model_parser(MODULE, __doc__)
    add = parser.add_argument
    add("--shape", default="135m", help="the model whose heads are measured")
    add(
        "--dtypes",
        type=names_of(ELEMENT_BYTES, "KV type"),
        default="f32,f16,int8",
        help=f"KV types, separated by commas (there are {', '.join(ELEMENT_BYTES)})",
    )
    add("--contexts", type=ints, default=[64, 512, 1024, 4096], help="tokens of each stream")
    add("--streams", type=ints, default=[1, 8, 32], help="streams at once")
    add(
        "--prefix", type=positive_int, default=1000, help="keys that the streams of a cascade share"
    )
    add("--own", type=positive_int, default=40, help="keys that each of them has to itself")
    add(
        "--repeat", type=positive_int, default=15, help="timings of each case; medians are reported"
    )
    args = parser.parse_args(argv)
    backend = NativeBackend(args.threads or default_threads()[0])
    ceilings = Ceilings(backend.variant, backend.threads)
    config = synthetic_config(args.shape)
    lines = []
    for dtype in args.dtypes.split(","):
        cases = [Case(s, c, dtype) for c in args.contexts for s in args.streams]
        cases += [Case(s, args.prefix + args.own, dtype, args.prefix) for s in args.streams]
        lines += [measure(backend, config, case, args, ceilings) for case in cases]
        say(f"{dtype} done")
    result = {
        "command": command(MODULE, args, parser),
        "machine": machine(backend.variant),
        "ceilings": ceilings.medians(),
        "lines": lines,
    }
    write_json(args.out, result)
    print(report(lines))


def report(lines: list[dict[str, Any]]) -> str:
    timed = ("ms", "gb_s", "of_bandwidth", "of_fma", "ms_ungrouped", "gain")
    names = ("kv", "rows", "context", "prefix", *timed)
    return table(names, [[line.get(name) for name in names] for line in lines])


def attention(
    backend: NativeBackend,
    model: str,
    config: ModelConfig,
    args: argparse.Namespace,
    ceilings: Ceilings,
) -> list[dict[str, Any]]:
    """Decode attention of as many layers as overflow the caches, for streams and contexts."""
    lines = []
    for context in args.contexts:
        for streams in args.streams:
            measured = measure(backend, config, Case(streams, context), args, ceilings)
            lines.append({"model": model, "format": "f16 KV", "part": "attention", **measured})
    say(f"{model} attention done")
    return lines


def measure(
    backend: NativeBackend,
    config: ModelConfig,
    case: Case,
    args: argparse.Namespace,
    ceilings: Ceilings,
) -> dict[str, Any]:
    """Time per layer; where a prefix is shared, also without grouping, the two in turns."""
    num_bytes = case.layer_bytes(config)
    layers = max(1, min(config.num_layers, -(-CACHES // num_bytes)))
    program = compiled(backend, config, case, layers, args.seed)
    ceilings.measure()
    ways = (True, False) if case.shared_blocks else (True,)
    times = timed(program, decodes(case), ways, args.repeat)
    seconds = statistics.median(times[True]) / layers
    multiplies = 2 * case.streams * case.context * config.num_heads * config.head_dim
    line = {
        "kv": case.dtype,
        "rows": case.streams,
        "context": case.context,
        "prefix": case.prefix,
        "ms": 1e3 * seconds,
        "gb_s": num_bytes / seconds / 1e9,
        "of_bandwidth": num_bytes / seconds / 1e9 / ceilings.latest()["read_gb_s"],
        "of_fma": multiplies / seconds / 1e9 / ceilings.latest()["f32_gmac_s"],
    }
    if case.shared_blocks:
        pairs = zip(times[False], times[True], strict=True)
        line["ms_ungrouped"] = 1e3 * statistics.median(times[False]) / layers
        line["gain"] = statistics.median(apart / grouped for apart, grouped in pairs)
    return line


def timed(
    program: Program, batch: Batch, ways: tuple[bool, ...], repeat: int
) -> dict[bool, list[float]]:
    """Seconds of each step, with cascade and without in turns; the first round is left out."""
    times: dict[bool, list[float]] = {way: [] for way in ways}
    for _ in range(repeat + 1):
        for way in ways:
            program.cascade = way
            begin = time.perf_counter()
            program.run(batch)
            times[way].append(time.perf_counter() - begin)
    return {way: seconds[1:] for way, seconds in times.items()}


def compiled(
    backend: NativeBackend, config: ModelConfig, case: Case, layers: int, seed: int
) -> Program:
    """Attention of some layers over a cache that holds numbers everywhere."""
    layout = KVLayout(
        num_blocks=case.num_blocks,
        block_size=BLOCK,
        num_layers=layers,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        dtype=case.dtype,
    )
    pool = KVPool(layout, num_swap_blocks=0)
    for slab in (pool.k, pool.v):
        slab[...] = 3 if case.dtype == "int8" else np.asarray(0.5, slab.dtype)
    for scale in (pool.k_scale, pool.v_scale):
        if scale is not None:
            scale[...] = 0.01
    ones = np.ones((case.context, config.head_dim // 2), np.float32)
    width = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    rows = np.random.default_rng(seed).standard_normal((case.streams, width), np.float32)
    embedding = backend.linear([FloatWeight(rows)])
    heads = (config.num_heads, config.num_kv_heads, config.head_dim)
    specs = [AttentionSpec(layer, *heads, None, ones, ones) for layer in range(layers)]

    def attend(ops: Any) -> Any:
        qkv = ops.embed(embedding)
        out = None
        for spec in specs:
            out = ops.paged_attention(qkv, spec)
        return out

    return backend.compile(attend, pool, max_rows=case.streams)


def decodes(case: Case) -> Batch:
    """One row a stream, at the end of its context; blocks after the prefix are its own."""
    shared, own, streams = case.shared_blocks, case.own_blocks, case.streams
    prefix = np.broadcast_to(np.arange(shared), (streams, shared))
    mine = shared + np.arange(streams * own).reshape(streams, own)
    tables = np.concatenate([prefix, mine], axis=1).astype(np.int32)
    last = tables[:, -1] * BLOCK + (case.context - 1) % BLOCK
    return Batch(
        token_ids=np.arange(streams, dtype=np.int32),
        positions=np.full(streams, case.context - 1, np.int32),
        slots=last.astype(np.int32),
        seq_starts=np.arange(streams + 1, dtype=np.int32),
        block_ids=np.ascontiguousarray(tables.ravel()),
        block_starts=(np.arange(streams + 1) * (shared + own)).astype(np.int32),
        logit_rows=np.arange(streams, dtype=np.int32),
    )


if __name__ == "__main__":
    run_program(main)
