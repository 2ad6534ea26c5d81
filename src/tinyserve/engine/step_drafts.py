"""The drafts of one step: which decodes may have some, how many, and what of them may stand."""

from __future__ import annotations

from collections.abc import Sequence as Sequences

from tinyserve.engine.sequence import Sequence
from tinyserve.kv.manager import KVManager
from tinyserve.spec.drafter import Drafter
from tinyserve.spec.proposer import Draft


def step_drafts(
    drafter: Drafter, running: Sequences[Sequence], budget: int, kv: KVManager
) -> dict[int, Draft]:
    """Drafts for the decodes among `running`, none empty, by sequence id; within every limit, and
    within a `budget` of tokens for all rows of the step.
    """
    spare = budget - len(running) - 1  # the decodes and the oldest come first
    if spare <= 0:
        return {}
    decodes = [seq for seq in running if len(seq.token_ids) - seq.num_computed == 1]
    most = drafter.max_drafts
    is_tight = kv.num_available < len(running) * (1 + kv.blocks_for(most))
    wanted = _wanted(decodes, min(most, spare), kv.block_size if is_tight else None)
    drafts: dict[int, Draft] = {}
    for index, draft in drafter.propose(wanted, len(decodes)):
        seq = wanted[index][0]
        del draft.token_ids[spare:], draft.probs[spare:]
        if seq.grammar is not None and draft.token_ids:
            valid = seq.grammar.count_valid(draft.token_ids)
            del draft.token_ids[valid:], draft.probs[valid:]
        if draft.token_ids:
            spare -= len(draft.token_ids)
            drafts[seq.seq_id] = draft
    return drafts


def _wanted(
    decodes: Sequences[Sequence], most: int, block_size: int | None
) -> list[tuple[Sequence, int]]:
    """How many drafts each decode may have at most; those that may have none are left out.

    `block_size` is given where blocks are short: then only as many as the sequence's last block
    still has room for, since no other is to be preempted for the sake of a guess.
    """
    wanted = []
    for seq in decodes:
        if not seq.output_ids or not seq.job.request.speculative:
            continue
        num_known = len(seq.token_ids)
        room = min(most, seq.job.max_len - num_known - 1)
        if block_size is not None:
            room = min(room, -num_known % block_size)
        if room > 0:
            wanted.append((seq, room))
    return wanted
