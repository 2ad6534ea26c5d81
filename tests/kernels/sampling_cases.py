"""Random draws for sampling tests, and the distribution that a draw must follow."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from kernel_tools import F64

from tinyserve.kernels.formats import F32
from tinyserve.kernels.ops import Draw


def random_logits(rng: np.random.Generator, rows: int, vocab: int) -> F32:
    """Rows of many shapes: peaked, flat, tied, some mostly -inf. A view of wider rows."""
    wide = np.zeros((rows, -(-vocab // 16) * 16 + 16), np.float32)
    logits = wide[:, :vocab]
    for row in range(rows):
        x = rng.standard_normal(vocab) * rng.choice([0.0, 0.3, 3.0, 20.0])
        shape = rng.integers(6)
        if shape == 0:
            x = np.round(x)  # ties
        if shape == 1:
            x[rng.random(vocab) < 0.5] = -np.inf
        if shape == 2:
            x[rng.random(vocab) < 0.95] = -np.inf
            x[rng.integers(vocab)] = 1.0
        if shape == 3:
            x[rng.integers(vocab)] += 30
        if not np.isfinite(x).any():
            x[0] = 1.0
        logits[row] = x
    return logits


def random_draw(rng: np.random.Generator, row: int, vocab: int) -> Draw:
    """Any combination of parameters, each often at its neutral value and sometimes at a limit."""

    def ids(most: int) -> Any:
        return rng.integers(0, vocab, rng.integers(1, max(2, most))).astype(np.int32)

    def often(value: Any, other: Any, chance: float = 0.6) -> Any:
        return value if rng.random() < chance else other

    draw = Draw(row, int(rng.integers(2**63)), int(rng.integers(8)), int(rng.integers(10**6)))
    temperature = float(rng.choice([1e-5, 1e-3, 0.3, 0.7, 1.0, 2.0, 100.0]))
    draw.temperature = often(temperature, 0.0, 0.85)
    draw.top_p = often(1.0, float(rng.choice([0.0, 1e-6, 0.1, 0.5, 0.9, 0.999])))
    draw.top_k = often(0, int(rng.choice([1, 2, 5, vocab // 2, vocab, 10**6])))
    draw.min_p = often(0.0, float(rng.choice([1e-3, 0.05, 0.5, 1.0])))
    draw.num_logprobs = int(rng.choice([-1, 0, 1, 5, 20]))
    if rng.random() < 0.3:
        draw.presence, draw.frequency = float(rng.uniform(-2, 2)), float(rng.uniform(-2, 2))
        draw.output_ids = ids(60)
    if rng.random() < 0.3:
        draw.repetition = float(rng.choice([0.5, 1.1, 2.0]))
        draw.prompt_ids, draw.output_ids = ids(60), often(draw.output_ids, ids(30))
    if rng.random() < 0.2:
        draw.bias_ids = np.unique(ids(20))
        draw.bias_values = rng.uniform(-20, 20, len(draw.bias_ids)).astype(np.float32)
    if rng.random() < 0.2:
        draw.banned_ids = ids(20)
    if rng.random() < 0.2:
        draw.allowed_ids = ids(vocab)
    if rng.random() < 0.2:
        draw.mask = rng.integers(0, 2**32, -(-vocab // 32), dtype=np.uint32)
    if rng.random() < 0.1:
        draw.target = int(rng.integers(vocab))
    return draw


def distribution(logits: F32, draw: Draw) -> F64:
    """What `draw` samples from, written apart from the kernels: probabilities over the vocabulary.

    For draws without masks, biases and penalties.
    """
    x = logits.astype(np.float64) / draw.temperature
    p = np.exp(x - x.max())
    p[p < draw.min_p] = 0  # relative to the best, whose weight is 1
    order = sorted(range(len(p)), key=lambda i: (-p[i], i))
    if draw.top_k:
        p[order[draw.top_k :]] = 0
    p /= p.sum()
    total, kept = 0.0, 0
    while kept < len(p) and (kept == 0 or total < draw.top_p):
        total += p[order[kept]]
        kept += 1
    p[order[kept:]] = 0
    return np.asarray(p / p.sum())


def chi_square_limit(freedom: int, z: float) -> float:
    """The value that a chi-square variable exceeds as seldom as a normal one exceeds `z`.

    Wilson and Hilferty's approximation (1931), good to a fraction of a per cent here.
    """
    spread = 2 / (9 * freedom)
    return freedom * (1 - spread + z * math.sqrt(spread)) ** 3
