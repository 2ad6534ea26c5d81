"""Hundreds of mixed requests through a pool far too small for them, each as if it ran alone.

From the configuration to the text: tokenizer, stop strings, priorities and all.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from serving import differences, serve

from tinyserve.config import TinyServeConfig
from tinyserve.engine.build import Engine, build_engine
from tinyserve.engine.request import EngineRequest, EngineStats

pytestmark = pytest.mark.usefixtures("native_kernels")

WORDS = ["the", "a", "of", "time", "river,", "I", "do", "not", "3.14", "(yes)", "→", "né", "then;"]


def params_of(rand: random.Random, longest: int) -> dict[str, Any]:
    """Every feature of sampling and stopping now and then."""
    params: dict[str, Any] = {"seed": rand.randrange(2**40), "max_tokens": rand.randint(1, longest)}
    params["temperature"] = rand.choice((0.0, 0.7, 1.0, 1.4))
    options: list[dict[str, Any]] = [
        {"n": 2},
        {"n": 3, "temperature": 1.0},
        {"top_p": 0.8, "top_k": 40},
        {"min_p": 0.05},
        {"presence_penalty": 1.0, "frequency_penalty": 0.5},
        {"repetition_penalty": 1.3},
        {"logprobs": 5},
        {"logprobs": 0, "prompt_logprobs": 2},
        {"stop": ("e", "ing")},
        {"stop": (" t",), "include_stop_str_in_output": True},
        {"stop_token_ids": tuple(rand.sample(range(300), 20))},
        {"min_tokens": min(6, params["max_tokens"]), "stop": ("a",)},
        {"ignore_eos": True},
        {"logit_bias": {rand.randrange(300): 5.0, rand.randrange(300): -100.0}},
        {"allowed_token_ids": tuple(rand.sample(range(300), 50))},
        {"bad_words": ("the", "on")},
    ]
    for option in rand.sample(options, rand.randint(0, 3)):
        params.update(option)
    return params


def make_requests(
    engine: Engine, count: int, longest: int, rand: random.Random
) -> list[EngineRequest]:
    """Prompts of a word to many, often with a common beginning; three priorities."""
    shared = " ".join(rand.choice(WORDS) for _ in range(12))
    requests = []
    for index in range(count):
        text = " ".join(rand.choice(WORDS) for _ in range(rand.choice((1, 3, 10))))
        if rand.random() < 0.4:
            text = f"{shared} {text}"
        ids = engine.intake.encode(text)
        params = engine.intake.params(params_of(rand, longest))
        request = engine.intake.request(
            f"r{index}", ids, params, priority=rand.choice((0, 0, 1, 2)), arrival=float(index)
        )
        requests.append(request)
    return requests


def build(model: dict[str, Any], **sections: Any) -> Engine:
    return build_engine(TinyServeConfig.from_dict({"model": model, **sections}))


def tight(
    model: dict[str, Any],
    num_blocks: int,
    num_swap_blocks: int,
    policy: str,
    **sections: Any,
) -> Engine:
    return build(
        {**model, "threads": 2},
        cache={"block_size": 4, "num_blocks": num_blocks, "num_swap_blocks": num_swap_blocks},
        scheduler={
            "max_num_seqs": 24,
            "max_num_batched_tokens": 48,
            "max_model_len": num_blocks * 4,
            "policy": policy,
        },
        **sections,
    )


def roomy(model: dict[str, Any]) -> Engine:
    return build(
        {**model, "threads": 1},
        cache={"block_size": 16, "num_blocks": 64, "enable_prefix_caching": False},
        scheduler={"max_num_batched_tokens": 1024, "max_model_len": 512},
    )


def check(
    model: dict[str, Any], policy: str, *, count: int, longest: int, num_blocks: int
) -> EngineStats:
    """Serve `count` requests together in the tight pool, and each alone in the roomy one."""
    engine, alone = tight(model, num_blocks, num_blocks, policy), roomy(model)
    requests = make_requests(engine, count, longest, random.Random(5))
    again = make_requests(engine, count, longest, random.Random(5))
    results = serve(engine.core, requests, random.Random(5))
    truth = {}
    for request in again:
        truth.update(serve(alone.core, [request]))
    assert differences(results, truth) == []
    reasons = {choice.finish_reason for result in results.values() for choice in result.outputs}
    assert reasons == {"stop", "length"}
    stats = engine.core.stats()
    assert stats.num_free_blocks + stats.num_cached_blocks == stats.num_total_blocks
    return stats


@pytest.mark.parametrize(
    ("model", "policy"),
    [
        ({"name": "synthetic", "quantization": "int4", "kv_cache_dtype": "int8"}, "priority"),
        ({"name": "synthetic", "quantization": "int8"}, "continuous"),
    ],
    ids=["int4-priority", "int8-continuous"],
)
def test_two_hundred_requests_in_a_tiny_pool(model: dict[str, Any], policy: str) -> None:
    stats = check(model, policy, count=220, longest=80, num_blocks=100)
    assert stats.num_preemptions_swap > 50
    assert stats.num_preemptions_recompute > 50
    assert stats.num_preemptions_swap + stats.num_preemptions_recompute >= 200
    assert stats.num_prefix_hit_tokens > 0
    assert stats.num_cow_copies > 0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_default_model_in_a_tiny_pool() -> None:
    stats = check({"name": "default"}, "priority", count=240, longest=40, num_blocks=44)
    assert stats.num_preemptions_swap > 0
    assert stats.num_preemptions_recompute > 0
    assert stats.num_preemptions_swap + stats.num_preemptions_recompute >= 200
