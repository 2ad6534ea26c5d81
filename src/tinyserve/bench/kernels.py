"""Each kernel against what the machine could do: read bandwidth and multiply rate, in the same run.

    python -m tinyserve.bench.kernels --models 135m,0.5b --formats u4,int8 --rows 1,4,16,512
    python -m tinyserve.bench.kernels --formats bf16,f32 --against torch

For the matrices of one model's layers and for its head (as many layers, and as many copies of the
head, as overflow the caches), in each weight format, over numbers of rows: time, bytes and
multiply-adds a second, and the share of the roofline, which is the longer of reading the weights
once and multiplying at the peak rate. For attention: streams over context lengths, against the
bandwidth at which their KV could be read.

`--against torch` also times torch's products (oneDNN, MKL) of the same shapes and float formats, in
turns with the kernels. Its bf16 products round activations to bf16, too, to 8 bits; ours to 16.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tinyserve.bench import plots
from tinyserve.bench.arguments import ints, names_of, plot_file, positive_int
from tinyserve.bench.attention import attention
from tinyserve.bench.ceilings import CACHES, Ceilings, rounds_of, step_seconds
from tinyserve.bench.common import (
    command,
    machine,
    model_parser,
    run_program,
    say,
    table,
    write_json,
)
from tinyserve.bench.limits import arithmetic_of, rate_of
from tinyserve.bench.matmul_peer import MatmulPeer, check, compared, matmul_peer
from tinyserve.kernels.formats import FloatWeight, Int8Weight, U4Weight, Weight, to_bf16
from tinyserve.kernels.native import NativeBackend
from tinyserve.kernels.ops import Batch, KVLayout
from tinyserve.kernels.threads import default_threads
from tinyserve.kv.pool import KVPool
from tinyserve.models.checkpoint import load_checkpoint
from tinyserve.models.config import ModelConfig
from tinyserve.models.synthetic import synthetic_config
from tinyserve.models.weights import int8_group

MODULE = "kernels"
FORMATS = ("u4", "int8", "bf16", "f16", "f32")
MODELS = {"135m": "135m", "0.5b": "qwen2.5-0.5b", "1.5b": "qwen2.5-1.5b"}


def main(argv: list[str] | None = None) -> None:
    parser = options()
    args = parser.parse_args(argv)
    try:
        check(args.against)
    except ValueError as error:
        parser.error(f"--against: {error}")
    backend = NativeBackend(args.threads or default_threads()[0])
    backend.bf16x2 = backend.variant == "amx"  # as a server has it
    ceilings = Ceilings(backend.variant, backend.threads)
    lines = []
    for model, config in shapes(args).items():
        for kind in args.formats.split(","):
            for part, function, matrices in parts(backend, config, kind, args.seed):
                sizes = [(matrix.n, matrix.k) for matrix in matrices]
                with matmul_peer(args.against, kind, sizes, backend.threads) as rival:
                    found = rows_of(backend, function, matrices, args, ceilings, kind, rival)
                lines += [{"model": model, "format": kind, "part": part, **line} for line in found]
                say(f"{model} {kind} {part} done")
        lines += attention(backend, model, config, args, ceilings)
    result = {
        "command": command(MODULE, args, parser),
        "machine": machine(backend.variant),
        "ceilings": ceilings.medians(),
        "lines": lines,
    }
    write_json(args.out, result)
    print(report(lines))
    print(", ".join(f"{name} {value:.3g}" for name, value in ceilings.medians().items()))
    if args.plot:
        plots.roofline([line for line in lines if line["part"] == "layers"], args.plot)


def shapes(args: argparse.Namespace) -> dict[str, ModelConfig]:
    """The architectures to measure: that of `--model`, else the known ones of `--models`."""
    if args.model is not None:
        return {Path(args.model).stem: load_checkpoint(args.model).config}
    return {name: synthetic_config(MODELS[name]) for name in args.models.split(",")}


def options() -> argparse.ArgumentParser:
    parser = model_parser(MODULE, __doc__)
    add = parser.add_argument
    add(
        "--models",
        type=names_of(MODELS, "shape"),
        default="135m,0.5b,1.5b",
        help=f"shapes, where --model names none (there are {', '.join(MODELS)})",
    )
    add(
        "--formats",
        type=names_of(FORMATS, "format"),
        default="u4,int8,bf16,f32",
        help="weight formats, separated by commas (default: all but f16)",
    )
    add("--rows", type=ints, default=[1, 2, 4, 8, 16, 32, 64, 128, 512], help="rows of a product")
    add("--contexts", type=ints, default=[64, 512, 4096], help="context lengths of attention")
    add("--streams", type=ints, default=[1, 8, 32], help="streams of attention")
    add(
        "--repeat",
        type=positive_int,
        default=5,
        help="timings of each case, fewer of those that take seconds; medians are reported",
    )
    add("--against", help="torch, or torch=PYTHON: time its products as well", metavar="torch")
    add("--plot", type=plot_file, help="draw shares of the roofline into this file (matplotlib)")
    return parser


Part = tuple[str, Callable[[Any, Any], Any], list[Any]]


def parts(backend: NativeBackend, config: ModelConfig, kind: str, seed: int) -> list[Part]:
    """The layers' matrices, one after the other, and copies of the head: (name, function,
    matrices). Each part is larger than the caches, so that every step reads its weights from
    memory.
    """
    rng = np.random.default_rng(seed)
    h, wide = config.hidden_size, config.intermediate_size
    qkv = h + 2 * config.num_kv_heads * config.head_dim
    assert config.num_heads * config.head_dim == h

    def layer() -> list[Any]:
        gate, up = (_weight(kind, wide, h, rng) for _ in range(2))
        return [
            backend.linear([_weight(kind, qkv, h, rng)]),
            backend.linear([_weight(kind, h, h, rng)]),
            backend.linear([gate, up], silu_mul=True),
            backend.linear([_weight(kind, h, wide, rng)]),
        ]

    layers = [layer()]
    size = sum(m.nbytes for m in layers[0])
    layers += [layer() for _ in range(_more_than_caches(size))]

    def run_layers(ops: Any, x: Any) -> Any:
        for qkv_matrix, out, gate_up, down in layers:
            ops.linear(x, qkv_matrix)
            x = ops.linear(x, out, residual=x)
            x = ops.linear(ops.linear(x, gate_up), down, residual=x)
        return x

    flat = [matrix for one in layers for matrix in one]
    weight = _weight(kind, config.vocab_size, h, rng)
    heads = [backend.linear([weight])]
    heads += [backend.linear([weight]) for _ in range(_more_than_caches(heads[0].nbytes))]

    def run_heads(ops: Any, x: Any) -> Any:
        for head in heads[:-1]:
            ops.linear(x, head)
        return ops.linear(x, heads[-1])

    return [("layers", run_layers, flat), ("head", run_heads, heads)]


def _more_than_caches(size: int) -> int:
    """How many more of `size` bytes it takes to overflow the caches."""
    return max(0, -(-CACHES // size) - 1)


def _weight(kind: str, n: int, k: int, rng: np.random.Generator) -> Weight:
    """Random weights of one format that keep activations about their size."""
    spread = np.float32(1 / np.sqrt(k))
    if kind in ("u4", "int8"):
        group = 32 if kind == "u4" else int8_group(k)
        scale = np.full((n, k // group), spread / 8, np.float16).astype(np.float32)
        if kind == "u4":
            q = rng.integers(0, 16, (n, k), np.uint8)
            return U4Weight(q, scale, -8 * scale)
        return Int8Weight(rng.integers(-8, 8, (n, k), np.int8), scale, None, group)
    values = rng.standard_normal((n, k), np.float32)
    values *= spread
    if kind == "bf16":
        return FloatWeight(to_bf16(values))
    return FloatWeight(values.astype({"f16": np.float16, "f32": np.float32}[kind], copy=False))


def rows_of(
    backend: NativeBackend,
    function: Callable[[Any, Any], Any],
    matrices: Sequence[Any],
    args: argparse.Namespace,
    ceilings: Ceilings,
    kind: str,
    rival: MatmulPeer | None = None,
) -> list[dict[str, Any]]:
    """One line for each number of rows."""
    num_bytes = sum(m.nbytes for m in matrices)
    multiplies = sum(m.n * m.k for m in matrices)
    width = matrices[0].k
    table_rows = np.random.default_rng(args.seed).standard_normal((256, width), np.float32)
    embedding = backend.linear([FloatWeight(table_rows)])
    pool = KVPool(KVLayout(1, 16, 1, 1, 16, "f32"), num_swap_blocks=0)
    program = backend.compile(
        lambda ops: function(ops, ops.embed(embedding)), pool, max_rows=max(args.rows)
    )
    lines = []
    for rows in args.rows:
        ceilings.measure()
        best = ceilings.latest()
        runs = [partial(step_seconds, program, _rows(rows))]
        runs += [] if rival is None else [partial(rival.seconds, rows)]
        rounds = rounds_of(runs, args.repeat)
        seconds = statistics.median(own for own, *_ in rounds)
        reading = num_bytes / best["read_gb_s"] / 1e9
        multiplying = rows * multiplies / best[rate_of(arithmetic_of(kind, backend))] / 1e9
        lines.append(
            {
                "rows": rows,
                "ms": 1e3 * seconds,
                "gb_s": num_bytes / seconds / 1e9,
                "gmac_s": rows * multiplies / seconds / 1e9,
                "of_bandwidth": reading / seconds,
                "of_multiply_rate": multiplying / seconds,
                "of_roofline": max(reading, multiplying) / seconds,
                **({} if rival is None else compared(rounds)),
            }
        )
    return lines


def _rows(count: int) -> Batch:
    tokens = np.arange(count, dtype=np.int32) % 256
    return Batch(
        token_ids=tokens,
        positions=np.zeros(count, np.int32),
        slots=np.zeros(count, np.int32),
        seq_starts=np.array([0, count], np.int32),
        block_ids=np.zeros(1, np.int32),
        block_starts=np.array([0, 1], np.int32),
        logit_rows=np.zeros(1, np.int32),
    )


def report(lines: Sequence[dict[str, Any]]) -> str:
    """All lines as a table."""
    keys = ("model", "part", "format", "rows", "context", "ms", "gb_s", "gmac_s")
    shares = ["of_bandwidth", "of_multiply_rate", "of_roofline"]
    names = [*keys[:-2], "GB/s", "GMAC/s", "of bandwidth", "of multiply rate", "of roofline"]
    if any("over_torch" in line for line in lines):
        shares += ["torch_ms", "over_torch"]
        names += ["torch ms", "over torch"]
    return table(names, [[line.get(key) for key in (*keys, *shares)] for line in lines])


if __name__ == "__main__":
    run_program(main)
