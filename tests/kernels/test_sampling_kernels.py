"""Sampling: the native kernels draw what numpy draws, and report what it reports."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from kernel_tools import same_bits
from sampling_cases import distribution, random_draw, random_logits

from tinyserve.kernels.native import NativeBackend
from tinyserve.kernels.ops import Backend, Draw, SampledToken
from tinyserve.kernels.reference import ReferenceBackend
from tinyserve.kernels.reference_sampling import _mix, keyed_uniform, sample_row

VOCABS = [1, 15, 16, 50, 333, 5000]


def assert_same(got: SampledToken, want: SampledToken, draw: Draw) -> None:
    assert (got.is_nan, got.is_blocked) == (want.is_nan, want.is_blocked), draw
    if want.is_nan or want.is_blocked:
        return
    assert got.token_id == want.token_id, draw
    if draw.num_logprobs < 0:
        assert (got.logprob, got.rank, got.top) == (None, None, ())
        return
    assert got.rank == want.rank
    assert got.logprob == pytest.approx(want.logprob, abs=1e-5)
    assert top_ids(got) == top_ids(want)
    np.testing.assert_allclose(top_logprobs(got), top_logprobs(want), atol=1e-5)


def top_ids(token: SampledToken) -> list[int]:
    return [token_id for token_id, _ in token.top]


def top_logprobs(token: SampledToken) -> list[float]:
    return [logprob for _, logprob in token.top]


@pytest.mark.parametrize("vocab", VOCABS)
def test_draws_what_numpy_draws(
    variant: NativeBackend, vocab: int, rng: np.random.Generator
) -> None:
    rows = 40 if vocab > 1000 else 200
    logits = random_logits(rng, 20, vocab)
    draws = [random_draw(rng, int(rng.integers(20)), vocab) for _ in range(rows)]
    before = logits.copy()
    drawn = variant.sample(logits, draws)
    for got, want, draw in zip(drawn, ReferenceBackend().sample(logits, draws), draws, strict=True):
        assert_same(got, want, draw)
    assert same_bits(np.ascontiguousarray(logits), np.ascontiguousarray(before))


def test_rows_do_not_touch_each_other(rng: np.random.Generator, native: NativeBackend) -> None:
    """Rows that look deep into their ranking beside rows with penalties, on several threads."""
    vocab = 700
    logits = (rng.standard_normal((64, vocab)) * 2).astype(np.float32)
    logits[:, 0] = logits.max(axis=1) + 5  # whoever overwrites this logit changes the draw
    logits[:, -1] = logits[:, 0] - 1  # ranked early, while others are still to be found
    penalty = {"presence": 0.5, "output_ids": np.full(3000, 5, np.int32)}
    deep = {"temperature": 1.0, "top_p": 0.9999}
    draws = [Draw(i % 64, seed=i, **(penalty if i % 2 else deep)) for i in range(2000)]
    alone = [native.sample(logits, [draw])[0].token_id for draw in draws]
    for threads in (2, 4):
        together = NativeBackend(threads).sample(logits, draws)
        assert [drawn.token_id for drawn in together] == alone


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("where", [0, 17, 48, 49])
def test_broken_logits(backend: Backend, bad: float, where: int, rng: np.random.Generator) -> None:
    """NaN or infinity anywhere fails its row, drawn or scored, and no other."""
    logits = rng.standard_normal((3, 50)).astype(np.float32)
    logits[1, where] = bad
    draws = [Draw(row, temperature=1.0, num_logprobs=3) for row in range(3)]
    assert [drawn.is_nan for drawn in backend.sample(logits, draws)] == [False, True, False]
    assert backend.sample(logits, [Draw(1, target=3)])[0].is_nan


def test_nothing_is_left(backend: Backend, rng: np.random.Generator) -> None:
    """Every token masked, by whatever combination, is a failure of its own."""
    logits = rng.standard_normal((2, 50)).astype(np.float32)
    logits[1] = -np.inf
    everything = np.arange(50, dtype=np.int32)
    draws = [
        Draw(0, banned_ids=everything),
        Draw(0, temperature=1.0, allowed_ids=everything[:5], banned_ids=everything[:5]),
        Draw(0, mask=np.zeros(2, np.uint32)),
        Draw(1, temperature=1.0),
        Draw(0, banned_ids=everything[1:]),
    ]
    drawn = backend.sample(logits, draws)
    assert [d.is_blocked for d in drawn] == [True, True, True, True, False]
    assert drawn[4].token_id == 0


def test_minus_infinity_is_never_drawn(backend: Backend) -> None:
    logits = np.full((1, 50), -np.inf, np.float32)
    logits[0, [3, 40]] = [1.0, 0.5]
    draws = [Draw(0, seed=i, temperature=100.0) for i in range(200)]
    assert {drawn.token_id for drawn in backend.sample(logits, draws)} == {3, 40}


def test_top_k_keeps_exactly_k(backend: Backend) -> None:
    """Equal logits: the lowest ids stay."""
    logits = np.zeros((1, 50), np.float32)
    logits[0, 10:] = 1
    for top_k in (1, 3, 40, 43):
        draws = [Draw(0, seed=i, temperature=1.0, top_k=top_k) for i in range(1500)]
        seen = {drawn.token_id for drawn in backend.sample(logits, draws)}
        expected = [*range(10, 50), *range(10)][:top_k]
        assert seen == set(expected)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"top_p": 0.0}, {7}),
        ({"top_p": 1e-9}, {7}),
        ({"min_p": 1.0}, {7, 9}),  # only ties of the best
        ({"top_k": 1}, {7}),
        ({"temperature": 1e-5}, {7, 9}),
        ({"temperature": 0.0}, {7}),
    ],
    ids=str,
)
def test_limits(backend: Backend, options: dict[str, float], expected: set[int]) -> None:
    """Two tokens tie for the best, the lower id being the first."""
    logits = np.linspace(-3, 3, 50, dtype=np.float32)[None]
    logits[0, [7, 9]] = 5
    draws = [Draw(0, seed=i, **{"temperature": 1.0, **options}) for i in range(60)]
    assert {drawn.token_id for drawn in backend.sample(logits, draws)} == expected


def test_penalties_by_hand(backend: Backend) -> None:
    """presence once, frequency by count, repetition over prompt and output, signs respected."""
    logits = np.array([[2.0, 1.9, 1.8, -0.5, -0.6]], np.float32)

    def greedy(**fields: object) -> int:
        return backend.sample(logits, [Draw(0, **fields)])[0].token_id

    outputs = np.array([0, 0, 1], np.int32)
    assert greedy(output_ids=outputs, presence=0.15) == 0  # 1.85, 1.75, 1.8
    assert greedy(output_ids=outputs, frequency=0.15) == 2  # 1.7, 1.75, 1.8
    assert greedy(output_ids=outputs, repetition=1.2) == 2  # 1.67, 1.58, 1.8
    prompt = np.array([2, 2], np.int32)
    assert greedy(output_ids=outputs, prompt_ids=prompt, repetition=1.2) == 0
    only = np.array([3, 4], np.int32)
    three = np.array([3], np.int32)
    # a negative logit is multiplied: repeating makes it less likely too
    assert greedy(allowed_ids=only, output_ids=three, repetition=1.5) == 4
    assert greedy(allowed_ids=only, output_ids=three, presence=-0.2) == 3
    ids, values = np.array([4], np.int32), np.array([5.0], np.float32)
    assert greedy(bias_ids=ids, bias_values=values) == 4


def test_ids_outside_the_vocabulary_name_no_logit(backend: Backend) -> None:
    """They once reached outside the row (LOAD-08's kind): the neighbours' memory, or the heap's."""
    wide = np.zeros((3, 16), np.float32)
    logits = wide[1:2]
    logits[0, 3] = 1.0
    strange = np.array([-1, 16, 17, 2**31 - 1, -(2**31)], np.int32)
    fields: dict[str, Any] = {
        "banned_ids": strange,
        "allowed_ids": np.array([3, 4, *strange], np.int32),
        "bias_ids": strange,
        "bias_values": np.full(5, 100.0, np.float32),
        "prompt_ids": strange,
        "output_ids": strange,
    }
    draw = Draw(0, **fields, repetition=1.5, presence=0.5, frequency=0.5)
    (drawn,) = backend.sample(logits, [draw])
    assert (drawn.token_id, drawn.is_nan, drawn.is_blocked) == (3, False, False)
    assert not wide[0].any()
    assert not wide[2].any()


def test_logprobs_are_raw(backend: Backend, rng: np.random.Generator) -> None:
    """Temperature, penalties and masks change the draw, not what is reported."""
    logits = (rng.standard_normal((1, 300)) * 3).astype(np.float32)
    wide = logits[0].astype(np.float64)
    want = wide - wide.max() - np.log(np.exp(wide - wide.max()).sum())
    order = sorted(range(300), key=lambda i: (-logits[0, i], i))
    banned = np.array(order[:3], np.int32)
    draw = Draw(0, temperature=3.0, banned_ids=banned, num_logprobs=20, seed=5)
    drawn = backend.sample(logits, [draw])[0]
    assert drawn.token_id not in order[:3]
    assert top_ids(drawn) == order[:20]
    np.testing.assert_allclose(top_logprobs(drawn), want[order[:20]], atol=1e-5)
    assert drawn.logprob == pytest.approx(want[drawn.token_id], abs=1e-5)
    assert drawn.rank == order.index(drawn.token_id) + 1


def test_more_logprobs_than_tokens(backend: Backend) -> None:
    logits = np.array([[0.0, 1.0, -np.inf]], np.float32)
    drawn = backend.sample(logits, [Draw(0, num_logprobs=20)])[0]
    assert top_ids(drawn) == [1, 0, 2]


def test_scoring_a_token(backend: Backend, rng: np.random.Generator) -> None:
    """A target is never drawn, only measured, masks and all."""
    logits = rng.standard_normal((1, 100)).astype(np.float32)
    everything = np.arange(100, dtype=np.int32)
    draws = [
        Draw(0, target=t, num_logprobs=0, temperature=1.0, banned_ids=everything)
        for t in range(100)
    ]
    drawn = backend.sample(logits, draws)
    assert [d.token_id for d in drawn] == list(range(100))
    assert sorted(d.rank for d in drawn) == list(range(1, 101))
    assert np.exp([d.logprob for d in drawn]).sum() == pytest.approx(1, abs=1e-5)


def test_a_draw_is_a_function_of_its_key(backend: Backend) -> None:
    """Seed, choice and position decide, all three, whatever row and batch; wide seeds count."""
    logits = np.zeros((4, 997), np.float32)
    keys = [(s, c, p) for s in (0, 1, 2**63, 2**64 - 1) for c in (0, 1) for p in (0, 5, 2**33)]
    draws = [Draw(i % 4, *key, temperature=1.0) for i, key in enumerate(keys)]
    together = [drawn.token_id for drawn in backend.sample(logits, draws)]
    alone = [backend.sample(logits[::-1].copy(), [draw])[0].token_id for draw in draws[::-1]]
    assert together == alone[::-1]
    assert len(set(together)) > len(keys) - 4
    assert together == [int(keyed_uniform(*key) * 997) for key in keys]


def test_draws_that_come_again_are_drawn_like_new_ones(rng: np.random.Generator) -> None:
    """Kept arguments show nowhere: other rows and positions, grown outputs, other logits in the
    same memory, other memory, other draws.
    """
    backend, vocab = NativeBackend(2), 200
    logits = random_logits(rng, 8, vocab)
    draws = [random_draw(rng, row, vocab) for row in range(8)]
    for step in range(40):
        if step % 13 == 12:
            draws = [*draws[1:], random_draw(rng, 0, vocab)]
        if step % 11 == 10:
            logits = logits[:, :vocab].copy()
        logits[:] = random_logits(rng, 8, vocab)
        for draw in draws:
            draw.row, draw.position = int(rng.integers(8)), draw.position + 1
            if draw.output_ids is not None:
                new_id = rng.integers(vocab, size=1).astype(np.int32)
                draw.output_ids = np.concatenate([draw.output_ids, new_id])
        fresh = [dataclasses.replace(draw, prepared=None) for draw in draws]
        expected = NativeBackend(2).sample(logits, fresh)
        for got, want, draw in zip(backend.sample(logits, draws), expected, draws, strict=True):
            assert_same(got, want, draw)


def test_what_was_drawn_is_the_callers_to_keep(native: NativeBackend) -> None:
    logits = np.zeros((1, 50), np.float32)
    draw = Draw(0, temperature=1.0, wants_probs=True, num_logprobs=2)
    (first,) = native.sample(logits, [draw])
    assert first.probs is not None
    probs, top = first.probs.copy(), list(first.top)
    logits[0, 7] = 30
    (second,) = native.sample(logits, [draw])
    assert second.top[0][0] == 7
    assert list(first.top) == top
    assert same_bits(first.probs, probs)


def test_keyed_uniform_is_pinned() -> None:
    """Seeded output must not change between versions unnoticed."""
    assert _mix(0) == 0xE220A8397B1DCDAF  # SplitMix64's first output for seed 0, as published
    got = [keyed_uniform(0, 0, 0), keyed_uniform(1234, 2, 77), keyed_uniform(2**64 - 1, 0, 2**40)]
    assert got == [0.1296456182997474, 0.09376075012287666, 0.5597552246322349]


def test_probabilities_are_those_of_the_draw(backend: Backend) -> None:
    """Whatever the parameters: a distribution, the same as the specification's, and what is drawn
    has a share of it.
    """
    rng = np.random.default_rng(21)
    logits = random_logits(rng, 400, 130)
    draws = [random_draw(rng, row, 130) for row in range(400)]
    for draw in draws:
        draw.wants_probs = True
    seen = 0
    for draw, drawn in zip(draws, backend.sample(logits, draws), strict=True):
        want = sample_row(logits[draw.row], draw).probs
        if drawn.is_nan or drawn.is_blocked or draw.target >= 0:
            assert drawn.probs is None
            continue
        assert drawn.probs is not None
        assert want is not None
        assert drawn.probs.sum() == pytest.approx(1, abs=1e-5)
        assert drawn.probs[drawn.token_id] > 0
        np.testing.assert_allclose(drawn.probs, want, rtol=2e-5, atol=1e-7)
        seen += draw.temperature > 0
    assert seen > 200


def test_probabilities_follow_the_law_of_sampling(backend: Backend) -> None:
    """Against the distribution written apart from the kernels."""
    logits = np.random.default_rng(8).standard_normal((1, 50)).astype(np.float32) * 2
    for options in ({}, {"top_k": 7}, {"top_p": 0.8}, {"min_p": 0.2}, {"top_k": 9, "top_p": 0.7}):
        draw = Draw(0, temperature=0.8, wants_probs=True, **options)
        probs = backend.sample(logits, [draw])[0].probs
        assert probs is not None
        np.testing.assert_allclose(probs, distribution(logits[0], draw), rtol=1e-5, atol=1e-7)
