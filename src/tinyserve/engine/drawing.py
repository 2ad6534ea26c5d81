"""Drawing a step's tokens: as they come, or settled by rejection sampling where drafts were made.

Both give each row one token, and drafts are accepted where they equal it, so that the engine takes
tokens in one way only. Rejection needs the distribution behind each draw; greedy rows have none
and are drawn as ever, bit for bit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from tinyserve.engine.plan import Logits
from tinyserve.engine.sampling import SampledToken, SampleRow
from tinyserve.kernels.reference_sampling import keyed_uniform
from tinyserve.spec.verify import accept_or_recover

DrawRows = Callable[[Logits, list[SampleRow]], list[SampledToken]]

ACCEPT, RECOVER = 1, 2  # purposes of uniform numbers; 0 is the draw itself


def draw_coupled(logits: Logits, rows: list[SampleRow]) -> list[SampledToken]:
    """Draw each row by its own keyed random number, as if there were no drafts."""
    return logits.sample(rows)


def draw_by_rejection(logits: Logits, rows: list[SampleRow]) -> list[SampledToken]:
    """Rows with a draft by rejection sampling, the others by their own keyed draw."""
    drafted = [i for i, row in enumerate(rows) if row.draft is not None and not _is_certain(row)]
    for i in drafted:
        rows[i].wants_probs = True
    sampled = logits.sample(rows)
    replaced: list[int] = []
    for i in drafted:
        if sampled[i].is_nan or sampled[i].is_blocked:
            continue  # there is no distribution: the request ends here
        token = _verified(rows[i], sampled[i])
        if token != sampled[i].token_id:
            sampled[i] = SampledToken(token)
            replaced.append(i)
        sampled[i].probs = None
    reported = [i for i in replaced if rows[i].num_logprobs is not None]
    scores = [dataclasses.replace(rows[i], target=sampled[i].token_id) for i in reported]
    for i, score in zip(reported, logits.sample(scores) if scores else (), strict=True):
        sampled[i] = score
    return sampled


def _is_certain(row: SampleRow) -> bool:
    return row.params.is_greedy or row.target is not None


def _verified(row: SampleRow, drawn: SampledToken) -> int:
    """The token at a drafted row: the draft, or what is recovered in its place."""
    assert row.draft is not None
    assert drawn.probs is not None
    accept, recover = (
        keyed_uniform(row.seed, row.choice, row.position, purpose) for purpose in (ACCEPT, RECOVER)
    )
    return accept_or_recover(row.draft, drawn.probs, row.draft_probs, accept, recover)
