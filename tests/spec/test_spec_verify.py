"""The verifier against the target's law.

Pearson's chi-square with fixed seeds, rejecting beyond 4.0 standard deviations: a false alarm in
about 32,000 fresh seeds. There are 22, so a right verifier would fail one for a seed in 1,400;
seeds are fixed, so what passes once passes always. 25,000 draws each, over 200,000 together; the
slow ones 200,000 each.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tinyserve.spec.verify import accept_or_recover, draw_from, num_confirmed, residual

F64 = NDArray[np.float64]
VOCAB, Z = 12, 4.0


@pytest.fixture(params=[25_000, pytest.param(200_000, marks=pytest.mark.slow)])
def draws(request: pytest.FixtureRequest) -> int:
    count: int = request.param
    return count


def law(seed: int, sharp: float = 1.0) -> F64:
    x = np.random.default_rng(seed).standard_normal(VOCAB) * sharp
    p = np.exp(x)
    return np.asarray(p / p.sum())


def one_hot(token: int) -> F64:
    p = np.zeros(VOCAB)
    p[token] = 1
    return p


def without(p: F64, token: int) -> F64:
    q = p.copy()
    q[token] = 0
    return np.asarray(q / q.sum())


P = law(1, 1.5)
TOP = int(P.argmax())
# What drafts are drawn from: how it relates to the target's distribution P.
PROPOSALS: dict[str, F64] = {
    "equal to p": P,
    "another": law(2, 1.5),
    "flat": np.full(VOCAB, 1 / VOCAB),
    "zero where p is large": without(law(3), TOP),
    "only where p is small": one_hot(int(P.argmin())),
    "one-hot at the best": one_hot(TOP),
    "the opposite": np.asarray((1 / P) / (1 / P).sum()),
}


def assert_follows(tokens: F64 | NDArray[np.int64], p: F64) -> None:
    """Pearson's statistic of the tokens against p."""
    counts = np.bincount(np.asarray(tokens, np.int64), minlength=len(p))
    assert not counts[p == 0].any(), "a token of probability zero"
    expected = p[p > 0] * len(tokens)
    assert expected.min() > 5
    statistic = float(((counts[p > 0] - expected) ** 2 / expected).sum())
    assert statistic < chi_square_limit(int((p > 0).sum()) - 1), counts / len(tokens)


def chi_square_limit(freedom: int) -> float:
    """Wilson and Hilferty's approximation (1931)."""
    spread = 2 / (9 * freedom)
    return freedom * (1 - spread + Z * math.sqrt(spread)) ** 3


def settled(p: F64, q: F64, draws: int, *, give_q: bool) -> tuple[NDArray[np.int64], float]:
    """Tokens settled from drafts drawn from q, and the share of accepted drafts."""
    dice = np.random.default_rng(0)
    drafts = dice.choice(VOCAB, draws, p=q)
    uniforms = dice.random((draws, 2))
    told = q if give_q else None
    tokens = np.array(
        [
            accept_or_recover(int(x), p, told, a, r)
            for x, (a, r) in zip(drafts, uniforms, strict=True)
        ]
    )
    return tokens, float((tokens == drafts).mean())


@pytest.mark.parametrize("name", PROPOSALS)
def test_rejection_follows_the_target_whatever_is_proposed(name: str, draws: int) -> None:
    q = PROPOSALS[name]
    tokens, accepted = settled(P, q, draws, give_q=True)
    assert_follows(tokens, P)
    assert accepted == pytest.approx(np.minimum(P, q).sum(), abs=0.015)


@pytest.mark.parametrize("name", ["another", "zero where p is large"])
def test_a_proposal_may_always_be_taken_as_certain(name: str, draws: int) -> None:
    """Drafts drawn from q but settled as if there were no q: the law is the same, fewer hold."""
    q = PROPOSALS[name]
    tokens, accepted = settled(P, q, draws, give_q=False)
    assert_follows(tokens, P)
    assert accepted == pytest.approx((P * q).sum(), abs=0.015)


@pytest.mark.parametrize("name", ["flat", "one-hot at the best"])
def test_what_the_target_rules_out_never_comes(name: str, draws: int) -> None:
    """A truncated target (top_k, top_p, masks): probability zero stays zero."""
    p = without(without(P, TOP), int(P.argmin()))
    tokens, _ = settled(p, PROPOSALS[name], draws, give_q=True)
    assert_follows(tokens, p)


def test_the_test_can_fail(draws: int) -> None:
    """Accepting without recovering from the residual is found out at once."""
    q = PROPOSALS["another"]
    dice = np.random.default_rng(5)
    drafts = dice.choice(VOCAB, draws, p=q)
    kept = dice.random(draws) * q[drafts] < P[drafts]
    wrong = np.where(kept, drafts, dice.choice(VOCAB, draws, p=P))  # from p, not from p - q
    with pytest.raises(AssertionError):
        assert_follows(wrong, P)


@given(st.integers(0, 10**6), st.floats(0, 1, exclude_max=True), st.floats(0, 1, exclude_max=True))
def test_settling_a_proposal_equal_to_the_target_always_accepts(
    seed: int, accept: float, recover: float
) -> None:
    p = law(seed)
    draft = draw_from(p, recover)
    assert accept_or_recover(draft, p, p, accept, recover) == draft


@given(st.integers(0, 10**6), st.integers(0, VOCAB - 1), st.floats(0, 1, exclude_max=True))
def test_what_is_recovered_is_not_the_draft(seed: int, draft: int, recover: float) -> None:
    p = without(law(seed), draft)
    assert accept_or_recover(draft, p, None, 0.0, recover) != draft
    assert residual(draft, p, None)[draft] == 0


def test_draws_at_the_edges() -> None:
    weights = np.array([0.0, 1.0, 0.0, 2.0, 0.0])
    assert draw_from(weights, 0.0) == 1
    assert draw_from(weights, 1 / 3 - 1e-9) == 1
    assert draw_from(weights, 1 / 3 + 1e-9) == 3
    assert draw_from(weights, 1 - 2**-53) == 3
    tiny = np.array([0.0, 1e-300, 0.0])
    assert draw_from(tiny, 0.999) == 1


@pytest.mark.parametrize(
    ("drawn", "drafts", "count"),
    [
        ([1, 2, 3], [1, 2], 3),  # all accepted, and a bonus
        ([1, 2, 3], [1, 9], 2),  # the second is recovered
        ([1, 2, 3], [9, 2], 1),
        ([5], [], 1),
        ([1, 2], [1, 2, 3], 2),  # a grammar cut the rows
        ([], [1], 0),
    ],
)
def test_tokens_stand_up_to_the_first_that_is_not_the_draft(
    drawn: list[int], drafts: list[int], count: int
) -> None:
    assert num_confirmed(drawn, drafts) == count
