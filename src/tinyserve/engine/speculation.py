"""From `SpecConfig` to a `Drafter`: which proposer, with which limits, under which controller."""

from __future__ import annotations

from typing import Any

from tinyserve.config import SpecConfig
from tinyserve.engine.rejection import DrawRows, draw_by_rejection, draw_coupled
from tinyserve.spec.controller import AdaptiveController
from tinyserve.spec.drafter import Drafter
from tinyserve.spec.ngram import NgramProposer
from tinyserve.spec.proposer import Proposer
from tinyserve.spec.suffix import SuffixProposer


def make_drafter(spec: SpecConfig) -> Drafter | None:
    """The drafter that `spec` asks for; None where speculation is off."""
    if not spec.enabled:
        return None
    return Drafter(make_proposer(spec), AdaptiveController() if spec.adaptive else None)


def make_draw(spec: SpecConfig) -> DrawRows:
    """How the engine draws its tokens."""
    is_rejection = spec.enabled and spec.verification == "rejection"
    return draw_by_rejection if is_rejection else draw_coupled


def make_proposer(spec: SpecConfig) -> Proposer[Any]:
    """The proposer of `spec.method`."""
    most = spec.num_speculative_tokens
    if spec.method == "suffix":
        return SuffixProposer(most, max_past=spec.max_past_tokens)
    return NgramProposer(most, min_n=spec.prompt_lookup_min, max_n=spec.prompt_lookup_max)
