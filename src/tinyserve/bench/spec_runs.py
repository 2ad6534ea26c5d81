"""What is measured of speculation, and what one measurement gave: plain values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tinyserve.engine.core import EngineCore


@dataclass(frozen=True)
class Case:
    """One configuration that is measured against plain decoding."""

    workload: str
    proposer: str
    k: int
    temperature: float
    streams: int
    control: bool


@dataclass(frozen=True)
class Run:
    """What one measurement gave. `outputs`: the tokens of each stream."""

    outputs: tuple[tuple[int, ...], ...]
    num_tokens: int  # since every stream had its first
    seconds: float
    num_steps: int
    num_drafts: int
    num_accepted: int
    off_after: float | None  # see `switched_off`

    @property
    def rate(self) -> float:
        """Tokens a second, all streams together."""
        return self.num_tokens / self.seconds


def had_drafts(core: EngineCore) -> bool:
    """Whether the latest step verified any."""
    return core.lap is not None and any(chunk.num_drafts for chunk in core.lap.step.plan.chunks)


def switched_off(steps: Sequence[tuple[float, bool]]) -> float | None:
    """The seconds after which one step in ten or fewer had drafts, for the rest of the run, which
    must be at least ten steps long. None if it never was so.

    `steps`: (seconds since the beginning, whether it had drafts) of each.
    """
    with_drafts, off = 0, None
    for index in range(len(steps) - 1, -1, -1):
        with_drafts += steps[index][1]
        if len(steps) - index >= 10 * max(1, with_drafts):
            off = steps[index - 1][0] if index else 0.0
    return off


def accepted_share(num_accepted: int, num_drafts: int) -> float | None:
    """The share of drafts that were accepted; None where there were none."""
    return num_accepted / num_drafts if num_drafts else None
