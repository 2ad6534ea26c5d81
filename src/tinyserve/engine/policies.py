"""Who is admitted next: one small strategy per scheduling policy.

A policy owns the sequences that wait for their first admission and says which comes next; it knows
nothing of blocks, budgets or the running set. Preempted sequences are the scheduler's, and return
before any new sequence of the same priority.

    continuous   by (priority, arrival). A seat once taken is lost only when blocks run short.
    priority     the same order, and a strictly higher priority takes seat and blocks from the
                 lowest that runs. The displaced keep their arrival time. A steady stream of higher
                 priorities starves the lower ones: that is what strict priority means.
    fair         the client that was served least goes next; within a client by (priority, arrival).
    static       whole batches, for comparison: none joins until all members have finished.

`priority` is lower-first everywhere; a deployment that gives all requests the same priority gets
first come, first served.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from tinyserve.engine.sequence import Sequence
from tinyserve.engine.step import Step

Order = tuple[int, float, int]  # Sequence.order


class WaitingQueue:
    """Sequences by `order`: add and remove in O(log n), removal of any one included."""

    __slots__ = ("_heap", "_members")

    def __init__(self) -> None:
        self._heap: list[tuple[Order, Sequence]] = []
        self._members: set[int] = set()  # removed sequences stay in the heap until they surface

    def __len__(self) -> int:
        return len(self._members)

    def add(self, seq: Sequence) -> None:
        heapq.heappush(self._heap, (seq.order, seq))
        self._members.add(seq.seq_id)

    def remove(self, seq: Sequence) -> None:
        self._members.discard(seq.seq_id)
        if len(self._heap) > 64 and len(self._heap) > 4 * len(self._members):
            self._heap = [item for item in self._heap if item[1].seq_id in self._members]
            heapq.heapify(self._heap)

    def first(self) -> Sequence | None:
        heap = self._heap
        while heap and heap[0][1].seq_id not in self._members:
            heapq.heappop(heap)
        return heap[0][1] if heap else None


class Policy(Protocol):
    """What a policy answers and is told. A sequence is added once, then `admitted` once, unless it
    is removed before.

    The methods that are not abstract here are defaults, for policies that do not care.
    """

    def __len__(self) -> int: ...

    def add(self, seq: Sequence) -> None: ...

    def remove(self, seq: Sequence) -> None:
        """Forget a sequence that was aborted while it waited. Idempotent."""
        ...

    def first(self) -> Sequence | None:
        """The sequence to admit next; None while none may be admitted."""
        ...

    def admitted(self, seq: Sequence) -> None:
        """A sequence has taken a seat: the first in line, or a fork that was never in line."""
        ...

    def may_fork(self) -> bool:
        """May a fork of a running sequence take a free seat now?"""
        return True

    def outranks(self, seq: Sequence, running: Sequence) -> bool:
        """May `seq` take the place of `running`?"""
        return False

    def begin_step(self, num_members: int) -> None:
        """A step begins; `num_members` were admitted and have not finished."""
        return

    def charge(self, step: Step) -> None:
        """Count the chunks that the step computes as service."""
        return


class ContinuousPolicy(WaitingQueue, Policy):
    """One queue in (priority, arrival) order; a sequence may join whenever there is room."""

    def admitted(self, seq: Sequence) -> None:
        self.remove(seq)


class PriorityPolicy(ContinuousPolicy):
    """Continuous, but a strictly higher priority displaces a lower one that runs."""

    def outranks(self, seq: Sequence, running: Sequence) -> bool:
        return seq.priority < running.priority


class StaticPolicy(ContinuousPolicy):
    """A batch takes the waiting sequences, up to `max_num_seqs`, then none until all have finished.

    It closes when its seats are taken or none waits any more; a finished member keeps its seat.
    """

    def __init__(self, max_num_seqs: int) -> None:
        super().__init__()
        self._max_num_seqs = max_num_seqs
        self._num_admitted = 0
        self._is_open = True

    def begin_step(self, num_members: int) -> None:
        if num_members == 0:
            self._num_admitted = 0
            self._is_open = True

    def first(self) -> Sequence | None:
        if self._num_admitted and not len(self):
            self._is_open = False
        return super().first() if self._is_open and self.may_fork() else None

    def admitted(self, seq: Sequence) -> None:
        super().admitted(seq)
        self._num_admitted += 1

    def may_fork(self) -> bool:
        return self._num_admitted < self._max_num_seqs


class FairPolicy(Policy):
    """The client with the least service goes next (the virtual token counter, arXiv 2401.00588).

    Service is counted in computed tokens, a generated one as much as `OUTPUT_WEIGHT` prompt tokens;
    prefix hits and recomputation are free. A client that comes back after an absence is lifted to
    the least counter in line, so that idling saves up no credit.
    """

    OUTPUT_WEIGHT = 2
    MAX_CLIENTS = 4096  # counters kept for clients that are not in line

    def __init__(self) -> None:
        self._lines: dict[str, WaitingQueue] = {}  # per client in line, none empty
        self._served: OrderedDict[str, int] = OrderedDict()  # longest absent first
        self._heap: list[tuple[int, Order, str]] = []  # one entry per client; counters may lag
        self._in_heap: set[str] = set()
        self._last_client = ""  # the client that left the line last
        self._num_waiting = 0

    def __len__(self) -> int:
        return self._num_waiting

    def add(self, seq: Sequence) -> None:
        client = seq.job.request.client
        if client not in self._lines:
            self._lift(client)
            self._lines[client] = WaitingQueue()
            if client not in self._in_heap:
                self._in_heap.add(client)
                heapq.heappush(self._heap, (self._served[client], seq.order, client))
        self._lines[client].add(seq)
        self._num_waiting += 1

    def remove(self, seq: Sequence) -> None:
        client = seq.job.request.client
        line = self._lines.get(client)
        if line is not None:
            num_before = len(line)
            line.remove(seq)
            self._num_waiting -= num_before - len(line)
            if not len(line):
                del self._lines[client]
                self._last_client = client

    def first(self) -> Sequence | None:
        client = self._least_served()
        return self._lines[client].first() if client is not None else None

    def admitted(self, seq: Sequence) -> None:
        self.remove(seq)
        self._charge(seq, len(seq.job.prompt_ids))  # now, so that a step seats others as well

    def charge(self, step: Step) -> None:
        for seq, chunk in zip(step.seqs, step.plan.chunks, strict=True):
            self._charge(seq, chunk.end)

    def _charge(self, seq: Sequence, end: int) -> None:
        """The sequence's tokens up to `end` are served."""
        start, num_prompt = seq.num_charged, len(seq.job.prompt_ids)
        if end <= start:
            return
        seq.num_charged = end
        num_output = max(end, num_prompt) - max(start, num_prompt)
        cost = end - start + (self.OUTPUT_WEIGHT - 1) * num_output
        client = seq.job.request.client
        self._served[client] = self._served.get(client, 0) + cost

    def _least_served(self) -> str | None:
        while self._heap:
            counter, order, client = self._heap[0]
            if client not in self._lines:
                heapq.heappop(self._heap)
                self._in_heap.discard(client)
            elif counter != self._served[client]:
                heapq.heapreplace(self._heap, (self._served[client], order, client))
            else:
                return client
        return None

    def _lift(self, client: str) -> None:
        """Called as `client` joins the line; forgets the longest absent when there are too many."""
        least = self._least_served()
        floor = self._served.get(self._last_client if least is None else least, 0)
        self._served[client] = max(self._served.get(client, 0), floor)
        self._served.move_to_end(client)
        while len(self._served) > self.MAX_CLIENTS + len(self._lines):
            oldest = next(iter(self._served))
            if oldest in self._lines:
                self._served.move_to_end(oldest)
            else:
                del self._served[oldest]


def make_policy(name: str, max_num_seqs: int) -> Policy:
    """The policy that `scheduler.policy` names."""
    policies: dict[str, Callable[[], Policy]] = {
        "continuous": ContinuousPolicy,
        "priority": PriorityPolicy,
        "fair": FairPolicy,
        "static": lambda: StaticPolicy(max_num_seqs),
    }
    return policies[name]()
