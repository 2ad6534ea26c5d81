"""`FairRequestQueue`: who goes to the engine next.

Order: priority level (lower number first), then round-robin over clients, then first come first
served within a client. Bounded in HTTP requests (one with a list of prompts counts once, however
many entries it puts) and in prompt tokens. Plain single-threaded bookkeeping; the bridge guards it
with its lock.
"""

from __future__ import annotations

import heapq
import itertools
from collections import OrderedDict
from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Generic, TypeVar

from tinyserve.errors import QueueFullError

T = TypeVar("T")


@dataclass(frozen=True)
class Entry(Generic[T]):
    """One waiting item: `group` is the HTTP request it belongs to, `num_tokens` its prompt's."""

    item: T
    group: str
    client: str
    priority: int = 0
    num_tokens: int = 0


# One client's entries at one level, by serial number, oldest first. A linked list: the front of a
# plain dict is slow to find once many entries were deleted from it.
Line = OrderedDict[int, Entry[T]]


class FairRequestQueue(Generic[T]):
    """A bounded queue, fair between clients.

    An entry is added and taken in O(log levels) and removed in O(1), however many wait.
    `max_tokens` None: bounded in requests alone. An empty queue takes any one request, so that what
    is larger than the bound by itself can still be served.
    """

    def __init__(self, max_requests: int, max_tokens: int | None = None) -> None:
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        # priority -> client -> its line; the client whose turn it is comes first
        self._levels: dict[int, OrderedDict[str, Line[T]]] = {}
        self._priorities: list[int] = []  # a heap of the levels; an empty level's stays a while
        self._groups: dict[str, dict[int, Entry[T]]] = {}
        self._next_serial = 0
        self._size = 0
        self._num_tokens = 0

    def __len__(self) -> int:
        """Entries that wait; safe to read from any thread."""
        return self._size

    @property
    def num_requests(self) -> int:
        """HTTP requests with at least one waiting entry."""
        return len(self._groups)

    @property
    def num_tokens(self) -> int:
        """Prompt tokens that wait."""
        return self._num_tokens

    def put(self, entries: list[Entry[T]], *, retry_after: Callable[[], float] = lambda: 1) -> None:
        """Add all entries of one HTTP request, or raise QueueFullError and add none."""
        full = self._what_is_full(sum(entry.num_tokens for entry in entries))
        if full is not None:
            raise QueueFullError(
                f"The server is busy: {full}. Please retry later.", retry_after=retry_after()
            )
        for entry in entries:
            if entry.priority not in self._levels:
                self._levels[entry.priority] = OrderedDict()
                heapq.heappush(self._priorities, entry.priority)
            line = self._levels[entry.priority].setdefault(entry.client, OrderedDict())
            line[self._next_serial] = entry
            self._groups.setdefault(entry.group, {})[self._next_serial] = entry
            self._next_serial += 1
            self._size += 1
            self._num_tokens += entry.num_tokens

    def items(self, limit: int) -> list[T]:
        """The first `limit` waiting items, first come first by HTTP request."""
        entries = (entry for group in self._groups.values() for entry in group.values())
        return [entry.item for entry in itertools.islice(entries, limit)]

    def peek_priority(self) -> int | None:
        """The priority level that `pop` would serve; None when empty."""
        while self._priorities and self._priorities[0] not in self._levels:
            heapq.heappop(self._priorities)
        return self._priorities[0] if self._priorities else None

    def pop(self, blocked: Container[str] = ()) -> T | None:
        """Take the next item of the most urgent level, and send its client to the back of it.

        None when empty, or when every client of that level is `blocked`.
        """
        priority = self.peek_priority()
        if priority is None:
            return None
        level = self._levels[priority]
        for client, line in level.items():
            if client not in blocked:
                level.move_to_end(client)
                serial, entry = next(iter(line.items()))
                self._take_out(serial, entry)
                return entry.item
        return None

    def remove_group(self, group: str) -> list[T]:
        """Take out every entry of one HTTP request; the items, first come first."""
        entries = list(self._groups.get(group, {}).items())
        for serial, entry in entries:
            self._take_out(serial, entry)
        return [entry.item for _, entry in entries]

    def clear(self) -> list[T]:
        """Take out everything."""
        return [item for group in list(self._groups) for item in self.remove_group(group)]

    def _what_is_full(self, num_tokens: int) -> str | None:
        if len(self._groups) >= self._max_requests:
            return f"{len(self._groups)} requests are waiting, and no more may"
        limit = self._max_tokens
        if limit is not None and self._groups and self._num_tokens + num_tokens > limit:
            return (
                f"{self._num_tokens} prompt tokens are waiting, and with the {num_tokens} of this "
                f"request they would be more than {limit}"
            )
        return None

    def _take_out(self, serial: int, entry: Entry[T]) -> None:
        """The one way out of the queue."""
        level = self._levels[entry.priority]
        line = level[entry.client]
        del line[serial]
        if not line:
            del level[entry.client]
        if not level:
            del self._levels[entry.priority]
            if len(self._priorities) > 64 + 2 * len(self._levels):  # those that never surface
                self._priorities = sorted(self._levels)
        group = self._groups[entry.group]
        del group[serial]
        if not group:
            del self._groups[entry.group]
        self._size -= 1
        self._num_tokens -= entry.num_tokens
