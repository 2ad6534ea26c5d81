"""The engine's own schedules: every row of logits, and every answer, as if each ran alone.

Scheduler, KV manager and runner together, in a pool that is too small, with chunked prompts, prefix
hits, forks, drafts, swaps and recomputation.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from exact_models import MAX_LEN, VOCAB, Truth, decoder_of, make_runner, truth_of
from helpers.native import exact_variants
from serving import HalfOracle, RecordingRunner, Results, differences, make_core, serve

from tinyserve.engine.request import EngineRequest
from tinyserve.engine.sampling import SamplingParams

pytestmark = pytest.mark.usefixtures("native_kernels")

POOL = 384  # tokens; the longest request needs 365

# weights, KV, model, tokens a step, block size, threads, drafts
CELLS = [
    ("f32", "f32", "grouped", 7, 4, 2, 0),
    ("bf16", "bf16", "windowed", 16, 16, 3, 3),
    ("bf16x2", "f16", "grouped", 64, 8, 2, 5),
    ("int8", "f16", "windowed", 64, 8, 4, 5),
    ("u4", "int8", "grouped", 64, 16, 2, 5),
    ("u4", "f16", "windowed", 512, 8, 1, 1),
    ("f32", "int8", "grouped", 16, 8, 2, 4),
]


def make_requests(rand: random.Random) -> list[EngineRequest]:
    """Greedy and seeded, one to three choices, prompts that share their beginnings."""
    stem = [rand.randrange(VOCAB) for _ in range(280)]
    requests = []
    for index in range(18):
        shared = stem[: 270 if index % 9 == 0 else rand.choice((0, 8, 33, 60, 60))]
        prompt = shared + [rand.randrange(VOCAB) for _ in range(rand.randint(1, 25))]
        params: dict[str, Any] = {"temperature": rand.choice((0.0, 0.8, 1.5)), "seed": index}
        params["n"] = rand.choice((1, 1, 1, 2, 3))
        params["max_tokens"] = rand.randint(15, 70)
        params["logprobs"] = rand.choice((None, 0, 3))
        params["prompt_logprobs"] = rand.choice((None, None, None, 1))
        params["top_p"] = rand.choice((1.0, 0.9))
        params["repetition_penalty"] = rand.choice((1.0, 1.2))
        request = EngineRequest(
            request_id=f"r{index}", prompt_token_ids=prompt, params=SamplingParams(**params)
        )
        requests.append(request)
    return requests


def alone(weights: str, kv_dtype: str, shape: str, requests: list[EngineRequest]) -> Results:
    """Each request by itself: one thread, no cache, its prompt in one step."""
    runner = make_runner(
        decoder_of(weights, shape), kv_dtype, bf16x2=weights == "bf16x2", num_blocks=120
    )
    core = make_core(
        runner,
        blocks=120,
        block_size=16,
        enable_prefix_caching=False,
        max_num_batched_tokens=MAX_LEN,
    )
    return {name: result for r in requests for name, result in serve(core, [r]).items()}


def finished(results: Results) -> Iterator[list[int]]:
    for result in results.values():
        for choice in result.outputs:
            yield [*result.prompt_token_ids, *choice.token_ids]


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_the_engine_gives_the_bits_of_each_request_alone(cell: tuple[Any, ...]) -> None:
    weights, kv_dtype, shape, budget, block_size, threads, max_drafts = cell
    rand = random.Random(repr(cell))
    requests = make_requests(rand)
    want = alone(weights, kv_dtype, shape, requests)
    truth: Truth = truth_of(weights, shape, kv_dtype)
    for variant in exact_variants():
        runner = make_runner(
            decoder_of(weights, shape),
            kv_dtype,
            threads=threads,
            variant=variant,
            bf16x2=weights == "bf16x2",
            num_blocks=POOL // block_size,
            block_size=block_size,
            num_swap_blocks=POOL // 3 // block_size,
            max_tokens=budget,
        )
        recorder = RecordingRunner(runner)
        core = make_core(
            recorder,
            blocks=POOL // block_size,
            block_size=block_size,
            num_swap_blocks=POOL // 3 // block_size,
            proposer=HalfOracle(finished(want), rand, VOCAB, max_drafts) if max_drafts else None,
            max_num_seqs=33,
            max_num_batched_tokens=budget,
            chunked_prefill_size=budget,
        )
        recorder.core = core
        results = serve(core, requests, rand)
        assert differences(results, want) == []
        assert recorder.wrong_rows(list(finished(want)), truth) == []
        stats = core.stats()
        assert stats.num_preemptions_swap + stats.num_preemptions_recompute > 0
        assert stats.num_prefix_hit_tokens > 0
        assert stats.num_cow_copies > 0
        assert (stats.num_accepted_tokens > 0) == (max_drafts > 0)
        assert len(recorder.rows) > 300
