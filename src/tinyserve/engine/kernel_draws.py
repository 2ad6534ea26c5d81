"""From `SampleRow`, the engine's view of a draw, to `Draw`, the kernels': names to numbers, lists
to arrays.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tinyserve.engine.sampling import SampleRow, SamplingParams
from tinyserve.kernels.ops import I32, Draw


def draws_of(rows: Sequence[SampleRow], first: int, vocab_size: int) -> list[Draw]:
    """The kernel's arguments for `rows`, whose logits begin at row `first` of the step's.

    What was made for a row stays with it, so that one that comes again costs next to nothing.
    """
    draws = []
    for row in rows:
        draw = row.prepared
        if draw is None:
            draw = row.prepared = draw_of(row, row.row - first, vocab_size)
        else:
            draw.row = row.row - first
            draw.position = row.position
            if draw.output_ids is not None:
                draw.output_ids = extended(draw.output_ids, _outputs_of(row))
        draws.append(draw)
    return draws


def draw_of(row: SampleRow, logits_row: int, vocab_size: int) -> Draw:
    """The kernel's arguments for one row; `logits_row` indexes the logits handed to the kernel,
    which are `vocab_size` wide.
    """
    p = row.params
    draw = Draw(logits_row, row.seed, row.choice, row.position)
    if row.num_logprobs is not None:
        draw.num_logprobs = row.num_logprobs
    if row.target is not None:
        draw.target = row.target
        return draw
    if not p.is_greedy:
        draw.temperature, draw.min_p = p.temperature, p.min_p
        draw.top_k, draw.top_p = p.top_k, p.top_p
    if row.banned_ids:
        draw.banned_ids = _ids(row.banned_ids)
    if row.mask is not None:
        draw.mask = _as_wide(row.mask, vocab_size)
    draw.wants_probs = row.wants_probs
    if p.allowed_token_ids is not None:
        draw.allowed_ids = _ids(p.allowed_token_ids)
    if p.logit_bias:
        draw.bias_ids = _ids(list(p.logit_bias))
        draw.bias_values = np.array(list(p.logit_bias.values()), np.float32)
    _add_penalties(draw, p, row)
    return draw


def _add_penalties(draw: Draw, p: SamplingParams, row: SampleRow) -> None:
    if p.presence_penalty == 0 and p.frequency_penalty == 0 and p.repetition_penalty == 1:
        return
    draw.presence, draw.frequency = p.presence_penalty, p.frequency_penalty
    draw.repetition = p.repetition_penalty
    draw.output_ids = _ids(_outputs_of(row))
    if p.repetition_penalty != 1:
        draw.prompt_ids = _ids(row.prompt_ids)


def _outputs_of(row: SampleRow) -> Sequence[int]:
    return [*row.output_ids, *row.drafted_ids] if row.drafted_ids else row.output_ids


def _as_wide(mask: NDArray[np.uint32], vocab_size: int) -> NDArray[np.uint32]:
    """The mask with a bit for every token: kernels read them all. What it lacks is not allowed."""
    missing = -(-vocab_size // 32) - len(mask)
    return np.pad(mask, (0, missing)) if missing > 0 else mask


def extended(known: I32, ids: Sequence[int]) -> I32:
    """`ids` as an array. `known`, their beginning, is extended in its own memory, which doubles."""
    begin, end = len(known), len(ids)
    memory = known if known.base is None else known.base
    if end > len(memory):
        memory = np.empty(max(16, 2 * end), np.int32)
        memory[:begin] = known
    memory[begin:end] = ids[begin:]
    return memory[:end]


def _ids(ids: Sequence[int]) -> I32:
    return np.array(ids, np.int32)
