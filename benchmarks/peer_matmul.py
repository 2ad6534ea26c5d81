"""torch's matrix products (oneDNN, MKL), for `python -m tinyserve.bench.kernels --against torch`.

    PYTHON peer_matmul.py --format bf16 --shapes 960x576,576x576 --threads 2

Holds a matrix of each shape, and prints "ready". Then, for each number of rows that it reads, it
multiplies so many rows by every matrix once, and prints the seconds that this took. Results go to
memory that is there already. Imports nothing of tinyserve, so that it runs where torch is.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--format", choices=("f32", "bf16"), required=True)
    parser.add_argument("--shapes", required=True, help="outputs x inputs, separated by commas")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    try:
        import torch
    except ImportError:
        sys.exit("torch is not installed there (pip install torch)")
    torch.set_num_threads(args.threads)
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[args.format]
    shapes = [tuple(map(int, shape.split("x"))) for shape in args.shapes.split(",")]
    weights = [matrix(torch, n, k, dtype) for n, k in shapes]
    print("ready", flush=True)
    made: dict[int, list[tuple[Any, Any, Any]]] = {}  # by rows: inputs, weights, results
    for line in sys.stdin:
        rows = int(line)
        if rows not in made:
            made = {rows: [(matrix(torch, rows, w.shape[1], dtype), w.t(), None) for w in weights]}
            made[rows] = [(x, w, torch.mm(x, w)) for x, w, _ in made[rows]]
        begin = time.perf_counter()
        for x, w, result in made[rows]:
            torch.mm(x, w, out=result)
        print(time.perf_counter() - begin, flush=True)


def matrix(torch: Any, rows: int, columns: int, dtype: Any) -> Any:
    """Ordinary values of about the size 1 / sqrt(columns); all rows alike, since that is no less
    work and soon made.
    """
    return (torch.randn(columns) / columns**0.5).to(dtype).repeat(rows, 1)


if __name__ == "__main__":
    main()
