"""Which drafts hold. Pure functions over token ids, probabilities and uniform numbers.

Terms: a draft is *accepted* where the target's token at its position is the draft itself; the token
that takes the place of the first draft that is not accepted is *recovered*; the token after a run
that was accepted to its end is the *bonus*. So a run of k drafts gives 1 to k + 1 tokens.

*Coupled*: the target draws each position as if there had been no draft, from its own keyed random
number, and a draft is accepted where it equals that draw. The tokens are then, bit for bit, those
of decoding without drafts, whatever the proposer.

*Rejection* (Leviathan et al. 2023, arXiv 2211.17192; Chen et al. 2023, arXiv 2302.01318): a draft x
drawn from q is accepted with probability min(1, p(x) / q(x)), else recovered from the residual
max(0, p - q), normalised. The tokens then follow p, the target's distribution, whatever q is, as
long as x does not depend on the two uniform numbers. Of a draft that a proposer is certain of, q(x)
is 1; and since any draft may be looked at that way, q may always be left out, for a lower
acceptance.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Probs = NDArray[np.float32] | NDArray[np.float64]  # [vocab], summing to 1


def num_confirmed(drawn: Sequence[int], drafts: Sequence[int]) -> int:
    """How many of the tokens drawn at a run's positions stand: those up to and including the first
    that is not the draft there. `drawn` is one longer than `drafts`, or ends earlier.
    """
    for index, (token, draft) in enumerate(zip(drawn, drafts, strict=False)):
        if token != draft:
            return index + 1
    return len(drawn)


def accept_or_recover(draft: int, p: Probs, q: Probs | None, accept: float, recover: float) -> int:
    """The token at a draft's position by rejection sampling: the draft, or what is recovered.

    p: what the target draws from; q: what the draft was drawn from, None where it was certain;
    `accept`, `recover`: uniform numbers in [0, 1) that the draft does not depend on.
    """
    chance = 1.0 if q is None else float(q[draft])
    if accept * chance < float(p[draft]):
        return draft
    return draw_from(residual(draft, p, q), recover)


def residual(draft: int, p: Probs, q: Probs | None) -> NDArray[np.float64]:
    """max(0, p - q), not normalised: what the target wants beyond what was proposed."""
    left: NDArray[np.float64] = p.astype(np.float64)
    if q is None:
        left[draft] = 0.0
    else:
        np.maximum(left - q, 0.0, out=left)
    return left


def draw_from(weights: NDArray[np.float64], uniform: float) -> int:
    """The token at `uniform` of the cumulative weights, in the order of ids; one of weight zero
    never comes up. Weights that are all zero give the first token: they are a rejection that
    rounding alone has brought about.
    """
    reached = np.cumsum(weights)
    goal = uniform * reached[-1]
    found = int(np.searchsorted(reached, goal, side="right"))
    last = int(np.searchsorted(reached, reached[-1]))  # the last that adds anything
    return min(found, last)
