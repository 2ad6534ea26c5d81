"""Random schedules over a real runner, every row of logits compared with the truth as it appears.

Each step computes chunks of some sequences; others are swapped out and in, dropped and recomputed,
start on blocks that another sequence with the same prefix has written, or fork one and copy its
last block. Chunks may carry wrong drafts behind them, which the next chunk overwrites.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from exact_models import MAX_LEN, VOCAB, Truth

from tinyserve.engine.plan import Chunk, StepPlan
from tinyserve.engine.runner import ModelRunner

CO_BATCHES = (1, 2, 5, 16, 33)
CHUNKS = (1, 7, 16, 64, MAX_LEN)


@dataclass(eq=False)
class Walker:
    """A sequence on its way. It holds blocks, or host slots, or nothing."""

    seq_id: int
    tokens: list[int]
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)

    @property
    def is_done(self) -> bool:
        return self.computed == len(self.tokens)


def make_sequences(rand: random.Random, count: int, num_long: int) -> list[list[int]]:
    """Token lists that share prefixes of any length; `num_long` of them span partitions."""
    stems = [[rand.randrange(VOCAB) for _ in range(MAX_LEN)] for _ in range(3)]
    sequences = []
    for index in range(count):
        length = rand.randint(258, 560) if index < num_long else rand.randint(1, 70)
        shared = rand.choice((0, length // 2, length - 1))
        tail = [rand.randrange(VOCAB) for _ in range(length - shared)]
        sequences.append(rand.choice(stems)[:shared] + tail)
    return sequences


class Walk:
    """One random schedule; `run` ends when every sequence has been computed whole."""

    def __init__(
        self,
        runner: ModelRunner,
        truth: Truth,
        sequences: Sequence[list[int]],
        rand: random.Random,
    ) -> None:
        self.runner, self.truth, self.rand = runner, truth, rand
        self.size = runner.pool.layout.block_size
        self.walkers = [Walker(i, tokens) for i, tokens in enumerate(sequences)]
        self.free = list(range(runner.pool.layout.num_blocks))
        self.rand.shuffle(self.free)
        self.owners: Counter[int] = Counter()  # of each block
        self.free_slots = list(range(runner.pool.num_swap_blocks))
        self.events: Counter[str] = Counter()

    def run(self) -> Counter[str]:
        for _ in range(5000):
            if all(walker.is_done for walker in self.walkers):
                return self.events
            self._step()
        raise AssertionError("the walk does not end")

    def _step(self) -> None:
        self.swap_out: list[tuple[int, int]] = []
        self.swap_in: list[tuple[int, int]] = []
        self.copies: list[tuple[int, int]] = []
        self.retired: list[int] = []
        planned: dict[int, tuple[Walker, Chunk, int]] = {}
        chosen = self._choose()
        for walker in chosen:
            if not self._disturb(walker):
                chunk, num_true = self._chunk(walker)
                if chunk is not None:
                    planned[walker.seq_id] = (walker, chunk, num_true)
        if not planned:
            self._make_room(chosen)
        chunks = tuple(chunk for _, chunk, _ in planned.values())
        plan = StepPlan(chunks, tuple(self.swap_out), tuple(self.swap_in), tuple(self.copies))
        rows = self.runner.run(plan).array()
        first = 0
        for walker, chunk, num_true in planned.values():
            self._compare(walker, chunk, num_true, rows[first : first + chunk.num_logits])
            first += chunk.num_logits
            walker.computed += num_true
        self.free_slots += self.retired
        self.events["steps"] += 1
        self.events["co-batch of 33"] += len(chunks) == 33

    def _choose(self) -> list[Walker]:
        waiting = [walker for walker in self.walkers if not walker.is_done]
        most = self.rand.choice(CO_BATCHES) if self.events["steps"] else 33
        return self.rand.sample(waiting, min(most, len(waiting)))

    def _compare(self, walker: Walker, chunk: Chunk, num_true: int, rows: object) -> None:
        want = self.truth.logits(walker.tokens)
        begin = chunk.start + len(chunk.token_ids) - chunk.num_logits
        end = chunk.start + num_true
        if begin < end:
            got = rows[: end - begin]  # type: ignore[index]
            assert got.tobytes() == want[begin:end].tobytes(), (
                f"sequence {walker.seq_id}, positions {begin} to {end}: other bits than alone"
            )
            self.events["rows"] += end - begin

    def _disturb(self, walker: Walker) -> bool:
        """Perhaps swap it or drop it, instead of computing it."""
        if walker.slots:
            return not self._swap_in(walker)
        if walker.computed and not self._is_read(walker) and self.rand.random() < 0.12:
            if self.rand.random() < 0.6 and len(walker.blocks) <= len(self.free_slots):
                self._swap_out(walker)
            else:
                self._drop(walker)
            return True
        return False

    def _chunk(self, walker: Walker) -> tuple[Chunk | None, int]:
        """The next chunk and how many of its tokens are true; None where blocks are short."""
        if not walker.blocks:
            self._start(walker)
        left = len(walker.tokens) - walker.computed
        sizes = CHUNKS if self.events["steps"] else CHUNKS[:3]
        num_true = min(self.rand.choice(sizes), left)
        num_drafts = self.rand.choice((0, 0, 1, 2, 3, 5))
        stop = walker.computed + num_true + num_drafts
        missing = -(-stop // self.size) - len(walker.blocks)
        if stop > MAX_LEN or missing > len(self.free):
            return None, 0
        for _ in range(missing):
            walker.blocks.append(self._take())
        drafts = [self.rand.randrange(VOCAB) for _ in range(num_drafts)]
        tokens = (*walker.tokens[walker.computed : walker.computed + num_true], *drafts)
        num_logits = self.rand.choice((len(tokens), len(tokens), 1 + num_drafts, 0))
        self.events["drafts"] += num_drafts
        used = tuple(walker.blocks[: -(-stop // self.size)])
        return Chunk(walker.seq_id, walker.computed, tokens, used, num_logits), num_true

    def _start(self, walker: Walker) -> None:
        """A new or dropped sequence may begin on another's blocks."""
        donors = [w for w in self.walkers if w is not walker and w.blocks and w.computed]
        if not donors or self.rand.random() < 0.2:
            return
        donor = max(donors, key=lambda other: self._num_shared(walker, other))
        shared = self._num_shared(walker, donor)
        full = shared // self.size
        for block in donor.blocks[:full]:
            self.owners[block] += 1
            walker.blocks.append(block)
        walker.computed = full * self.size
        self.events["prefix hits"] += full > 0
        if shared % self.size and self.free and self.rand.random() < 0.5:
            walker.blocks.append(self._take())
            self.copies.append((donor.blocks[full], walker.blocks[full]))
            walker.computed = shared
            self.events["forks"] += 1

    @staticmethod
    def _num_shared(walker: Walker, donor: Walker) -> int:
        """Leading tokens that the donor has computed; the last one is always computed anew."""
        limit = min(donor.computed, len(walker.tokens) - 1)
        shared = 0
        while shared < limit and walker.tokens[shared] == donor.tokens[shared]:
            shared += 1
        return shared

    def _swap_out(self, walker: Walker) -> None:
        needed = -(-walker.computed // self.size)
        walker.slots = [self.free_slots.pop() for _ in range(needed)]
        self.swap_out += zip(walker.blocks, walker.slots, strict=False)
        self._release(walker)
        self.events["swaps"] += 1

    def _swap_in(self, walker: Walker) -> bool:
        if len(walker.slots) > len(self.free):
            return False
        walker.blocks = [self._take() for _ in walker.slots]
        self.swap_in += zip(walker.slots, walker.blocks, strict=True)
        self.retired += walker.slots
        walker.slots = []
        return True

    def _drop(self, walker: Walker) -> None:
        self._release(walker)
        walker.computed = 0
        self.events["recomputed"] += 1

    def _make_room(self, chosen: list[Walker]) -> None:
        """Nothing fitted: what is done leaves, or another has to be computed again."""
        holders = [w for w in self.walkers if w.blocks and not self._is_read(w)]
        done = [walker for walker in holders if walker.is_done]
        others = [w for w in holders if w not in chosen] or holders
        if done:
            self._release(self.rand.choice(done))
        elif others:
            self._drop(self.rand.choice(others))

    def _is_read(self, walker: Walker) -> bool:
        """Does a transfer of this step involve its blocks?"""
        moved = {block for pair in (*self.copies, *self.swap_in) for block in pair}
        return bool(moved.intersection(walker.blocks))

    def _take(self) -> int:
        block = self.free.pop(self.rand.randrange(len(self.free)))
        self.owners[block] = 1
        return block

    def _release(self, walker: Walker) -> None:
        for block in walker.blocks:
            self.owners[block] -= 1
            if not self.owners[block]:
                self.free.append(block)
        walker.blocks = []
