"""Engines and requests drawn at random, each request as if it ran alone: models of any shape, pools
of any size, every policy and way to draft, with embeddings, grammars, salts and aborts among them.

What fails is one seed: `build_case(seed)` makes it again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pytest
from test_exact_requests import WORDS, params_of

from tinyserve.config import TinyServeConfig
from tinyserve.engine import build, speculation
from tinyserve.engine.build import Engine, build_engine
from tinyserve.engine.core import EngineCore
from tinyserve.engine.outputs import Choice, Output
from tinyserve.engine.request import EngineRequest
from tinyserve.models.checkpoint import Checkpoint
from tinyserve.models.synthetic import synthetic_checkpoint

pytestmark = pytest.mark.usefixtures("native_kernels")

GRAMMARS: list[dict[str, Any]] = [
    {"regex": "[a-z ]{3,30}"},
    {"choice": ["yes", "no", "the river of time"]},
    {"json": {"type": "object", "properties": {"a": {"enum": ["café", "日"]}}, "required": ["a"]}},
]
Maker = Callable[[Engine], EngineRequest]


@dataclass(frozen=True)
class Case:
    """One draw. `requests` make the same request for any engine."""

    target: Checkpoint
    draft: Checkpoint
    stressed: TinyServeConfig
    alone: TinyServeConfig
    requests: list[Maker]
    abort_share: float  # chance of an abort before a step


def draw_shape(rand: random.Random) -> dict[str, Any]:
    num_heads, num_kv_heads = rand.choice([(4, 2), (1, 1), (8, 1), (4, 4), (6, 2), (6, 3)])
    num_layers = rand.choice([1, 2, 3])
    shape = {
        "architecture": rand.choice(["Llama", "Qwen2", "Qwen3", "Mistral"]) + "ForCausalLM",
        "vocab_size": rand.choice([300, 512, 777]),
        "hidden_size": rand.choice([32, 40, 64, 96]),
        "intermediate_size": rand.choice([32, 50, 96, 128]),
        "num_layers": num_layers,
        "num_heads": num_heads,
        "num_kv_heads": num_kv_heads,
        "head_dim": rand.choice([8, 16, 24, 64, 80, 96, 128, 256]),
        "tie_word_embeddings": rand.random() < 0.3,
    }
    if rand.random() < 0.3:
        shape["windows"] = tuple(rand.choice([None, 8, 20, 300]) for _ in range(num_layers))
    return shape


def draw_config(rand: random.Random, model: dict[str, Any], length: int) -> TinyServeConfig:
    """A pool that hardly holds one sequence of `length` tokens."""
    block_size = rand.choice([1, 2, 4, 8, 16, 32])
    num_blocks = -(-length // block_size) + rand.choice([0, 1, 3, 10])
    spec: dict[str, Any] = rand.choice(
        [
            {"enabled": False},
            {"method": "ngram", "prompt_lookup_min": 1, "num_speculative_tokens": 8},
            {"method": "suffix", "num_speculative_tokens": 16},
            {"draft_model": "synthetic", "num_speculative_tokens": 3},
        ]
    )
    sections: dict[str, Any] = {
        "model": {**model, "threads": rand.choice([1, 2])},
        "cache": {
            "block_size": block_size,
            "num_blocks": num_blocks,
            "num_swap_blocks": rand.choice([0, num_blocks // 2, 2 * num_blocks]),
            "enable_prefix_caching": rand.random() < 0.8,
        },
        "scheduler": {
            "max_num_seqs": rand.choice([1, 2, 5, 24]),
            "max_num_batched_tokens": rand.choice([1, 2, 16, 48, 256]),
            "max_model_len": length,
            "policy": rand.choice(["continuous", "priority", "fair", "static"]),
            "chunked_prefill_size": rand.choice([1, 8, 96]),
            "enable_chunked_prefill": rand.random() < 0.85,
        },
        "spec": {**spec, "adaptive": rand.random() < 0.3},
    }
    return TinyServeConfig.from_dict(sections)


def draw_requests(rand: random.Random, count: int, vocab_size: int, length: int) -> list[Maker]:
    """Prompts come again, or go on from earlier ones; their lengths fit blocks, or just do not."""
    prompts: list[str | list[int]] = []
    makers = []
    for index in range(count):
        prompt: str | list[int] = " ".join(rand.choice(WORDS) for _ in range(rand.choice((1, 9))))
        if rand.random() < 0.4:
            size = rand.choice((1, 16, 17, 32, 33))
            prompt = [rand.randrange(vocab_size) for _ in range(size)]
        if prompts and rand.random() < 0.3:
            earlier = rand.choice(prompts)
            prompt = earlier if isinstance(earlier, str) else [*earlier, *rand.choice([[], [5, 6]])]
        prompts.append(prompt)
        extra = {
            "priority": rand.choice((0, 0, 1, 2)),
            "arrival": float(index),
            "cache_salt": rand.choice((None, None, "x", "y")),
            "client": rand.choice("ab"),
        }
        fields = params_of(rand, 40)
        if rand.random() < 0.2:
            fields["structured_outputs"] = rand.choice(GRAMMARS)
        if rand.random() < 0.1:
            fields["max_tokens"] = length  # all that is left of the context
        pooling = rand.choice(("last", "mean")) if rand.random() < 0.1 else None
        makers.append(maker(f"r{index}", prompt, fields, pooling, length, extra))
    return makers


def maker(
    request_id: str,
    prompt: str | list[int],
    fields: dict[str, Any],
    pooling: str | None,
    length: int,
    extra: dict[str, Any],
) -> Maker:
    def make(engine: Engine) -> EngineRequest:
        intake = engine.intake
        ids = intake.encode(prompt)[: length - 1]
        if pooling is not None:
            return intake.embedding_request(request_id, ids, pooling=pooling, **extra)
        most = min(fields["max_tokens"], length - len(ids))
        least = min(fields.get("min_tokens", 0), most)
        params = intake.params({**fields, "max_tokens": most, "min_tokens": least})
        return intake.request(request_id, ids, params, **extra)

    return make


def build_case(seed: int) -> Case:
    rand = random.Random(seed)
    shape, length = draw_shape(rand), rand.choice([64, 100, 180])
    model = {
        "name": "synthetic",
        "dtype": rand.choice(["f32", "bf16", "f16"]),
        "quantization": rand.choice([None, "int8", "int4"]),
        "kv_cache_dtype": rand.choice(["f32", "f16", "bf16", "int8"]),
    }
    alone: dict[str, Any] = {
        "model": {**model, "threads": 1},
        "cache": {"block_size": 16, "num_blocks": 16, "enable_prefix_caching": False},
        "scheduler": {"max_num_batched_tokens": 1024, "max_model_len": 256},
    }
    return Case(
        target=synthetic_checkpoint(seed, **shape),
        draft=synthetic_checkpoint(seed + rand.choice([0, 1]), **shape),
        stressed=draw_config(rand, model, length),
        alone=TinyServeConfig.from_dict(alone),
        requests=draw_requests(rand, 24, shape["vocab_size"], length),
        abort_share=rand.choice([0.0, 0.02, 0.1]),
    )


def serve(
    core: EngineCore, requests: Iterable[EngineRequest], rand: random.Random, abort_share: float
) -> dict[str, Output | str]:
    """What came of each request that was not aborted: its outputs, or what it failed of."""
    waiting = list(requests)
    results: dict[str, Output | str] = {}
    while waiting or core.has_work():
        count = rand.choice((0, 0, 1, 2, 5))
        for request in waiting[:count]:
            core.add_request(request)
            choices = [Choice(index) for index in range(request.params.n)]
            results[request.request_id] = Output(None, list(request.prompt_token_ids), choices)
        del waiting[:count]
        if core._jobs and rand.random() < abort_share:
            victim = rand.choice(list(core._jobs))
            core.abort(victim)
            del results[victim]
        for output in core.step():
            result = results[output.request_id]
            if output.error is not None:
                results[output.request_id] = str(output.error)
            elif isinstance(result, Output):
                assert result.outputs[output.index].finish_reason is None
                result.add(output)
        core._kv.check()
        core.snapshot()
    return results


def visible(result: Output | str) -> Any:
    """What a user sees of it, cached tokens apart."""
    if isinstance(result, str):
        return result
    embedding = None if result.embedding is None else result.embedding.tobytes()
    return result.outputs, result.prompt_logprobs, embedding


def check(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    case = build_case(seed)
    monkeypatch.setattr(build, "load_checkpoint", lambda *_, **__: case.target)
    monkeypatch.setattr(speculation, "load_checkpoint", lambda *_, **__: case.draft)
    stressed, alone = build_engine(case.stressed), build_engine(case.alone)
    requests = [make(stressed) for make in case.requests]
    results = serve(stressed.core, requests, random.Random(seed), case.abort_share)
    stats = stressed.core.stats()
    assert stats.num_free_blocks + stats.num_cached_blocks == stats.num_total_blocks
    assert stats.num_free_swap_blocks == stats.num_total_swap_blocks
    for make in case.requests:
        request = make(alone)
        if request.request_id in results:
            truth = serve(alone.core, [request], random.Random(0), 0.0)
            name = request.request_id
            assert visible(results[name]) == visible(truth[name]), f"seed {seed}, {request}"


@pytest.mark.parametrize("seed", range(12))
def test_a_random_engine(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    check(seed, monkeypatch)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_many_random_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(100, 300):
        check(seed, monkeypatch)
