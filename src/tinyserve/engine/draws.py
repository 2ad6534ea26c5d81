"""The rows to draw or read after a step, and what each token does to its sequence.

Owns everything that a draw depends on besides its logits, so that it is the same whatever shares
the batch and however often the sequence was preempted: the absolute position, seed and choice that
key its random number, the tokens before it, and the tokens banned for it. Owns the rules that end a
choice, one code path for one token a step or several.
"""

from __future__ import annotations

from typing import NamedTuple

from tinyserve.engine.request import FinishReason
from tinyserve.engine.sampling import SampleRow
from tinyserve.engine.sequence import Job, Sequence
from tinyserve.engine.work import Work


def add_rows(rows: list[SampleRow], work: Work, first_row: int) -> None:
    """Append the rows of one chunk: those its prompt's reader wants, then the tokens to draw.

    `first_row` is where the chunk's logits begin among the step's. A prompt that is complete draws
    the first token of every choice from its one last row.
    """
    chunk, seq = work.chunk, work.seq
    job = seq.job
    end = chunk.start + len(chunk.token_ids)
    to_row = first_row + chunk.num_logits - end  # position + to_row is the row after that position
    if job.reader is not None:
        for position in read_positions(work):
            rows.append(job.reader.row(position, position + to_row))
    if end - len(work.drafts) < len(seq.token_ids) or job.max_len == len(job.prompt_ids):
        return
    if not job.has_forked:
        for choice in job.sequences:
            rows.append(_draw_row(choice, [], end - 1 + to_row))
        return
    first_row = end - 1 - len(work.drafts) + to_row
    rows.append(_draw_row(seq, [], first_row))
    for count in range(1, len(work.drafts) + 1):  # as if the drafts before it were right
        rows.append(_draw_row(seq, work.drafts[:count], first_row + count))


def read_positions(work: Work) -> range:
    """The positions of this chunk whose rows the prompt's reader wants."""
    wanted = work.seq.job.wanted_positions
    end = work.chunk.start + len(work.chunk.token_ids)
    return range(wanted.start, min(end, wanted.stop))


def _draw_row(seq: Sequence, drafts: list[int], row: int) -> SampleRow:
    job = seq.job
    params = job.request.params
    output_ids = [*seq.output_ids, *drafts] if drafts else seq.output_ids
    return SampleRow(
        row=row,
        params=params,
        seed=job.seed,
        choice=seq.choice,
        position=len(seq.token_ids) + len(drafts),
        prompt_ids=job.prompt_ids,
        output_ids=output_ids,
        banned_ids=_banned_ids(job, output_ids) if job.has_bans else (),
        num_logprobs=params.logprobs,
    )


def _banned_ids(job: Job, output_ids: list[int]) -> tuple[int, ...]:
    """What may not be drawn after `output_ids`: an early end, and the last token of a bad word."""
    banned = job.min_banned if len(output_ids) < job.params.min_tokens else ()
    for word in job.request.bad_words_ids:
        prefix = len(word) - 1
        if prefix == 0 or (prefix > 0 and tuple(output_ids[-prefix:]) == word[:-1]):
            banned = (*banned, word[-1])
    return banned


class Effect(NamedTuple):
    """What taking one token did: the text that became visible, and whether the choice ends."""

    text: str
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None


def take_token(seq: Sequence, token_id: int) -> Effect:
    """Append a drawn token. Ends at a stop id, else at a stop string, else at the length limit.

    A stop id stays in the ids; its text is shown only under include_stop_str_in_output.
    """
    job, text = seq.job, seq.text
    seq.append(token_id)
    if token_id in job.stop_ids:
        reason = None if token_id in job.eos_ids else token_id
        shown = ""
        if text is not None:
            if job.params.include_stop_str_in_output:
                shown = text.push(token_id, False)
            shown += text.flush()
        return Effect(shown, "stop", reason)
    shown = ""
    if text is not None:
        shown = text.push(token_id, len(seq.output_ids) > job.params.min_tokens)
        if text.stop_hit is not None:
            return Effect(shown, "stop", text.stop_hit)
    if len(seq.token_ids) >= job.max_len:
        return Effect(shown + (text.flush() if text is not None else ""), "length")
    return Effect(shown)
