"""Says, before each step, how many drafts each sequence gets: as many as pay, none where none do.

A step of r rows takes T(r) seconds, measured (`StepTimes`), and proposing takes what it was seen to
take. A sequence whose recent drafts were accepted with probability a can expect a + a^2 + ... + a^k
more tokens from k drafts. The controller adds the most promising drafts of all sequences one by one
and stops where tokens per second are at their best; if that is not better than no drafts at all by
MARGIN, there are none. So under load, where each row costs its full price, or on text that nobody
can guess, speculation is off.

Before anything is known, one sequence tries drafts for all of them: a guess that is wrong for
sixteen would cost sixteen rows. To notice when it would pay again, a sequence without drafts now
and then gets a few: probes may cost PROBE_SHARE of the time. Plain steps are measured again now and
then as well.

Whatever is chosen, coupled verification gives the same tokens; only the time differs. It has no
clock: the same calls give the same choices.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from tinyserve.spec.drafter import Outcome
from tinyserve.spec.step_times import StepTimes

MARGIN = 1.02  # the least gain in tokens per second for which drafts are made
MIN_VALUE = 0.02  # expected accepted tokens; a draft that promises less is not considered
PRIOR = 0.6  # acceptance rate that is assumed before anything was measured
PRIOR_WEIGHT = 2.0  # a sequence starts as if it had this many drafts at the common rate
FADE, FADE_ALL = 0.8, 0.98  # decay of older evidence per run of drafts: of a sequence, of all
FIRST = 4  # drafts to verify with one sequence alone before others draft at the same time
PROBE_SHARE = 0.005  # at most this share of the time goes to probes
MAX_CREDIT = 10  # steps; the longest time that probes may save up
PROBE = 2  # drafts of a probe
LEAST_COST = 0.02  # of a step: what a draft of a probe counts at least, as noise may hide its cost
PROBE_AFTER = 2  # choices without drafts before a sequence may be probed
RESTS = 3  # steps to leave without drafts, undecided, after one decided against them
REFRESH = 128  # steps after which the time of a plain step is measured again


@dataclass(slots=True)
class _Record:
    """What is known of drafts for one sequence, or for all: evidence that fades."""

    accepted: float = 0.0
    judged: float = 0.0  # accepted ones, and the first rejected one of each run
    num_idle: int = 0  # choices since it last had drafts, or could have had

    def rate(self, prior: float) -> float:
        return (self.accepted + PRIOR_WEIGHT * prior) / (self.judged + PRIOR_WEIGHT)

    def learn(self, outcome: Outcome, fade: float) -> None:
        rejected = outcome.num_accepted < outcome.num_drafts
        self.accepted = self.accepted * fade + outcome.num_accepted
        self.judged = self.judged * fade + outcome.num_accepted + rejected


class AdaptiveController:
    """Chooses drafts by measured times and acceptance."""

    def __init__(self) -> None:
        self.times = StepTimes()
        self._records: dict[int, _Record] = {}
        self._all = _Record()
        self._draft_times: deque[float] = deque(maxlen=7)  # seconds of proposing a token of depth
        self._depth = 0  # the longest draft asked for in this step
        self._credit = 0.0  # seconds that probes may still cost
        self._probe_cost = 0.0  # seconds that the next one is expected to cost
        self._probed: int | None = None  # the sequence that this step probes
        self._plain_since = 0  # choices since a plain step was last asked for
        self._rests = 0  # steps that stay without drafts ...
        self._num_limits = 0  # ... while the number of sequences stays this

    def choose(self, limits: Sequence[tuple[int, int]], num_rows: int) -> list[int]:
        """See `Controller`."""
        self._probed = None
        self._plain_since += 1
        chosen = [0] * len(limits)
        if self._rests and len(limits) == self._num_limits:
            self._rests -= 1
            return chosen
        if limits and not self._wants_plain_step(num_rows):
            chosen = self._best(limits, num_rows)
            self._probe(limits, num_rows, chosen)
            self._rests = 0 if any(chosen) else RESTS
            self._num_limits = len(limits)
        self._depth = max(chosen, default=0)
        return chosen

    def learn(
        self, seconds: float | None, proposing: float, num_decodes: int, outcomes: Sequence[Outcome]
    ) -> None:
        """See `Controller`."""
        num_drafts = sum(outcome.num_drafts for outcome in outcomes)
        if seconds is not None:
            self.times.add(num_decodes + num_drafts, seconds - proposing)
            most = max(MAX_CREDIT * seconds, self._probe_cost)
            self._credit = min(self._credit + PROBE_SHARE * seconds, most)
        if num_drafts and self._depth:
            self._draft_times.append(proposing / self._depth)
        if self._probed is not None:
            self._credit -= proposing
        for outcome in outcomes:
            self._all.learn(outcome, FADE_ALL)
            record = self._records.get(outcome.seq_id)
            if record is not None:  # else the sequence has ended with this step
                record.learn(outcome, FADE)
                record.num_idle = 0
            if outcome.seq_id == self._probed:
                self._credit -= self._extra(num_decodes, num_drafts)
        self._depth = 0

    def forget(self, seq_id: int) -> None:
        """See `Controller`."""
        self._records.pop(seq_id, None)

    def rate(self, seq_id: int) -> float:
        """The chance that the sequence's next draft is accepted."""
        return self._record(seq_id).rate(self._all.rate(PRIOR))

    @property
    def _draft_time(self) -> float:
        return statistics.median(self._draft_times) if self._draft_times else 0.0

    def _record(self, seq_id: int) -> _Record:
        record = self._records.get(seq_id)
        if record is None:
            record = self._records[seq_id] = _Record()
        return record

    def _wants_plain_step(self, num_rows: int) -> bool:
        """Whether a step without drafts is due, since it is what all others are compared with."""
        age = self.times.age(num_rows)
        if not self.times.largest:
            return True
        if (age is None or age > REFRESH) and self._plain_since > REFRESH:
            self._plain_since = 0
            return True
        return False

    def _best(self, limits: Sequence[tuple[int, int]], num_rows: int) -> list[int]:
        """The drafts that give the most tokens per second; none where that is no real gain."""
        offers: list[tuple[float, int, int]] = []  # (-expected tokens, depth, index)
        for index, (seq_id, limit) in enumerate(limits):
            rate = value = self.rate(seq_id)
            for depth in range(1, limit + 1):
                if value < MIN_VALUE:
                    break
                offers.append((-value, depth, index))
                value *= rate
            if offers and self._all.judged < FIRST:
                break  # a guess for all of them would cost all of them
        offers.sort()
        room = max(2 * self.times.largest, PROBE + 1) - num_rows  # beyond, times are guesses
        tokens, depth, num_best = float(num_rows), 0, 0
        draft_time = self._draft_time
        best = MARGIN * tokens / self.times.estimate(num_rows)
        for count, offer in enumerate(offers[: max(0, room)], 1):
            tokens -= offer[0]
            depth = max(depth, offer[1])
            seconds = self.times.estimate(num_rows + count) + depth * draft_time
            if tokens / seconds > best:
                best, num_best = tokens / seconds, count
        chosen = [0] * len(limits)
        for _, _, index in offers[:num_best]:
            chosen[index] += 1
        return chosen

    def _probe(self, limits: Sequence[tuple[int, int]], num_rows: int, chosen: list[int]) -> None:
        """Give drafts to the sequence that has gone without for the longest, if that is paid for.

        Where the proposer then has nothing to propose, it has cost nothing.
        """
        longest, found = PROBE_AFTER - 1, -1
        for index, (seq_id, _) in enumerate(limits):
            record = self._record(seq_id)
            record.num_idle = 0 if chosen[index] else record.num_idle + 1
            if record.num_idle > longest:
                longest, found = record.num_idle, index
        if found < 0:
            return
        self._probe_cost = self._extra(num_rows, sum(chosen) + PROBE) + PROBE * self._draft_time
        if self._probe_cost > self._credit:
            return
        seq_id, limit = limits[found]
        chosen[found] = min(PROBE, limit)
        self._record(seq_id).num_idle = 0
        self._probed = seq_id

    def _extra(self, num_rows: int, num_drafts: int) -> float:
        """Seconds that the last PROBE of so many drafts add to a step."""
        estimate = self.times.estimate
        without = estimate(num_rows + max(0, num_drafts - PROBE))
        return max(LEAST_COST * PROBE * without, estimate(num_rows + num_drafts) - without)
