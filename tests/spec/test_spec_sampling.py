"""Rejection sampling through the whole engine: three tokens of a tiny model, many times over,
against the law that the model's own probabilities give.

Pearson's chi-square rejecting beyond 4.0 standard deviations, fixed seeds: a false alarm in about
32,000 fresh seeds for each of 7 tests.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tinyserve.config import ModelOptions, SchedulerConfig
from tinyserve.engine.core import EngineCore
from tinyserve.engine.draft_model import DraftLimits, DraftModelProposer
from tinyserve.engine.drawing import draw_by_rejection
from tinyserve.engine.plan import Chunk, StepPlan
from tinyserve.engine.request import EngineRequest
from tinyserve.engine.runner import ModelRunner
from tinyserve.engine.sampling import SampleRow, SamplingParams
from tinyserve.kernels.ops import KVLayout
from tinyserve.kernels.select import choose_backend, make_backend
from tinyserve.kv.manager import KVManager
from tinyserve.kv.pool import KVPool
from tinyserve.models.synthetic import synthetic_checkpoint
from tinyserve.models.weights import load_decoder
from tinyserve.spec.drafter import Drafter
from tinyserve.spec.oracle import OracleProposer, RandomProposer

VOCAB, LENGTH, TIMES, Z = 6, 3, 2000, 4.0
PROMPT = [1, 5, 2, 2, 0, 3]
SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_layers": 1,
    "num_heads": 2,
    "num_kv_heads": 1,
    "head_dim": 16,
}
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {"temperature": 1.0},
    "truncated": {"temperature": 1.3, "top_k": 4, "top_p": 0.9},
    "penalised": {"temperature": 0.9, "repetition_penalty": 1.5, "presence_penalty": 0.5},
    "masked": {"temperature": 1.0, "allowed_token_ids": (0, 2, 3, 4), "min_p": 0.05},
}


def make_runner(seed: int) -> ModelRunner:
    checkpoint = synthetic_checkpoint(seed, **SHAPE)
    backend = make_backend(choose_backend(1))
    decoder = load_decoder(checkpoint, backend, ModelOptions(dtype="f32"), 64)
    config = decoder.config
    layout = KVLayout(64, 4, config.num_layers, config.num_kv_heads, config.head_dim, "f32")
    return ModelRunner(decoder, KVPool(layout, 0), backend, 256)


def make_proposer(name: str) -> Any:
    if name == "random":
        return RandomProposer(VOCAB, 2)
    if name == "constant":
        return OracleProposer([[*PROMPT, 2, 2, 2, 2]], VOCAB, 2)
    limits = DraftLimits(VOCAB, VOCAB, 64, 64)
    kv = KVManager(64, 4)
    return DraftModelProposer(make_runner(8), kv, limits, 2, wants_probs=name == "model with q")


def law(settings: dict[str, Any]) -> dict[tuple[int, ...], float]:
    """The probability of each answer, from the model's distribution after each beginning."""
    runner = make_runner(7)
    params = SamplingParams(**settings)
    probs: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(LENGTH):
        longer: dict[tuple[int, ...], float] = {}
        for begun, chance in probs.items():
            tokens = (*PROMPT, *begun)
            plan = StepPlan((Chunk(0, 0, tokens, tuple(range(-(-len(tokens) // 4))), 1),))
            row = SampleRow(0, params, 0, 0, len(tokens), PROMPT, begun, wants_probs=True)
            (drawn,) = runner.run(plan).sample([row])
            assert drawn.probs is not None
            for token in np.flatnonzero(drawn.probs):
                longer[(*begun, int(token))] = chance * float(drawn.probs[token])
        probs = longer
    return probs


def make_core(proposer: Any) -> EngineCore:
    scheduler = SchedulerConfig(max_num_seqs=16, max_num_batched_tokens=256, max_model_len=64)
    kv = KVManager(64, 4)
    drafter = Drafter(proposer)
    return EngineCore(
        make_runner(7), kv, scheduler, vocab_size=VOCAB, drafter=drafter, draw=draw_by_rejection
    )


def answers(settings: dict[str, Any], proposer: Any, first_seed: int) -> list[tuple[int, ...]]:
    """What TIMES requests with seeds of their own are answered."""
    core = make_core(proposer)
    got: dict[str, list[int]] = {}
    for index in range(TIMES):
        params = SamplingParams(max_tokens=LENGTH, seed=first_seed + index, logprobs=0, **settings)
        request = EngineRequest(
            request_id=str(index), prompt_token_ids=PROMPT, params=params, arrival=float(index)
        )
        core.add_request(request)
    while core.has_work():
        for output in core.step():
            assert output.error is None
            assert output.logprobs is not None
            assert [t.token_id for t in output.logprobs] == output.new_token_ids
            assert all(t.logprob is not None for t in output.logprobs)
            got.setdefault(output.request_id, []).extend(output.new_token_ids)
    stats = core.stats()
    assert 0 < stats.num_accepted_tokens < stats.num_draft_tokens
    return [tuple(tokens) for tokens in got.values()]


def chi_square(counts: Counter[tuple[int, ...]], probs: dict[tuple[int, ...], float]) -> float:
    """Pearson's statistic, in standard deviations beyond what is expected (Wilson, Hilferty)."""
    total = counts.total()
    assert not set(counts) - set(probs), "an answer of probability zero"
    cells = sorted((chance * total, counts[answer]) for answer, chance in probs.items())
    merged: list[tuple[float, int]] = []
    rest = (0.0, 0)
    for expected, count in cells:
        rest = rest[0] + expected, rest[1] + count
        if rest[0] >= 8:
            merged.append(rest)
            rest = (0.0, 0)
    merged[-1] = merged[-1][0] + rest[0], merged[-1][1] + rest[1]
    freedom = len(merged) - 1
    statistic = sum((count - expected) ** 2 / expected for expected, count in merged)
    spread = 2 / (9 * freedom)
    return ((statistic / freedom) ** (1 / 3) - 1 + spread) / math.sqrt(spread)


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        *itertools.product(["plain"], ["random", "constant", "model", "model with q"]),
        ("truncated", "model with q"),
        ("penalised", "random"),
        ("masked", "model with q"),
    ],
)
def test_answers_follow_the_law(settings: str, name: str) -> None:
    probs = law(SETTINGS[settings])
    assert sum(probs.values()) == pytest.approx(1, abs=1e-4)
    got = answers(SETTINGS[settings], make_proposer(name), 1000)
    assert chi_square(Counter(got), probs) < Z


def test_the_test_can_fail() -> None:
    """Answers at another temperature are found out."""
    probs = law({"temperature": 1.4})
    got: Sequence[tuple[int, ...]] = answers(SETTINGS["plain"], make_proposer("random"), 5)
    assert chi_square(Counter(got), probs) > Z


def test_con_15_where_no_token_is_left_behind_drafts_that_request_alone_ends() -> None:
    """There is no distribution then to settle a draft by."""
    core = make_core(make_proposer("constant"))
    params = SamplingParams(max_tokens=9, seed=1, allowed_token_ids=(2,))
    for request_id, bad_words_ids in (("ends", ((2, 2, 2),)), ("goes on", ())):
        core.add_request(
            EngineRequest(
                request_id=request_id,
                prompt_token_ids=PROMPT,
                params=params,
                bad_words_ids=bad_words_ids,
            )
        )
    got: dict[str, list[int]] = {}
    reasons = {}
    while core.has_work():
        for output in core.step():
            got.setdefault(output.request_id, []).extend(output.new_token_ids)
            reasons[output.request_id] = output.finish_reason
    assert got == {"ends": [2, 2], "goes on": [2] * 9}
    assert reasons == {"ends": "error", "goes on": "length"}
    assert core.stats().num_accepted_tokens > 0
