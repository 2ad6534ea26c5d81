"""`engine_view`: the engine's state as the JSON of `GET /engine/state`.

Joins a snapshot of the engine with what waits outside it. Shows no prompt, no output and no key.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tinyserve
from tinyserve.engine.build import Engine
from tinyserve.engine.request import EngineRequest, EngineStats
from tinyserve.engine.runner import ModelRunner
from tinyserve.engine.snapshot import EngineSnapshot, SequenceState
from tinyserve.kernels.select import choose_backend
from tinyserve.models.default_model import chat_sampling
from tinyserve.server.observe.histogram import Window
from tinyserve.server.observe.metrics import Metrics

MAX_LISTED = 200
MAX_LABEL = 32  # characters
FREE, CACHED, UNLISTED = -1, -2, -3  # owners of a block that are not a listed request
ORDER = {"running": 0, "swapped": 1, "waiting": 2}


def static_view(engine: Engine, model: str) -> dict[str, Any]:
    """What stays the same as long as the server runs."""
    backend = choose_backend(engine.config.model.threads)
    cache, scheduler = engine.config.cache, engine.config.scheduler
    return {
        "model": model,
        "version": tinyserve.__version__,
        "fingerprint": engine.fingerprint,
        "kernels": backend.variant,
        "threads": backend.threads,
        "settings": {
            "max_num_seqs": scheduler.max_num_seqs,
            "max_num_batched_tokens": scheduler.max_num_batched_tokens,
            "max_model_len": scheduler.max_model_len,
            "block_size": cache.block_size,
            "policy": scheduler.policy,
            "kv_cache_dtype": kv_cache_dtype(engine),
            "prefix_caching": cache.enable_prefix_caching,
            "chat_sampling": chat_sampling(engine.config.model),  # the page's initial settings
        },
    }


def cache_info(engine: Engine) -> dict[str, str]:
    """The labels of `vllm:cache_config_info`, as vLLM names them."""
    cache = engine.config.cache
    values = {
        "engine": 0,
        "block_size": cache.block_size,
        "cache_dtype": kv_cache_dtype(engine),
        "enable_prefix_caching": cache.enable_prefix_caching,
        "num_gpu_blocks": cache.num_blocks,
        "num_cpu_blocks": cache.num_swap_blocks,
    }
    return {name: str(value) for name, value in values.items()}


def kv_cache_dtype(engine: Engine) -> str:
    """The type of cached keys and values, resolved where the engine runs a model."""
    runner = engine.core.runner
    if isinstance(runner, ModelRunner):
        return runner.pool.layout.dtype
    return engine.config.model.kv_cache_dtype


def client_label(client: str) -> str:
    """A short stable name. Keys are hashed already (`http.client_of`); the rest is cut."""
    kind, _, name = client.partition(":")
    if kind == "key":
        name = name[:8]
    shown = f"{kind}:{name}" if name else kind
    return "".join(c if c.isprintable() else "?" for c in shown[:MAX_LABEL])


def request_rows(
    snapshot: EngineSnapshot, queued: Sequence[EngineRequest], now: float
) -> list[dict[str, Any]]:
    """At most MAX_LISTED requests: those with blocks first, those outside the engine last."""
    inside = sorted(snapshot.sequences, key=lambda seq: ORDER[seq.status])[:MAX_LISTED]
    rows = [_row(seq, now) for seq in inside]
    return rows + [_queued_row(r, now) for r in queued[: MAX_LISTED - len(rows)]]


def _row(seq: SequenceState, now: float) -> dict[str, Any]:
    return {
        "id": seq.request_id,
        "choice": seq.choice,
        "client": client_label(seq.client),
        "state": seq.status,
        "priority": seq.priority,
        "prompt_tokens": seq.num_prompt_tokens,
        "output_tokens": seq.num_output_tokens,
        "computed_tokens": seq.num_computed_tokens,
        "cached_tokens": seq.num_cached_tokens,
        "num_blocks": len(seq.blocks) or seq.num_host_slots,
        "age_s": round(now - seq.arrival, 3),
    }


def _queued_row(request: EngineRequest, now: float) -> dict[str, Any]:
    return {
        "id": request.request_id,
        "choice": 0,
        "client": client_label(request.client),
        "state": "queued",
        "priority": request.priority,
        "prompt_tokens": len(request.prompt_token_ids),
        "output_tokens": 0,
        "computed_tokens": 0,
        "cached_tokens": 0,
        "num_blocks": 0,
        "age_s": round(now - request.arrival, 3),
    }


def blocks_view(snapshot: EngineSnapshot) -> dict[str, Any]:
    """`owners`: for each block the row of its oldest owner, or FREE, CACHED, UNLISTED."""
    stats = snapshot.stats
    owners = [UNLISTED if refs else FREE for refs in snapshot.refs]
    for block in snapshot.cached_blocks:
        owners[block] = CACHED
    inside = sorted(snapshot.sequences, key=lambda seq: ORDER[seq.status])
    rows = {id(seq): row for row, seq in enumerate(itertools.islice(inside, MAX_LISTED))}
    for seq in reversed(snapshot.sequences):  # the oldest has the last word
        row = rows.get(id(seq), UNLISTED)
        for block in seq.blocks:
            owners[block] = row
    return {
        "total": stats.num_total_blocks,
        "block_size": snapshot.block_size,
        "free": stats.num_free_blocks,
        "cached": stats.num_cached_blocks,
        "swap_total": stats.num_total_swap_blocks,
        "swap_used": stats.num_total_swap_blocks - stats.num_free_swap_blocks,
        "owners": owners,
        "refs": snapshot.refs,
    }


def counters_view(stats: EngineStats, metrics: Metrics) -> dict[str, Any]:
    return {
        "steps": stats.num_steps,
        "prompt_tokens": stats.num_prompt_tokens,
        "generation_tokens": stats.num_generation_tokens,
        "prefix_query_tokens": stats.num_prefix_query_tokens,
        "prefix_hit_tokens": stats.num_prefix_hit_tokens,
        "preemptions_swap": stats.num_preemptions_swap,
        "preemptions_recompute": stats.num_preemptions_recompute,
        "cow_copies": stats.num_cow_copies,
        "swapped_out_blocks": stats.num_swapped_out_blocks,
        "swapped_in_blocks": stats.num_swapped_in_blocks,
        "draft_tokens": stats.num_draft_tokens,
        "accepted_tokens": stats.num_accepted_tokens,
        "requests": dict(metrics.requests),
    }


def latency_view(metrics: Metrics, now: float) -> dict[str, Any]:
    return {
        "ttft_s": _percentiles(metrics.recent_first_tokens, now),
        "inter_token_s": _percentiles(metrics.recent_gaps, now),
    }


def _percentiles(window: Window, now: float) -> dict[str, Any]:
    count, (p50, p99) = window.percentiles(now, (0.5, 0.99))
    return {"p50": p50, "p99": p99, "count": count}


@dataclass(frozen=True)
class Outside:
    """What is known without asking the engine: its latest numbers, and who waits before it."""

    stats: EngineStats
    num_queued: int
    queued: Sequence[EngineRequest]  # the first of them


def engine_view(snapshot: EngineSnapshot, outside: Outside, metrics: Metrics) -> dict[str, Any]:
    """All that changes. `age_s` is how old `requests` and `blocks` are."""
    now = time.monotonic()
    stats = outside.stats
    return {
        "time": time.time(),
        "age_s": round(now - snapshot.time, 3),
        "queue": {
            "depth": outside.num_queued,
            "waiting": stats.num_waiting,
            "running": stats.num_running,
            "swapped": stats.num_swapped,
        },
        "num_requests": len(snapshot.sequences) + outside.num_queued,
        "requests": request_rows(snapshot, outside.queued, now),
        "blocks": blocks_view(snapshot),
        "counters": counters_view(stats, metrics),
        "latency": latency_view(metrics, now),
    }
