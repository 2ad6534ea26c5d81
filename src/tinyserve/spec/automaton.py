"""A suffix automaton that grows token by token: every run of a text, and what followed it.

A state stands for the runs that end at the same places; `length` is that of its longest. From a
state a token leads on to the run one token longer, and `link` leads to the longest shorter end of
it that occurs at other places too. Taking in a token costs O(1) amortised and adds at most two
states (Blumer et al. 1985). `count` is how often a state's runs occur: exact for the longest runs
at each place, which are those that lookups use; at most MAX_LINKS states a token are counted, so
that a text of one token repeated stays cheap.
"""

from __future__ import annotations

MAX_LINKS = 8
ROOT = 0
STATE_BYTES = 400  # about what a state occupies: its dict and four list entries


class SuffixAutomaton:
    """The runs of one text. States are numbers; 0 is the empty run."""

    __slots__ = ("count", "last", "length", "link", "next", "num_tokens")

    def __init__(self) -> None:
        self.next: list[dict[int, int]] = [{}]
        self.link = [-1]
        self.length = [0]
        self.count = [0]
        self.last = ROOT  # the state of the whole text
        self.num_tokens = 0

    @property
    def nbytes(self) -> int:
        """About what it occupies."""
        return STATE_BYTES * len(self.next)

    def append(self, token: int) -> None:
        """The text goes on with `token`."""
        self.num_tokens += 1
        state = self._new_state({}, ROOT, self.length[self.last] + 1, 0)
        at = self.last
        while at != -1 and token not in self.next[at]:
            self.next[at][token] = state
            at = self.link[at]
        if at != -1:
            self.link[state] = self._target(at, token)
        self.last = state
        for _ in range(MAX_LINKS):
            if state <= ROOT:
                return
            self.count[state] += 1
            state = self.link[state]

    def suffix(self) -> int:
        """The state of the longest end of the text that occurs earlier too; 0: none does."""
        return max(self.link[self.last], ROOT)

    def step(self, state: int, length: int, token: int) -> tuple[int, int]:
        """Append `token` to the `length` tokens that end at `state`. Returns the state of the
        longest end of the result that is known, and that end's length.
        """
        while state != ROOT and token not in self.next[state]:
            state = self.link[state]
            length = self.length[state]
        found = self.next[state].get(token)
        return (ROOT, 0) if found is None else (found, length + 1)

    def _target(self, at: int, token: int) -> int:
        """The state after `at` and `token`, split off if it also stands for longer runs."""
        target = self.next[at][token]
        if self.length[target] == self.length[at] + 1:
            return target
        clone = self._new_state(
            dict(self.next[target]),
            self.link[target],
            self.length[at] + 1,
            self.count[target],
        )
        self.link[target] = clone
        while at != -1 and self.next[at].get(token) == target:
            self.next[at][token] = clone
            at = self.link[at]
        return clone

    def _new_state(self, follow: dict[int, int], link: int, length: int, count: int) -> int:
        self.next.append(follow)
        self.link.append(link)
        self.length.append(length)
        self.count.append(count)
        return len(self.next) - 1
