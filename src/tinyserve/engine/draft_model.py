"""Drafts from a second, smaller model that reads what the served one reads.

Owns a runner of its own and a shadow of each sequence in a paged KV-cache of its own, with prefix
reuse: the tokens whose keys and values it holds, some of them drafts. When a sequence comes back,
its shadow is rolled back to the longest common prefix: what was drafted and accepted stays, the
rest is overwritten. Sequences draft together: the k tokens of a step take k runs of the small model
over all of them.

    known   |-----------------|a b|            a accepted, b drawn by the target instead of x
    shadow  |-----------------|a x y|          rolled back to |-----------------|a|
    next chunk                    b            then one row for each further draft

Each draft is drawn with the request's own parameters and keyed random numbers: greedy for greedy
requests, and otherwise with the same noise as the target's draw at that position, so that two
models that agree about a distribution agree about the token.

It stands in `engine/`, not in `spec/`: it plans steps and draws rows as the engine does. A sequence
with ids that this model does not have, or longer than its context, gets no drafts.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from collections.abc import Sequence as Sequences
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinyserve.engine.plan import Chunk, Logits, Runner, StepPlan
from tinyserve.engine.sample_rows import next_row
from tinyserve.engine.sampling import SampledToken, SampleRow
from tinyserve.engine.sequence import Sequence
from tinyserve.errors import RequestError
from tinyserve.kv.block_table import BlockTable
from tinyserve.kv.manager import KVManager
from tinyserve.spec.proposer import Draft

AT_ONCE = 16  # tokens; a shadow further behind catches up in a step of its own, without drafts


@dataclass(slots=True)
class Shadow:
    """What the draft model holds of one sequence: its first `num_known` tokens, then `fed`."""

    table: BlockTable
    num_known: int = 0
    fed: list[int] = field(default_factory=list)

    def roll_back(self, token_ids: list[int]) -> int:
        """Drop drafts that were not accepted; returns the number of tokens that are kept. The last
        known token is computed again if need be: the next draft is drawn from its row.
        """
        known = self.num_known
        for fed, token_id in zip(self.fed, token_ids[known:], strict=False):
            if fed != token_id:
                break
            known += 1
        self.fed = []
        self.num_known = min(known, len(token_ids) - 1)
        return self.num_known


@dataclass(slots=True)
class _Member:
    """One of the sequences that draft together in this step."""

    seq: Sequence
    shadow: Shadow
    most: int
    draft: Draft


@dataclass(frozen=True)
class DraftLimits:
    """Sizes between which a draft model works."""

    vocab_size: int  # the draft model's: as many ids as it has logits
    logits_size: int  # the target's
    max_len: int  # the draft model's context
    max_tokens: int  # of one run while shadows catch up


class DraftModelProposer:
    """Proposes what a second model says. `wants_probs`: report what its tokens were drawn from."""

    def __init__(
        self,
        runner: Runner,
        kv: KVManager,
        limits: DraftLimits,
        max_drafts: int,
        *,
        wants_probs: bool = False,
    ) -> None:
        self.max_drafts = max_drafts
        self.runner = runner
        self._kv = kv
        self.limits = limits
        self._wants_probs = wants_probs
        self._shadows: OrderedDict[int, Shadow] = OrderedDict()  # least recently used first

    def propose(self, wanted: Sequences[tuple[Sequence, int]]) -> list[Draft]:
        drafts = [Draft() for _ in wanted]
        busy = {seq.seq_id for seq, _ in wanted}
        members: list[_Member] = []
        late: list[tuple[Sequence, Shadow]] = []
        for (seq, most), draft in zip(wanted, drafts, strict=True):
            most = min(most, self.limits.max_len - len(seq.token_ids))
            if most <= 0 or not self._knows(seq):
                continue
            shadow = self._shadow(seq, most, busy)
            if shadow is None:
                continue
            if len(seq.token_ids) - shadow.num_known > AT_ONCE:
                late.append((seq, shadow))
            else:
                members.append(_Member(seq, shadow, most, draft))
        if late:
            self._catch_up(late)
        if members:
            self._draft(members)
        return drafts

    def forget(self, seq: Sequence) -> None:
        shadow = self._shadows.pop(seq.seq_id, None)
        if shadow is not None:
            self._kv.free(shadow.table)

    def memory_report(self) -> dict[str, Any]:
        """Bytes by item, as `Runner.memory_report`, each under "draft_"."""
        num_bytes = self._kv.bookkeeping_bytes()
        report = {f"draft_{name}": item for name, item in self.runner.memory_report().items()}
        report.pop("draft_process", None)
        report["draft_kv_bookkeeping"] = {"reserved": num_bytes, "touched": num_bytes}
        return report

    def check(self) -> None:
        """Raise AssertionError unless the bookkeeping of the shadow cache holds."""
        self._kv.check()

    def _knows(self, seq: Sequence) -> bool:
        """Whether every id that the sequence and its request name is one of this model's."""
        size = self.limits.vocab_size
        if size >= self.limits.logits_size:
            return True
        job, params = seq.job, seq.job.params
        named: list[Iterable[int]] = [seq.token_ids, params.logit_bias, job.stop_ids]
        named += [params.allowed_token_ids or (), *job.request.bad_words_ids]
        return all(max(ids, default=0) < size for ids in named)

    def _shadow(self, seq: Sequence, most: int, busy: set[int]) -> Shadow | None:
        """The sequence's shadow, rolled back, with room for `most` drafts; None where the cache is
        too small. Gives up shadows of others that do not draft in this step.
        """
        tokens = seq.token_ids
        shadow = self._shadows.get(seq.seq_id)
        while shadow is None:
            table = BlockTable(seq.table.salt)
            num_known = self._kv.open(table, tokens)
            if num_known is not None:
                shadow = self._shadows[seq.seq_id] = Shadow(table, num_known)
            elif not self._evict(busy):
                return None
        self._shadows.move_to_end(seq.seq_id)
        start = shadow.roll_back(tokens)
        while not self._kv.grow(shadow.table, start, len(tokens) + most - 1):
            if not self._evict(busy):
                return None
        return shadow

    def _evict(self, busy: set[int]) -> bool:
        """Drop the least recently used shadow that this step does not need, if there is one."""
        victim = next((seq_id for seq_id in self._shadows if seq_id not in busy), None)
        if victim is None:
            return False
        self._kv.free(self._shadows.pop(victim).table)
        return True

    def _catch_up(self, late: list[tuple[Sequence, Shadow]]) -> None:
        """Compute known tokens of shadows that are far behind, as many as one run may hold."""
        left = self.limits.max_tokens
        chunks, ends = [], []
        for seq, shadow in late:
            begin = shadow.num_known
            end = min(len(seq.token_ids) - 1, begin + left)
            left -= end - begin
            ends.append(end)
            if end > begin:
                chunks.append(self._chunk(seq.seq_id, shadow, seq.token_ids[begin:end]))
        self._run(chunks)
        for (seq, shadow), end in zip(late, ends, strict=True):
            self._computed(seq, shadow, end)

    def _draft(self, members: list[_Member]) -> None:
        """Draft for all of them together, token by token, until each has what it may have."""
        chunks = []
        for member in members:
            shadow, tokens = member.shadow, member.seq.token_ids
            chunks.append(self._chunk(member.seq.seq_id, shadow, tokens[shadow.num_known :], 1))
        logits = self._run(chunks)
        for member in members:
            self._computed(member.seq, member.shadow, len(member.seq.token_ids))
        while True:
            members = self._draw(logits, members)
            if not members:
                return
            chunks = []
            for member in members:
                last = member.draft.token_ids[-1]
                chunks.append(self._chunk(member.seq.seq_id, member.shadow, [last], 1))
                member.shadow.fed.append(last)
            logits = self._run(chunks)

    def _draw(self, logits: Logits, members: list[_Member]) -> list[_Member]:
        """Draw one more token for each; returns those that go on."""
        rows, drawing = [], []
        for index, member in enumerate(members):
            row = self._row(member, index)
            if row is not None:
                rows.append(row)
                drawing.append(member)
        going = []
        for member, token in zip(drawing, logits.sample(rows) if rows else [], strict=True):
            if token.is_nan or token.is_blocked:
                continue
            member.draft.token_ids.append(token.token_id)
            if self._wants_probs:
                member.draft.probs.append(self._probs(token))
            if len(member.draft.token_ids) < member.most:
                going.append(member)
        return going

    def _row(self, member: _Member, index: int) -> SampleRow | None:
        """The row of the member's next draft; None where the grammar lets nothing follow."""
        seq, drafts = member.seq, member.draft.token_ids
        mask = None
        if seq.grammar is not None:
            try:
                masks = seq.grammar.masks(drafts)
            except RequestError:
                return None  # the target's own row will say so
            if len(masks) <= len(drafts):
                return None
            mask = masks[-1] if len(masks[-1]) * 32 >= self.limits.vocab_size else None
        row = next_row(seq, drafts, index, mask)
        row.num_logprobs = None
        row.wants_probs = self._wants_probs
        return row

    def _probs(self, token: SampledToken) -> NDArray[np.float32]:
        """What the token was drawn from, as wide as the target's logits."""
        assert token.probs is not None
        probs = token.probs[: self.limits.logits_size]
        return np.pad(probs, (0, self.limits.logits_size - len(probs)))

    def _chunk(
        self, seq_id: int, shadow: Shadow, token_ids: list[int], num_logits: int = 0
    ) -> Chunk:
        start = shadow.num_known + len(shadow.fed)
        block_ids = shadow.table.ids(self._kv.blocks_for(start + len(token_ids)))
        return Chunk(seq_id, start, tuple(token_ids), block_ids, num_logits)

    def _run(self, chunks: list[Chunk]) -> Logits:
        swap_out, swap_in, copies = self._kv.take_transfers()
        return self.runner.run(StepPlan(tuple(chunks), swap_out, swap_in, copies))

    def _computed(self, seq: Sequence, shadow: Shadow, num_known: int) -> None:
        """The KV of so many known tokens is written. The last one's block stays unpublished: it is
        written again where the sequence comes back without having grown.
        """
        shadow.num_known = num_known
        self._kv.publish(shadow.table, seq.token_ids, min(num_known, len(seq.token_ids) - 1))
