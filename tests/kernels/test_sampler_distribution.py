"""The sampler against its target distribution: Pearson's chi-square test, fixed seeds.

Each test rejects beyond 4.0 standard deviations (one-sided), a false alarm in about 32,000 fresh
seeds; with 8 tests a right sampler would fail for one seed in 4,000. The seeds are fixed, so a test
that passes passes always; a wrong sampler's statistic grows with the number of draws.
"""

from __future__ import annotations

import numpy as np
import pytest
from sampling_cases import chi_square_limit, distribution

from tinyserve.kernels.ops import Backend, Draw
from tinyserve.kernels.reference_sampling import keyed_uniform

VOCAB, DRAWS, Z = 50, 20_000, 4.0
CASES = [
    {"temperature": 1.0},
    {"temperature": 0.5},
    {"temperature": 1.7, "top_k": 12},
    {"temperature": 1.0, "top_p": 0.8},
    {"temperature": 1.0, "min_p": 0.1},
    {"temperature": 1.3, "top_k": 30, "top_p": 0.9, "min_p": 0.02},
]


def statistic(counts: np.ndarray, expected: np.ndarray) -> tuple[float, int]:
    """Pearson's statistic and its degrees of freedom; rare cells are thrown together."""
    rare = expected < 5
    observed = np.append(counts[~rare], counts[rare].sum())
    wanted = np.append(expected[~rare], expected[rare].sum())
    if wanted[-1] == 0:
        assert observed[-1] == 0, "a token of probability zero was drawn"
        observed, wanted = observed[:-1], wanted[:-1]
    return float(((observed - wanted) ** 2 / wanted).sum()), len(wanted) - 1


@pytest.mark.parametrize(
    ("backend", "options"),
    [*(("native", options) for options in CASES), ("numpy", CASES[0]), ("numpy", CASES[-1])],
    indirect=["backend"],
    ids=str,
)
def test_draws_follow_the_distribution(backend: Backend, options: dict[str, float]) -> None:
    logits = np.random.default_rng(7).standard_normal((1, VOCAB)).astype(np.float32) * 1.5
    draws = [Draw(0, seed=42, position=i, **options) for i in range(DRAWS)]
    tokens = [drawn.token_id for drawn in backend.sample(logits, draws)]
    counts = np.bincount(tokens, minlength=VOCAB)
    expected = distribution(logits[0], draws[0]) * DRAWS
    value, freedom = statistic(counts, expected)
    assert value < chi_square_limit(freedom, Z)


@pytest.mark.parametrize("key", ["seed", "choice", "position"])
def test_uniforms_are_uniform_and_independent(key: str) -> None:
    """Each part of the key, counted up, gives 10 x 10 equally filled cells of (u, next u)."""
    at = {"seed": 3, "choice": 0, "position": 0}
    u = np.array([keyed_uniform(**{**at, key: i}) for i in range(DRAWS + 1)])
    assert ((u >= 0) & (u < 1)).all()
    cells = (u[:-1] * 10).astype(int) * 10 + (u[1:] * 10).astype(int)
    counts = np.bincount(cells, minlength=100)
    value, freedom = statistic(counts, np.full(100, DRAWS / 100))
    assert value < chi_square_limit(freedom, Z)


def test_the_test_can_fail() -> None:
    """A sampler that is off by five per cent in one token is found out."""
    expected = np.full(VOCAB, DRAWS / VOCAB)
    skewed = expected.copy()
    skewed[0] *= 1.25
    skewed[1] *= 0.75
    value, freedom = statistic(skewed, expected)
    assert value > chi_square_limit(freedom, Z) / 2
