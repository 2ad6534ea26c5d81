"""`FairRequestQueue`: order, bounds, removal; and against a plain model under random operations."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinyserve.errors import QueueFullError
from tinyserve.server.fair_queue import Entry, FairRequestQueue


def queue_of(*entries: tuple[str, int], limit: int = 100) -> FairRequestQueue[str]:
    """One group for each (client, priority); items are numbered: a0, a1, b2, ..."""
    queue: FairRequestQueue[str] = FairRequestQueue(limit)
    for i, (client, priority) in enumerate(entries):
        queue.put([Entry(f"{client}{i}", f"g{i}", client, priority)])
    return queue


def drain(queue: FairRequestQueue[Any]) -> list[Any]:
    items = []
    while (item := queue.pop()) is not None:
        items.append(item)
    return items


def test_clients_take_turns() -> None:
    queue = queue_of(("a", 0), ("a", 0), ("a", 0), ("b", 0), ("c", 0), ("b", 0))
    assert drain(queue) == ["a0", "b3", "c4", "a1", "b5", "a2"]


def test_lower_priority_numbers_first() -> None:
    queue = queue_of(("a", 1), ("a", 0), ("b", -1), ("b", 1))
    assert queue.peek_priority() == -1
    assert drain(queue) == ["b2", "a1", "a0", "b3"]
    assert queue.peek_priority() is None


def test_a_client_that_comes_back_waits_its_turn() -> None:
    queue = queue_of(("a", 0), ("b", 0), ("b", 0))
    assert queue.pop() == "a0"
    queue.put([Entry("a9", "g9", "a")])
    assert drain(queue) == ["b1", "a9", "b2"]


def test_full_in_requests_not_in_entries() -> None:
    queue: FairRequestQueue[int] = FairRequestQueue(2)
    queue.put([Entry(i, "g0", "a") for i in range(10)])
    queue.put([Entry(10, "g1", "a")])
    with pytest.raises(QueueFullError) as caught:
        queue.put([Entry(11, "g2", "b")], retry_after=lambda: 3)
    assert caught.value.retry_after == 3
    assert (len(queue), queue.num_requests) == (11, 2)
    assert drain(queue) == list(range(11))
    queue.put([Entry(11, "g2", "b")])


def test_removing_a_group() -> None:
    queue = queue_of(("a", 0), ("b", 0), ("a", 1))
    assert queue.remove_group("g0") == ["a0"]
    assert queue.remove_group("g0") == []
    assert drain(queue) == ["b1", "a2"]


def test_full_in_prompt_tokens() -> None:
    queue: FairRequestQueue[str] = FairRequestQueue(100, max_tokens=50)
    queue.put([Entry("a0", "g0", "a", num_tokens=20), Entry("a1", "g0", "a", num_tokens=20)])
    with pytest.raises(QueueFullError, match=r"40 prompt tokens are waiting.* more than 50"):
        queue.put([Entry("b0", "g1", "b", num_tokens=11)])
    queue.put([Entry("b0", "g1", "b", num_tokens=10)])
    assert queue.num_tokens == 50
    queue.remove_group("g0")
    assert queue.num_tokens == 10
    assert queue.pop() == "b0"
    assert queue.num_tokens == 0


def test_an_empty_queue_takes_what_is_larger_than_its_bound() -> None:
    queue: FairRequestQueue[str] = FairRequestQueue(100, max_tokens=50)
    queue.put([Entry("a", "g0", "a", num_tokens=1000)])
    with pytest.raises(QueueFullError):
        queue.put([Entry("b", "g1", "b", num_tokens=1)])
    assert drain(queue) == ["a"]


def test_blocked_clients_are_passed_over_and_keep_their_turn() -> None:
    queue = queue_of(("a", 0), ("a", 0), ("b", 0), ("c", 0), ("d", 1))
    assert queue.pop({"a"}) == "b2"
    assert queue.pop({"a", "c"}) is None  # d waits on a less urgent level
    assert drain(queue) == ["a0", "c3", "a1", "d4"]


def test_removal_from_the_middle_of_a_long_line_does_not_walk_it() -> None:
    class Counted:
        compared = 0

        def __eq__(self, other: object) -> bool:
            Counted.compared += 1
            return self is other

        __hash__ = None  # type: ignore[assignment]

    queue: FairRequestQueue[Counted] = FairRequestQueue(100_000)
    for i in range(20_000):
        queue.put([Entry(Counted(), f"g{i}", "a", num_tokens=1)])
    for i in range(19_000, 0, -1):
        assert len(queue.remove_group(f"g{i}")) == 1
    assert Counted.compared == 0
    assert (len(queue), queue.num_tokens) == (1000, 1000)
    assert len(drain(queue)) == 1000


def test_levels_that_come_and_go_behind_a_lasting_one_leave_nothing() -> None:
    queue = queue_of(("a", 0))
    for i in range(1000):
        for priority in (i, 5):
            queue.put([Entry(f"b{i}", f"h{i}-{priority}", "b", priority=priority)])
        for priority in (i, 5):
            queue.remove_group(f"h{i}-{priority}")
    assert len(queue._priorities) < 100
    queue.put([Entry("urgent", "u", "c", priority=-1), Entry("later", "u", "c", priority=7)])
    assert drain(queue) == ["urgent", "a0", "later"]


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from("abc"), st.integers(0, 2), st.integers(1, 3)),
        st.tuples(st.just("pop")),
        st.tuples(st.just("remove"), st.integers(0, 30)),
        st.tuples(st.just("clear")),
    ),
    max_size=60,
)


@given(OPERATIONS)
def test_random_operations_keep_count_and_order(operations: list[Any]) -> None:
    queue: FairRequestQueue[tuple[str, int, int]] = FairRequestQueue(8)
    waiting: list[tuple[str, int, int, str]] = []  # client, priority, number, group
    number = 0
    for group, (kind, *arguments) in enumerate(operations):
        if kind == "put":
            client, priority, count = arguments
            items = [(client, priority, number + i) for i in range(count)]
            number += count
            if len({g for *_, g in waiting}) >= 8:
                with pytest.raises(QueueFullError):
                    queue.put([Entry(item, str(group), client, priority) for item in items])
                continue
            queue.put([Entry(item, str(group), client, priority) for item in items])
            waiting += [(*item, str(group)) for item in items]
        elif kind == "pop":
            item = queue.pop()
            if not waiting:
                assert item is None
                continue
            assert item is not None
            level = min(priority for _, priority, *_ in waiting)
            own = [n for c, p, n, _ in waiting if (c, p) == (item[0], level)]
            assert item[1] == level
            assert item[2] == own[0]  # first come first served within a client
            waiting = [w for w in waiting if w[:3] != item]
        elif kind == "remove":
            removed = queue.remove_group(str(arguments[0]))
            gone = [w for w in waiting if w[3] == str(arguments[0])]
            assert sorted(removed) == sorted(w[:3] for w in gone)
            waiting = [w for w in waiting if w[3] != str(arguments[0])]
        else:
            assert len(queue.clear()) == len(waiting)
            waiting = []
        assert len(queue) == len(waiting)
        assert queue.peek_priority() == min((p for _, p, *_ in waiting), default=None)
        assert queue.num_requests == len({w[3] for w in waiting})


@given(st.integers(1, 40), st.integers(0, 40))
def test_nobody_waits_for_more_than_one_of_each_other_client(greedy: int, served: int) -> None:
    queue = queue_of(*[("a", 0)] * greedy)
    for _ in range(min(served, greedy)):
        queue.pop()
    queue.put([Entry("modest", "m", "b")])
    assert drain(queue).index("modest") <= 1
