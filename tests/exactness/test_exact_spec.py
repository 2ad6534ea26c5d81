"""Drafts never change a bit: every proposer, one to eight drafts, against each request alone
without drafts. Coupled; greedy requests under rejection too.

SPEC-05, SPEC-07, SPEC-08: penalties, truncation, logprobs, several choices, seeds.
"""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import pytest
from exact_models import MAX_LEN, SHAPES, VOCAB, WEIGHTS, decoder_of, make_runner
from serving import Results, differences, serve
from test_exact_engine import alone, finished

from tinyserve.config import SchedulerConfig
from tinyserve.engine.core import EngineCore
from tinyserve.engine.draft_model import DraftLimits, DraftModelProposer
from tinyserve.engine.drawing import draw_by_rejection
from tinyserve.engine.request import EngineRequest
from tinyserve.engine.runner import ModelRunner
from tinyserve.engine.sampling import SamplingParams
from tinyserve.kernels.native import NativeBackend
from tinyserve.kv.manager import KVManager
from tinyserve.models.synthetic import synthetic_checkpoint
from tinyserve.models.weights import load_decoder
from tinyserve.spec.controller import AdaptiveController
from tinyserve.spec.drafter import Drafter
from tinyserve.spec.ngram import NgramProposer
from tinyserve.spec.oracle import OracleProposer, RandomProposer
from tinyserve.spec.suffix import SuffixProposer

pytestmark = pytest.mark.usefixtures("native_kernels")

POOL = 208  # tokens; the longest request needs 170
METHODS = ("ngram", "suffix", "oracle", "random", "same model", "other model")
CELLS = [("u4", "f16", "grouped"), ("int8", "int8", "windowed"), ("f32", "f32", "grouped")]
# Every proposer with every number of drafts; the models take turns.
CASES = [
    (method, most, *CELLS[(i + most) % 3])
    for i, method in enumerate(METHODS)
    for most in range(1, 9)
]


def make_requests(temperatures: tuple[float, ...] = (0.0, 0.0, 0.8, 1.3)) -> list[EngineRequest]:
    """Texts that repeat themselves, since random models seldom do; every sampling setting."""
    rand = random.Random(4)
    stem = [rand.randrange(VOCAB) for _ in range(70)]
    requests = []
    for index in range(14):
        word = [rand.randrange(VOCAB) for _ in range(rand.randint(1, 6))]
        prompt = stem[: rand.choice((0, 33, 70))] + word * rand.randint(2, 6)
        params: dict[str, Any] = {"temperature": rand.choice(temperatures), "seed": index}
        params["n"] = rand.choice((1, 1, 1, 3))
        params["max_tokens"] = rand.randint(10, 60)
        options: list[dict[str, Any]] = [
            {"logprobs": 3},
            {"repetition_penalty": 1.3},
            {"repetition_penalty": 0.7},  # makes it repeat itself
            {"presence_penalty": -1.5, "frequency_penalty": -0.5},
            {"top_p": 0.8},
            {"top_k": 5},
            {"min_p": 0.1},
            {"logit_bias": {word[0]: 6.0, rand.randrange(VOCAB): -100.0}},
            {"allowed_token_ids": tuple(rand.sample(range(VOCAB), 12))},
            {"min_tokens": 8, "stop_token_ids": tuple(rand.sample(range(VOCAB), 20))},
            {"prompt_logprobs": 1},
        ]
        for option in rand.sample(options, rand.randint(0, 3)):
            params.update(option)
        requests.append(
            EngineRequest(
                request_id=f"r{index}",
                prompt_token_ids=prompt,
                params=SamplingParams(**params),
                bad_words_ids=((word[-1], word[0]),) if index % 4 == 3 else (),
                priority=index % 2,
                arrival=float(index),
            )
        )
    return requests


@cache
def truth(weights: str, kv_dtype: str, shape: str) -> Results:
    return alone(weights, kv_dtype, shape, make_requests())


def draft_model(
    weights: str, shape: str, most: int, *, seed: int | None, wants_probs: bool = False
) -> DraftModelProposer:
    """A draft model: the target's own weights, or others of the same shape; few blocks, so that
    shadows are evicted.
    """
    decoder = decoder_of(weights, shape)
    if seed is not None:
        checkpoint = synthetic_checkpoint(seed, **SHAPES[shape])
        decoder = load_decoder(checkpoint, NativeBackend(1), WEIGHTS[weights], MAX_LEN)
    runner = make_runner(decoder, "f32", num_blocks=24, block_size=16, max_tokens=64)
    limits = DraftLimits(VOCAB, VOCAB, MAX_LEN, 64)
    return DraftModelProposer(runner, KVManager(24, 16), limits, most, wants_probs=wants_probs)


def make_proposer(method: str, most: int, weights: str, shape: str, want: Results) -> Any:
    if method == "ngram":
        return NgramProposer(most, min_n=1, max_n=3)
    if method == "suffix":
        return SuffixProposer(most)
    if method == "oracle":
        return OracleProposer(finished(want), VOCAB, most, accuracy=0.8)
    if method == "random":
        return RandomProposer(VOCAB, most)
    return draft_model(weights, shape, most, seed=None if method == "same model" else 99)


def make_core(runner: ModelRunner, block_size: int, drafter: Drafter, **options: Any) -> EngineCore:
    kv = KVManager(POOL // block_size, block_size, num_swap_blocks=POOL // 4 // block_size)
    scheduler = SchedulerConfig(
        max_model_len=MAX_LEN, max_num_seqs=8, max_num_batched_tokens=48, policy="priority"
    )
    return EngineCore(runner, kv, scheduler, vocab_size=VOCAB, drafter=drafter, **options)


def serve_drafted(
    method: str, most: int, cell: tuple[str, str, str], want: Results, **options: Any
) -> tuple[Results, EngineCore]:
    weights, kv_dtype, shape = cell
    rand = random.Random(f"{method} {most}")
    block_size = rand.choice((4, 8, 16))
    runner = make_runner(
        decoder_of(weights, shape),
        kv_dtype,
        threads=rand.randint(1, 2),
        num_blocks=POOL // block_size,
        block_size=block_size,
        num_swap_blocks=POOL // 4 // block_size,
        max_tokens=48,
    )
    controller = AdaptiveController() if most == 4 else None  # whatever it chooses
    proposer = make_proposer(method, most, weights, shape, want)
    core = make_core(runner, block_size, Drafter(proposer, controller), **options)
    temperatures = (0.0,) if options else (0.0, 0.0, 0.8, 1.3)
    results = serve(core, make_requests(temperatures), rand)
    if isinstance(proposer, DraftModelProposer):
        proposer.check()
        assert not proposer._shadows
    return results, core


@pytest.mark.parametrize(("method", "most", "weights", "kv_dtype", "shape"), CASES)
def test_outputs_are_bit_identical_with_drafts(
    method: str, most: int, weights: str, kv_dtype: str, shape: str
) -> None:
    want = truth(weights, kv_dtype, shape)
    results, core = serve_drafted(method, most, (weights, kv_dtype, shape), want)
    assert differences(results, want) == []
    stats = core.stats()
    assert stats.num_preemptions_swap + stats.num_preemptions_recompute > 0
    assert stats.num_prefix_hit_tokens > 0
    if most != 4:  # else the controller may have had none
        assert stats.num_draft_tokens > 0
    if most != 4 and method != "random":
        assert stats.num_accepted_tokens > 0


@pytest.mark.parametrize("method", METHODS)
def test_greedy_outputs_are_bit_identical_under_rejection(method: str) -> None:
    cell = CELLS[0]
    want = alone(*cell, make_requests((0.0,)))
    results, core = serve_drafted(method, 5, cell, want, draw=draw_by_rejection)
    assert differences(results, want) == []
    assert core.stats().num_draft_tokens > 0


def test_spec_05_a_draft_model_equal_to_the_target_is_always_right() -> None:
    """Greedy and sampled: both see the same noise. Ends of requests aside, every draft holds."""
    runner = make_runner(decoder_of("u4", "grouped"), "f32", max_tokens=64)
    proposer = draft_model("u4", "grouped", 4, seed=None)
    kv = KVManager(MAX_LEN // 16, 16)
    scheduler = SchedulerConfig(max_model_len=MAX_LEN, max_num_batched_tokens=64)
    core = EngineCore(runner, kv, scheduler, vocab_size=VOCAB, drafter=Drafter(proposer))
    for index, options in enumerate(({"temperature": 0.0}, {"temperature": 1.0, "top_p": 0.9})):
        params = SamplingParams(max_tokens=61, seed=3, repetition_penalty=1.2, **options)
        request = EngineRequest(
            request_id=f"r{index}", prompt_token_ids=[5, 9, 200, 31], params=params
        )
        core.add_request(request)
    while core.has_work():
        core.step()
    stats = core.stats()
    assert stats.num_accepted_tokens == stats.num_draft_tokens > 90
