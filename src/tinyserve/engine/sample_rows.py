"""The rows to draw or read after a step.

Owns everything that a draw depends on besides its logits, so that it is the same whatever shares
the batch and however often the sequence was preempted: the absolute position, seed and choice that
key its random number, the tokens before it, the grammar's mask, and the tokens banned for it. What
becomes of the tokens that are drawn is `engine/commit.py`'s.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tinyserve.engine.job import Job
from tinyserve.engine.plan import Chunk
from tinyserve.engine.sampling import SampleRow
from tinyserve.engine.sequence import Sequence
from tinyserve.engine.step import Step
from tinyserve.errors import RequestError
from tinyserve.spec.proposer import NO_DRAFT, Draft

Mask = NDArray[np.uint32]


def rows_of(step: Step) -> tuple[list[SampleRow], list[int]]:
    """The rows to draw or score, and for each chunk where its rows end."""
    rows: list[SampleRow] = []
    ends: list[int] = []
    first_row = 0
    for seq, chunk in zip(step.seqs, step.plan.chunks, strict=True):
        row = seq.row
        if row is not None and chunk.num_logits == 1:  # nothing but tokens has come since the last
            row.row = first_row
            row.position = len(seq.token_ids)
            rows.append(row)
            first_row += 1
        elif chunk.num_logits:
            _add_rows(rows, seq, chunk, step.drafts.get(seq.seq_id, NO_DRAFT), first_row)
            first_row += chunk.num_logits
        ends.append(len(rows))
    return rows, ends


def _add_rows(
    rows: list[SampleRow], seq: Sequence, chunk: Chunk, draft: Draft, first_row: int
) -> None:
    """Append the rows of one chunk: those its prompt's reader wants, then the tokens to draw.

    `first_row` is where the chunk's logits begin among the step's. A prompt that is complete draws
    the first token of every choice from its one last row.
    """
    job, drafts = seq.job, draft.token_ids
    end = chunk.start + len(chunk.token_ids)
    to_row = first_row + chunk.num_logits - end  # position + to_row is the row after that position
    if job.reader is not None:
        for position in read_positions(seq, chunk):
            rows.append(job.reader.row(position, position + to_row))
    if chunk.end < len(seq.token_ids) or job.max_len == len(job.prompt_ids):
        return
    if not job.has_forked:
        for choice in job.sequences:
            rows += _next_rows(choice, [], end - 1 + to_row)
        return
    if not drafts and seq.grammar is None and not job.may_ban:
        seq.row = next_row(seq, [], end - 1 + to_row)
        rows.append(seq.row)
        return
    drawn = _next_rows(seq, drafts, end - 1 - len(drafts) + to_row)
    for row, token_id in zip(drawn, drafts, strict=False):  # the last row has none
        row.draft = token_id
    for row, probs in zip(drawn, draft.probs, strict=False):
        row.draft_probs = probs
    rows += drawn


def read_positions(seq: Sequence, chunk: Chunk) -> range:
    """The positions of this chunk whose rows the prompt's reader wants."""
    wanted = seq.job.wanted_positions
    return range(wanted.start, min(chunk.start + len(chunk.token_ids), wanted.stop))


def _next_rows(seq: Sequence, drafts: list[int], first_row: int) -> list[SampleRow]:
    """The row of the next token, and one after each draft as if those before it were right.

    None after a draft that the grammar rules out: it will not be drawn. A grammar that cannot go on
    is the job's fault, and nothing is drawn.
    """
    if seq.grammar is None:
        counts = range(len(drafts) + 1)
        return [next_row(seq, drafts[:count], first_row + count) for count in counts]
    try:
        masks = seq.grammar.masks(drafts)
    except RequestError as error:
        seq.job.fault = error
        return []
    return [
        next_row(seq, drafts[:count], first_row + count, mask) for count, mask in enumerate(masks)
    ]


def next_row(seq: Sequence, drafts: list[int], row: int, mask: Mask | None = None) -> SampleRow:
    """The row of the token after the sequence's tokens and `drafts`."""
    job = seq.job
    params = job.params
    return SampleRow(
        row=row,
        params=params,
        seed=job.seed,
        choice=seq.choice,
        position=len(seq.token_ids) + len(drafts),
        prompt_ids=job.prompt_ids,
        output_ids=seq.output_ids,
        drafted_ids=drafts,
        banned_ids=_banned_ids(seq, drafts, mask) if job.may_ban else (),
        mask=mask,
        num_logprobs=params.logprobs,
    )


def _banned_ids(seq: Sequence, drafts: list[int], mask: Mask | None) -> tuple[int, ...]:
    """What may not be drawn after the output and `drafts`: an early end, and the last token of a
    bad word.

    An early end may be, where the grammar lets nothing else follow.
    """
    job, output_ids = seq.job, seq.output_ids
    banned = _early_ends(job, len(output_ids) + len(drafts))
    if banned and mask is not None and not _has_other(mask, banned):
        banned = ()
    for word in job.request.bad_words_ids:
        prefix = len(word) - 1
        if prefix == 0 or (prefix > 0 and (*output_ids[-prefix:], *drafts)[-prefix:] == word[:-1]):
            banned = (*banned, word[-1])
    return banned


def _early_ends(job: Job, num_outputs: int) -> tuple[int, ...]:
    """What would end a choice too early: all that stops it under min_tokens, EOS under ignore_eos.

    Without a grammar, ignore_eos leaves EOS an ordinary token instead, which ends nothing.
    """
    if num_outputs < job.params.min_tokens:
        return job.min_banned
    return tuple(job.eos_ids) if job.params.ignore_eos else ()


def _has_other(mask: Mask, ids: tuple[int, ...]) -> bool:
    """Whether `mask` allows any token besides `ids`."""
    rest = mask.copy()
    for token_id in ids:
        if token_id // 32 >= len(rest):  # an EOS that the model's logits do not have
            continue
        rest[token_id // 32] &= np.uint32(~(1 << token_id % 32) & 0xFFFFFFFF)
    return bool(rest.any())
