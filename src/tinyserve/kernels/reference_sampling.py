"""Sampling one row of logits in numpy: the executable specification of the sampling kernel.

Owns the order of effects and the keyed random numbers, which do not depend on the back end.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tinyserve.kernels.formats import F32
from tinyserve.kernels.ops import I32, Draw, SampledToken

_MASK = (1 << 64) - 1


def sample_row(logits: F32, draw: Draw) -> SampledToken:
    """One row: masks and bias, penalties, temperature, min_p, top_k, top_p; then invert the
    cumulative distribution of the candidates, ranked by (logit descending, id ascending), at the
    row's keyed uniform number.
    """
    if np.isnan(logits).any() or logits.max() == np.inf:
        return SampledToken(max(draw.target, 0), is_nan=True)
    if draw.target >= 0:
        drawn = SampledToken(draw.target)
    else:
        x = _adjusted(logits, draw)
        if not x.max() > -np.inf:
            return SampledToken(0, is_blocked=True)
        drawn = SampledToken(_draw(x, draw))
        if draw.wants_probs:
            drawn.probs = _probs(x, draw)
    if draw.num_logprobs >= 0:
        _report(logits, draw.num_logprobs, drawn)
    return drawn


def keyed_uniform(seed: int, choice: int, position: int, purpose: int = 0) -> float:
    """A uniform number in [0, 1): SplitMix64's finalizer (Steele et al. 2014) over each word of the
    key in turn.
    """
    bits = seed & _MASK
    for word in (0, choice & 0xFFFFFFFF, position & _MASK, purpose):
        bits = _mix(bits ^ word)
    return (bits >> 11) * 2.0**-53


def _mix(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def _adjusted(logits: F32, draw: Draw) -> F32:
    x = logits.copy()
    size = len(x)
    if draw.mask is not None:
        allowed = np.unpackbits(draw.mask.view(np.uint8), bitorder="little")[:size]
        x[allowed == 0] = -np.inf
    if draw.allowed_ids is not None:
        others = np.ones(size, bool)
        others[_known(draw.allowed_ids, size)] = False
        x[others] = -np.inf
    x[_known(draw.banned_ids, size)] = -np.inf
    if draw.bias_ids is not None and draw.bias_values is not None:
        known = (draw.bias_ids >= 0) & (draw.bias_ids < size)
        x[draw.bias_ids[known]] += draw.bias_values[known]
    output, prompt = _known(draw.output_ids, size), _known(draw.prompt_ids, size)
    if draw.repetition != 1.0:
        seen = np.union1d(prompt, output)
        r = np.float32(draw.repetition)
        x[seen] = np.where(x[seen] > 0, x[seen] / r, x[seen] * r)
    if draw.presence != 0.0 or draw.frequency != 0.0:
        ids, counts = np.unique(output, return_counts=True)
        x[ids] -= np.float32(draw.presence) + np.float32(draw.frequency) * counts.astype(np.float32)
    return x


def _known(ids: I32 | None, size: int) -> I32:
    """The ids that name a logit; others are passed over."""
    if ids is None:
        return np.zeros(0, np.int32)
    return ids[(ids >= 0) & (ids < size)]


def _draw(x: F32, draw: Draw) -> int:
    if draw.temperature < 1e-5:
        return int(x.argmax())
    order, reached = _candidates(x, draw)
    goal = keyed_uniform(draw.seed, draw.choice, draw.position) * reached[-1]
    return int(order[min(int(np.searchsorted(reached, goal, side="right")), len(order) - 1)])


def _candidates(x: F32, draw: Draw) -> tuple[I32, NDArray[np.float64]]:
    """The tokens that temperature, min_p, top_k and top_p leave, best first, and the running sum of
    their weights.
    """
    reach = min(87.0, -math.log(draw.min_p)) if draw.min_p > 0 else 87.0
    order = np.argsort(-x, kind="stable").astype(np.int32)
    order = order[x[order] >= x[order[0]] - np.float32(reach) * np.float32(draw.temperature)]
    if draw.top_k > 0:
        order = order[: draw.top_k]
    weights = np.exp((x[order] - x[order[0]]).astype(np.float64) / draw.temperature)
    reached = np.cumsum(weights)
    nucleus = len(order)
    if draw.top_p < 1.0:
        nucleus = int(np.searchsorted(reached, float(np.float32(draw.top_p)) * reached[-1])) + 1
    return order[:nucleus], reached[:nucleus]


def _probs(x: F32, draw: Draw) -> F32:
    """What `_draw` draws from."""
    probs = np.zeros(len(x), np.float32)
    if draw.temperature < 1e-5:
        probs[x.argmax()] = 1
        return probs
    order, reached = _candidates(x, draw)
    probs[order] = np.diff(reached, prepend=0.0) / reached[-1]
    return probs


def _report(logits: F32, count: int, drawn: SampledToken) -> None:
    shifted = (logits - logits.max()).astype(np.float64)
    logprobs = shifted - math.log(np.exp(shifted).sum())
    order = np.argsort(-logits, kind="stable")
    drawn.logprob = float(logprobs[drawn.token_id])
    drawn.rank = int(np.flatnonzero(order == drawn.token_id)[0]) + 1
    top = order[:count]
    drawn.top = tuple(zip(top.tolist(), logprobs[top].tolist(), strict=True))
