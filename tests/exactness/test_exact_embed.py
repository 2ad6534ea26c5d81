"""Embeddings, bit for bit: as if each prompt were alone, whatever the chunks, the company, the
cache, the pool and the threads.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from exact_models import MAX_LEN, VOCAB, decoder_of, make_runner
from serving import make_core

from tinyserve.engine.core import EngineCore
from tinyserve.engine.request import EngineRequest, Pooling
from tinyserve.engine.sampling import SamplingParams

pytestmark = pytest.mark.usefixtures("native_kernels")

POOL = 416  # tokens

# weights, KV, model, tokens a step, block size, threads, host blocks
CELLS = [
    ("f32", "f32", "grouped", 7, 4, 2, 0),
    ("bf16", "bf16", "windowed", 16, 16, 3, 8),
    ("int8", "f16", "windowed", 64, 8, 4, 0),
    ("u4", "int8", "grouped", 64, 16, 2, 16),
    ("u4", "f16", "windowed", 512, 8, 1, 4),
]


def make_requests(rand: random.Random) -> list[EngineRequest]:
    """Embeddings among completions; prompts share their beginnings and priorities differ."""
    stem = [rand.randrange(VOCAB) for _ in range(280)]
    requests = []
    for index in range(24):
        shared = stem[: 270 if index % 9 == 0 else rand.choice((0, 8, 33, 60, 60))]
        prompt = shared + [rand.randrange(VOCAB) for _ in range(rand.randint(1, 70))]
        pooling: Pooling | None = rand.choice(("last", "mean", None))
        max_tokens = rand.randint(30, 60) if pooling is None else 0
        requests.append(
            EngineRequest(
                request_id=f"r{index}",
                prompt_token_ids=prompt,
                params=SamplingParams(temperature=0, max_tokens=max_tokens),
                priority=rand.randint(-3, 3),
                pooling=pooling,
            )
        )
    return requests


def embeddings(
    core: EngineCore, requests: list[EngineRequest], rand: Any = None
) -> dict[str, bytes]:
    """The bits of each embedding. With `rand`, requests come by and by."""
    waiting, found = list(requests), {}
    while waiting or core.has_work():
        count = len(waiting) if rand is None else rand.choice((0, 1, 2, 5))
        for request in waiting[:count]:
            core.add_request(request)
        del waiting[:count]
        for output in core.step():
            assert output.error is None
            if output.embedding is not None:
                assert output.embedding.dtype == np.float32
                found[output.request_id] = output.embedding.tobytes()
    return found


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_embeddings_have_the_bits_of_each_prompt_alone(cell: tuple[Any, ...]) -> None:
    weights, kv_dtype, shape, budget, block_size, threads, num_swap_blocks = cell
    rand = random.Random(repr(cell))
    requests = make_requests(rand)
    decoder = decoder_of(weights, shape)
    truth: dict[str, bytes] = {}
    for request in requests:
        runner = make_runner(decoder, kv_dtype, num_blocks=MAX_LEN // 16)
        core = make_core(
            runner,
            blocks=MAX_LEN // 16,
            block_size=16,
            enable_prefix_caching=False,
            max_num_batched_tokens=MAX_LEN,
        )
        truth |= embeddings(core, [request])
    assert set(truth) == {r.request_id for r in requests if r.pooling is not None}
    assert len(set(truth.values())) == len(truth)

    blocks = POOL // block_size
    runner = make_runner(
        decoder,
        kv_dtype,
        threads=threads,
        num_blocks=blocks,
        block_size=block_size,
        num_swap_blocks=num_swap_blocks,
    )
    core = make_core(
        runner,
        blocks=blocks,
        block_size=block_size,
        num_swap_blocks=num_swap_blocks,
        max_num_batched_tokens=budget,
        chunked_prefill_size=budget,
        max_num_seqs=6,
        policy="priority",
    )
    got = embeddings(core, requests, rand)
    assert [name for name in truth if got[name] != truth[name]] == []
    again = embeddings(core, requests, rand)  # what can be is now in the prefix cache
    assert [name for name in truth if again[name] != truth[name]] == []
    stats = core.stats()
    assert stats.num_prefix_hit_tokens > 0
    assert stats.num_preemptions_swap + stats.num_preemptions_recompute > 0
