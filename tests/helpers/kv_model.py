"""A KVManager beside a literal model of the memory it manages: every slot holds what was written
there.

The model carries out transfers and writes as a step would, and then compares what each sequence's
table says with what that sequence should hold.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tinyserve.kv.block_table import BlockTable
from tinyserve.kv.manager import KVManager
from tinyserve.kv.prefix_cache import HashBlock, hash_block

Slot = tuple[int, tuple[int, ...], object]  # position, the tokens up to it, salt


@dataclass(eq=False)
class Owner:
    """A sequence: what it knows, and how much of it is computed."""

    tokens: list[int]
    table: BlockTable
    num_computed: int = 0
    is_open: bool = False


def snapshot(kv: KVManager, owners: Sequence[Owner] = ()) -> Any:
    """Everything that may change, memoised hashes aside, in the order in which it will be used."""
    cache = kv._cache
    return (
        list(kv._allocator._refs),
        list(kv._allocator._free),
        list(cache._by_key.items()),
        list(cache._by_block.items()),
        list(cache._parked),
        (list(kv.arena._free), list(kv.arena._retired)),
        (
            *map(
                list,
                (kv._transfers.swap_out, kv._transfers.swap_in, kv._transfers.copies, kv._held),
            ),
        ),
        kv.counters.__reduce_ex__(4)[2],
        {id(table) for table in kv._tables},
        [
            (
                list(owner.table.blocks),
                list(owner.table.host_slots),
                owner.table.num_saved,
                owner.table.num_published,
                owner.table.publishing,
            )
            for owner in owners
        ],
    )


@dataclass
class KVModel:
    """See the module. `step_end` is the only place where content moves."""

    num_blocks: int = 12
    block_size: int = 4
    num_swap_blocks: int = 8
    caching: bool = True
    hash_block: HashBlock = hash_block
    owners: list[Owner] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.kv = KVManager(
            self.num_blocks,
            self.block_size,
            num_swap_blocks=self.num_swap_blocks,
            enable_prefix_caching=self.caching,
            hash_block=self.hash_block,
        )
        self.device: list[list[Slot | None]] = [
            [None] * self.block_size for _ in range(self.num_blocks)
        ]
        self.host: list[list[Slot | None]] = [[] for _ in range(self.num_swap_blocks)]
        self.writes: dict[Owner, int] = {}  # what this step computes: up to which position
        self.touched: set[Owner] = set()  # planned or opened by this step

    def new(self, tokens: Sequence[int], salt: str | None = None) -> Owner:
        owner = Owner(list(tokens), BlockTable(salt))
        self.owners.append(owner)
        return owner

    def open(self, owner: Owner, **options: Any) -> bool:
        """Open, and expect no side effect where that fails."""
        before = snapshot(self.kv, self.owners)
        num_computed = self.kv.open(owner.table, owner.tokens, **options)
        if num_computed is None:
            assert snapshot(self.kv, self.owners) == before
            return False
        assert num_computed < len(owner.tokens), "the last known token is always computed"
        owner.num_computed, owner.is_open = num_computed, True
        self.touched.add(owner)
        return True

    def write(self, owner: Owner, end: int | None = None) -> bool:
        """Plan to compute up to `end`, by default all that is known; no side effect on failure."""
        end = len(owner.tokens) if end is None else end
        before = snapshot(self.kv, self.owners)
        if not self._grow(owner, end):
            assert snapshot(self.kv, self.owners) == before
            return False
        self.writes[owner] = end
        self.touched.add(owner)
        return True

    def _grow(self, owner: Owner, end: int) -> bool:
        """Room up to `end`; for one token by `append`, as for a decode."""
        if end != owner.num_computed + 1:
            return self.kv.grow(owner.table, owner.num_computed, end)
        ids = self.kv.append(owner.table, owner.num_computed)
        assert ids is None or ids == tuple(owner.table.blocks[: self.kv.blocks_for(end)])
        return ids is not None

    def swap_out(self, owner: Owner) -> bool:
        before = snapshot(self.kv, self.owners)
        if not self.kv.swap_out(owner.table, owner.num_computed):
            assert snapshot(self.kv, self.owners) == before
            return False
        owner.is_open = False
        return True

    def drop(self, owner: Owner) -> None:
        self.kv.free(owner.table)
        owner.is_open, owner.num_computed = False, 0

    def free(self, owner: Owner) -> None:
        self.drop(owner)
        self.owners.remove(owner)

    def fork(self, owner: Owner) -> Owner:
        """A child that knows what is computed, and one token more."""
        self.kv.publish(owner.table, owner.tokens, owner.num_computed)
        child = Owner(
            [*owner.tokens[: owner.num_computed], 0],
            self.kv.fork(owner.table, owner.num_computed),
            owner.num_computed,
            is_open=True,
        )
        self.owners.append(child)
        return child

    def step_end(self) -> None:
        """Transfers, then writes, then publish; then every table is compared with its owner."""
        swap_out, swap_in, copies = self.kv.take_transfers()
        for block, slot in swap_out:
            self.host[slot] = list(self.device[block])
        for slot, block in swap_in:
            self.device[block] = list(self.host[slot])
        for source, target in copies:
            self.device[target] = list(self.device[source])
        for owner, end in self.writes.items():
            for position in range(owner.num_computed, end):
                block = owner.table.blocks[position // self.block_size]
                self.device[block][position % self.block_size] = self._slot(owner, position)
        for owner, end in self.writes.items():
            owner.num_computed = end
            num_published = owner.table.num_published
            is_within_tail = owner.table.tail_start <= end < owner.table.tail_stop
            self.kv.publish(owner.table, owner.tokens, end)
            assert not is_within_tail or owner.table.num_published == num_published
        self.writes, self.touched = {}, set()
        self.verify()

    def verify(self) -> None:
        self.kv.check()
        for owner in self.owners:
            holds = owner.num_computed if owner.is_open else 0
            for position in range(holds):
                block = owner.table.blocks[position // self.block_size]
                slot = self.device[block][position % self.block_size]
                assert slot == self._slot(owner, position), f"wrong KV at position {position}"

    def compute(self, tokens: Sequence[int], salt: str | None = None) -> Owner:
        """A new owner with everything computed, in a step of its own."""
        owner = self.new(tokens, salt)
        assert self.open(owner)
        assert self.write(owner)
        self.step_end()
        return owner

    def _slot(self, owner: Owner, position: int) -> Slot:
        return position, tuple(owner.tokens[: position + 1]), owner.table.salt


OPERATIONS = ["new", "open", "swap", "drop", "free", "fork", "clear", *["write"] * 3, *["end"] * 2]


def random_operation(model: KVModel, rng: random.Random) -> None:
    """One step of an aimless but law-abiding scheduler."""
    idle = [o for o in model.owners if o.is_open and o not in model.touched]
    closed = [o for o in model.owners if not o.is_open]
    kind = rng.choice(OPERATIONS)
    if kind == "new" and len(model.owners) < 8:
        stem = [rng.randrange(2)] * rng.randrange(0, 20)
        tokens = stem + [rng.randrange(3) for _ in range(rng.randrange(1, 9))]
        owner = model.new(tokens, rng.choice([None, None, "salt"]))
        model.open(owner, keep_free=rng.choice([0, 0, 2]), read_cache=rng.random() < 0.8)
    elif kind == "open" and closed:
        model.open(rng.choice(closed), keep_free=rng.choice([0, 1]))
    elif kind == "write" and idle:
        owner = rng.choice(idle)
        if owner.num_computed == len(owner.tokens):
            owner.tokens += [rng.randrange(3) for _ in range(rng.randrange(1, 6))]
        model.write(owner, rng.randrange(owner.num_computed, len(owner.tokens)) + 1)
    elif kind == "swap" and idle:
        owner = rng.choice(idle)
        if owner.num_computed < len(owner.tokens):
            model.swap_out(owner)
    elif kind == "drop" and idle:
        model.drop(rng.choice(idle))
    elif kind == "free" and idle + closed:
        model.free(rng.choice(idle + closed))
    elif kind == "fork" and not model.touched and idle and len(model.owners) < 8:
        model.fork(rng.choice(idle))
    elif kind == "end":
        model.step_end()
    elif kind == "clear" and rng.random() < 0.05:
        model.kv.clear_cache()
