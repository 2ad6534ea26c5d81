"""`FairRequestQueue`: who goes to the engine next.

Order: priority level (lower number first), then round-robin over clients, then first come first
served within a client. Bounded in HTTP requests: a request with a list of prompts counts once,
however many entries it puts. Plain single-threaded bookkeeping; the bridge guards it with its
lock.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import Generic, TypeVar

from tinyserve.errors import QueueFullError

T = TypeVar("T")


@dataclass(frozen=True)
class Entry(Generic[T]):
    """One waiting item: `group` is the HTTP request it belongs to."""

    item: T
    group: str
    client: str
    priority: int = 0


class FairRequestQueue(Generic[T]):
    """A bounded queue, fair between clients. All operations but `remove_group` are O(levels)."""

    def __init__(self, max_requests: int) -> None:
        self._max_requests = max_requests
        # priority -> client -> its entries; the client whose turn it is comes first
        self._levels: dict[int, OrderedDict[str, deque[Entry[T]]]] = {}
        self._group_sizes: dict[str, int] = {}
        self._size = 0

    def __len__(self) -> int:
        """Entries that wait; safe to read from any thread."""
        return self._size

    @property
    def num_requests(self) -> int:
        """HTTP requests with at least one waiting entry."""
        return len(self._group_sizes)

    def put(self, entries: list[Entry[T]], *, retry_after: float = 1.0) -> None:
        """Add all entries of one HTTP request, or raise QueueFullError and add none."""
        if len(self._group_sizes) >= self._max_requests:
            raise QueueFullError(
                f"The server is busy: {len(self._group_sizes)} requests are waiting. "
                "Please retry later.",
                retry_after=retry_after,
            )
        for entry in entries:
            level = self._levels.setdefault(entry.priority, OrderedDict())
            level.setdefault(entry.client, deque()).append(entry)
            self._group_sizes[entry.group] = self._group_sizes.get(entry.group, 0) + 1
        self._size += len(entries)

    def peek_priority(self) -> int | None:
        """The priority level that `pop` would serve; None when empty."""
        return min(self._levels, default=None)

    def pop(self) -> T | None:
        """Take the next item, and send its client to the back of its level; None when empty."""
        priority = self.peek_priority()
        if priority is None:
            return None
        level = self._levels[priority]
        client, entries = next(iter(level.items()))
        entry = entries.popleft()
        if entries:
            level.move_to_end(client)
        else:
            self._drop_client(priority, client)
        self._forget(entry.group)
        self._size -= 1
        return entry.item

    def remove_group(self, group: str) -> list[T]:
        """Take out every entry of one HTTP request; the items, in no particular order."""
        if group not in self._group_sizes:
            return []
        removed: list[T] = []
        for priority, level in list(self._levels.items()):
            for client, entries in list(level.items()):
                kept = deque(e for e in entries if e.group != group)
                if len(kept) == len(entries):
                    continue
                removed += [e.item for e in entries if e.group == group]
                level[client] = kept
                if not kept:
                    self._drop_client(priority, client)
        del self._group_sizes[group]
        self._size -= len(removed)
        return removed

    def clear(self) -> list[T]:
        """Take out everything."""
        items = [e.item for level in self._levels.values() for q in level.values() for e in q]
        self._levels.clear()
        self._group_sizes.clear()
        self._size = 0
        return items

    def _drop_client(self, priority: int, client: str) -> None:
        del self._levels[priority][client]
        if not self._levels[priority]:
            del self._levels[priority]

    def _forget(self, group: str) -> None:
        self._group_sizes[group] -= 1
        if not self._group_sizes[group]:
            del self._group_sizes[group]
