"""Which tokens of which sequences the next step computes.

Owns the running and the preempted sequences, the token budget, and every decision to admit or
preempt. Knows counts and blocks, not models, sampling or text; who is admitted next is the policy's
word. `schedule` decides, in this order:

    1. new sequences that take the place of running ones (only the priority policy has any)
    2. running sequences one token short of done (decodes), oldest first. Out of blocks: preempt the
       youngest that this step has not planned. The oldest always advances.
    3. running prompts, then preempted sequences, oldest first, then new ones, in chunks, while
       budget, seats and free blocks last. Beside decodes, all of these together get no more than
       `chunked_prefill_size` tokens: that is what streams wait for between two of theirs.

Oldest means first in (priority, arrival, creation). A sequence gets blocks for all its known tokens
when it is admitted, so a prompt, once begun, never stalls half-way for want of blocks.

Invariants: what a step has planned or swaps in is not preempted by it; new sequences are not
admitted in a step that ran out of blocks, nor while a preempted one of their priority waits.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from operator import attrgetter

from tinyserve.config import SchedulerConfig
from tinyserve.engine.plan import Chunk, StepPlan
from tinyserve.engine.policies import make_policy
from tinyserve.engine.sequence import Sequence, Status
from tinyserve.engine.step import Step
from tinyserve.engine.step_drafts import step_drafts
from tinyserve.kv.manager import KVManager
from tinyserve.spec.drafter import Drafter
from tinyserve.spec.proposer import NO_DRAFT, Draft

_order = attrgetter("order")
MIN_SHARE = 16  # tokens; a chunk smaller than this is not worth a prompt's turn


@dataclass(slots=True)
class SchedulerCounters:
    """What has happened since the start."""

    scheduled_tokens: int = 0
    preemptions_swap: int = 0
    preemptions_recompute: int = 0
    prefix_query_tokens: int = 0
    prefix_hit_tokens: int = 0
    recomputed_tokens: int = 0
    drafts: int = 0
    draft_tokens: int = 0


class Scheduler:
    """Plans steps over sequences; `add`, `remove`, `fork`, `schedule`."""

    def __init__(
        self, config: SchedulerConfig, kv: KVManager, *, drafter: Drafter | None = None
    ) -> None:
        self._config = config
        self._kv = kv
        self._policy = make_policy(config.policy, config.max_num_seqs)
        self._drafter = drafter
        self._running: list[Sequence] = []  # oldest first
        self._preempted: list[Sequence] = []  # oldest first: swapped out, or dropped
        self._watermark = max(1, kv.num_blocks // 100)
        self._step = 0  # marks what this step has planned or swaps in
        self._budget = 0  # tokens left in this step
        self._ran_out = False  # this step has preempted
        self._seqs: list[Sequence] = []  # planned for this step, with their chunks
        self._chunks: list[Chunk] = []
        self._drafts: dict[int, Draft] = {}  # per sequence id
        self.counters = SchedulerCounters()

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_swapped(self) -> int:
        return sum(1 for seq in self._preempted if seq.status is Status.SWAPPED)

    @property
    def num_waiting(self) -> int:
        return len(self._policy) + len(self._preempted) - self.num_swapped

    def has_work(self) -> bool:
        return bool(self._running or self._preempted or len(self._policy))

    def add(self, seq: Sequence) -> None:
        """Let a new sequence wait for its admission."""
        self._policy.add(seq)

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Start `child` from what `parent` has computed; without a free seat it waits."""
        if self._has_seat() and self._policy.may_fork():
            child.table = self._kv.fork(parent.table, parent.num_computed)
            child.num_computed = child.num_charged = parent.num_computed
            child.was_admitted = True
            self._policy.admitted(child)
            self._start(child)
        else:
            self._policy.add(child)

    def remove(self, seq: Sequence) -> None:
        """Forget a sequence in whatever state and free what it holds. Idempotent."""
        if seq.status is Status.RUNNING:
            _delete(self._running, seq)
        elif seq.was_admitted and seq.status is not Status.FINISHED:
            _delete(self._preempted, seq)
        else:
            self._policy.remove(seq)
        seq.status = Status.FINISHED
        self._kv.free(seq.table)
        if self._drafter is not None:
            self._drafter.forget(seq)

    def schedule(self) -> Step:
        """Decide one step. Raises RuntimeError where there is work but nothing can be planned."""
        self._step += 1
        self._budget = self._config.max_num_batched_tokens
        self._ran_out = False
        self._seqs, self._chunks, self._drafts = [], [], {}
        self._policy.begin_step(len(self._running) + len(self._preempted))
        self._displace()
        self._plan_decodes()
        self._plan_prompts()
        self.counters.scheduled_tokens += self._config.max_num_batched_tokens - self._budget
        swap_out, swap_in, copies = self._kv.take_transfers()
        if not self._chunks and self.has_work():
            raise RuntimeError(
                f"scheduler is stuck: running {self._running}, preempted {self._preempted}, "
                f"{len(self._policy)} waiting, {self._kv.num_available} blocks available"
            )
        plan = StepPlan(tuple(self._chunks), swap_out, swap_in, copies)
        step = Step(plan, self._seqs, self._drafts)
        self._policy.charge(step)
        return step

    def _displace(self) -> None:
        """Admit those who outrank a running sequence, at the cost of the youngest running ones."""
        while self._running and (seq := self._next()):
            if not self._policy.outranks(seq, self._running[-1]):
                return
            while not self._admit(seq):
                if not self._may_displace(seq):
                    return
                self._preempt(self._running[-1])

    def _may_displace(self, seq: Sequence) -> bool:
        """Whether the youngest running sequence ranks below `seq` and is not part of this step."""
        if not self._running:
            return False
        youngest = self._running[-1]
        return youngest.step != self._step and self._policy.outranks(seq, youngest)

    def _plan_decodes(self) -> None:
        if not self._running:
            return
        reserve = int(self._running[0].num_uncomputed > 1)  # the oldest advances, decode or not
        if self._drafter is not None:
            self._drafts = step_drafts(self._drafter, self._running, self._budget, self._kv)
        append, seqs, chunks, drafts = self._kv.append, self._seqs, self._chunks, self._drafts
        decodes = [seq for seq in self._running if len(seq.token_ids) - seq.num_computed == 1]
        for seq in decodes[: self._budget - reserve]:
            if self._ran_out and seq.status is not Status.RUNNING:
                continue  # preempted for an older one
            start = seq.num_computed
            block_ids = None if seq.seq_id in drafts else append(seq.table, start)
            if block_ids is None:
                self._plan_decode(seq)
                continue
            chunks.append(Chunk(seq.seq_id, start, (seq.token_ids[start],), block_ids, 1))
            seqs.append(seq)
            seq.step = self._step
        self._budget -= len(seqs)

    def _plan_decode(self, seq: Sequence) -> None:
        """A decode with a draft, or one that blocks are short for."""
        start, end = seq.num_computed, len(seq.token_ids)
        draft = self._drafts.get(seq.seq_id, NO_DRAFT)
        if not self._kv.grow(seq.table, start, end + len(draft.token_ids)):
            draft = NO_DRAFT
            self._drafts.pop(seq.seq_id, None)
            if not self._make_room(seq):
                return
        self._plan(seq, end, draft)
        if draft.token_ids:
            self._budget -= len(draft.token_ids)
            self.counters.drafts += 1
            self.counters.draft_tokens += len(draft.token_ids)

    def _make_room(self, seq: Sequence) -> bool:
        """Preempt until `seq` has room for its known tokens; False when it was preempted itself."""
        while not self._kv.grow(seq.table, seq.num_computed, seq.num_known):
            victim = next((s for s in reversed(self._running) if s.step != self._step), None)
            if victim is None:
                return False
            self._preempt(victim)
            if victim is seq:
                return False
        return True

    def _plan_prompts(self) -> None:
        """Share the rest of the budget among prompts, oldest first.

        Each takes at most half of what is left, and what is left over goes to the oldest. So a long
        prompt keeps most of the budget, and a short one behind it gets through in a few steps.
        """
        prompts: list[Sequence] = []
        if len(self._seqs) < len(self._running):
            prompts = [s for s in self._running if len(s.token_ids) - s.num_computed > 1]
        if not prompts and self._next() is None:
            return  # nearly every step
        held_back = max(0, self._budget - self._config.chunked_prefill_size) if self._seqs else 0
        self._budget -= held_back
        shares = []
        for index, seq in enumerate(prompts):
            shares.append(self._share(seq, is_first=index == 0))
        while self._budget > 0 and not self._ran_out and all(shares):
            newcomer = self._next()
            if newcomer is None or not self._admit(newcomer):
                break
            shares.append(self._share(newcomer, is_first=not prompts))
            prompts.append(newcomer)
        for seq, share in zip(prompts, shares, strict=True):
            if self._config.enable_chunked_prefill:
                extra = min(seq.num_uncomputed - share, self._budget)
                self._budget -= extra
                share += extra
            if share:
                self._plan(seq, seq.num_computed + share, NO_DRAFT)
        self._budget += held_back

    def _share(self, seq: Sequence, *, is_first: bool) -> int:
        """What a prompt takes of the budget at first; unchunked, all it needs or nothing."""
        need = seq.num_uncomputed
        if self._config.enable_chunked_prefill:
            share = min(need, max(self._budget // 2, MIN_SHARE), self._budget)
        else:
            share = need if need <= self._budget or (is_first and self._budget > 0) else 0
        self._budget -= share
        return share

    def _next(self) -> Sequence | None:
        """The sequence to admit next: a preempted one, unless a new one has a higher priority."""
        new = self._policy.first()
        if self._preempted and (new is None or self._preempted[0].priority <= new.priority):
            return self._preempted[0]
        return new

    def _has_seat(self) -> bool:
        return len(self._running) < self._config.max_num_seqs

    def _admit(self, seq: Sequence) -> bool:
        """Seat a waiting or preempted sequence with its blocks; False, and no change, if short."""
        if not self._has_seat():
            return False
        may_read_cache = seq.job.may_read_cache
        num_computed = self._kv.open(
            seq.table,
            seq.token_ids,
            read_cache=may_read_cache,
            keep_free=self._watermark if self._running else 0,
        )
        if num_computed is None:
            return False
        if seq.status is Status.SWAPPED:
            seq.step = self._step  # its blocks are filled by this step: too early to save them
        seq.num_computed = num_computed
        if seq.was_admitted:
            _delete(self._preempted, seq)
            self.counters.recomputed_tokens += max(0, seq.num_dropped - num_computed)
            seq.num_dropped = 0
        else:
            seq.num_charged = num_computed  # hits are free
            self._policy.admitted(seq)
            if self._kv.is_caching and may_read_cache:
                self.counters.prefix_query_tokens += seq.num_known
                self.counters.prefix_hit_tokens += num_computed
            if not seq.output_ids:
                seq.job.num_cached_tokens = num_computed
        self._start(seq)
        return True

    def _start(self, seq: Sequence) -> None:
        seq.was_admitted = True
        seq.status = Status.RUNNING
        insort(self._running, seq, key=_order)

    def _preempt(self, seq: Sequence) -> None:
        """Take seat and blocks from a running sequence; its KV goes to the arena, or is dropped."""
        self._ran_out = True
        _delete(self._running, seq)
        if self._kv.swap_out(seq.table, seq.num_computed):
            seq.status = Status.SWAPPED
            self.counters.preemptions_swap += 1
        else:
            self._kv.free(seq.table)
            seq.num_dropped, seq.num_computed = seq.num_computed, 0
            seq.status = Status.WAITING
            self.counters.preemptions_recompute += 1
        insort(self._preempted, seq, key=_order)

    def _plan(self, seq: Sequence, end: int, draft: Draft) -> None:
        """Plan the sequence's tokens up to `end`, and `draft` after them. It has the blocks for
        all.
        """
        start, known, drafts = seq.num_computed, seq.token_ids, draft.token_ids
        if seq.job.reader is not None and (wanted := seq.job.wanted_positions):
            num_logits = max(0, end - wanted.start)
        else:
            num_logits = 1 + len(drafts) if end == len(known) else 0
        block_ids = seq.table.ids(self._kv.blocks_for(end + len(drafts)))
        tokens = (*known[start:end], *drafts)
        self._chunks.append(Chunk(seq.seq_id, start, tokens, block_ids, num_logits, len(drafts)))
        self._seqs.append(seq)
        seq.step = self._step


def _delete(sequences: list[Sequence], seq: Sequence) -> None:
    """Remove `seq` from a list that is sorted by order."""
    index = bisect_left(sequences, seq.order, key=_order)
    assert sequences[index] is seq
    del sequences[index]
