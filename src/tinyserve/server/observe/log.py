"""What is logged of requests: a line for each that ended, and one of throughput now and then.

On the event loop. A prompt is shown only where the settings ask for it.
"""

from __future__ import annotations

import logging
from typing import Any

from tinyserve.config import ServerConfig
from tinyserve.engine.chronicle import Life
from tinyserve.engine.request import EngineRequest, EngineStats
from tinyserve.server.observe.view import client_label
from tinyserve.text.tokenizer import Tokenizer

requests_logger = logging.getLogger("tinyserve.requests")
stats_logger = logging.getLogger("tinyserve.stats")

INTERVAL_S = 10.0


class RequestLog:
    """One line for each request, when its last choice has ended."""

    def __init__(self, config: ServerConfig, tokenizer: Tokenizer) -> None:
        self._config = config
        self._tokenizer = tokenizer
        self._open: dict[str, list[Life]] = {}  # choices that have ended, others have not yet

    def add(self, life: Life) -> None:
        request = life.request
        ended = self._open.pop(request.request_id, [])
        ended.append(life)
        if len(ended) < request.params.n:
            self._open[request.request_id] = ended
            return
        fields = request_fields(ended)
        if self._config.log_prompts:
            fields["prompt"] = self._prompt(request)
        requests_logger.info("request ended", extra={"fields": fields})

    def _prompt(self, request: EngineRequest) -> str:
        """The beginning of the prompt. A token has a character or more, or is part of one."""
        limit = self._config.max_log_len
        ids = list(request.prompt_token_ids)
        if limit is None:
            return self._tokenizer.decode(ids, skip_special_tokens=False)
        head = ids[: 4 * limit + 4]  # a character has at most four tokens: its bytes
        return self._tokenizer.decode(head, skip_special_tokens=False)[:limit]


def request_fields(lives: list[Life]) -> dict[str, Any]:
    """What there is to say of a request all of whose choices have ended. Seconds, tokens."""
    lives = sorted(lives, key=lambda life: life.choice)
    request = lives[0].request
    firsts = [life.ttft_s for life in lives if life.ttft_s is not None]
    num_output = sum(life.num_output_tokens for life in lives)
    inference_s = max((life.inference_s or 0.0 for life in lives), default=0.0)
    fields: dict[str, Any] = {
        "id": request.request_id,
        "client": client_label(request.client),
        "finish_reason": ",".join(life.reason or "" for life in lives),
        "prompt_tokens": len(request.prompt_token_ids),
        "cached_tokens": lives[0].num_cached_tokens,
        "output_tokens": num_output,
        "queue_s": round(lives[0].queue_s, 4),
        "ttft_s": round(min(firsts), 4) if firsts else None,
        "total_s": round(max(life.e2e_s for life in lives), 4),
        "tokens_per_s": round(num_output / inference_s, 2) if inference_s > 0 else None,
    }
    if request.params.n > 1:
        fields["n"] = request.params.n
    if request.priority:
        fields["priority"] = request.priority
    return fields


class ThroughputLog:
    """A line every ten seconds in which something was computed, or still waits."""

    def __init__(self, now: float, stats: EngineStats) -> None:
        self._since = now
        self._last = stats

    def tick(self, now: float, stats: EngineStats, num_queued: int) -> None:
        """Call it often; it speaks when it is time and there is something to say."""
        seconds = now - self._since
        if seconds < INTERVAL_S:
            return
        last, self._last, self._since = self._last, stats, now
        is_open = num_queued + stats.num_waiting + stats.num_running + stats.num_swapped > 0
        if is_open or stats.num_steps > last.num_steps:
            stats_logger.info(*throughput_line(seconds, last, stats, num_queued))


def throughput_line(
    seconds: float, last: EngineStats, stats: EngineStats, num_queued: int
) -> tuple[Any, ...]:
    """Format and arguments of the line for the time from `last` to `stats`."""
    used = stats.num_total_blocks - stats.num_free_blocks - stats.num_cached_blocks
    queries = stats.num_prefix_query_tokens - last.num_prefix_query_tokens
    hits = stats.num_prefix_hit_tokens - last.num_prefix_hit_tokens
    drafts = stats.num_draft_tokens - last.num_draft_tokens
    accepted = stats.num_accepted_tokens - last.num_accepted_tokens
    line = (
        "prompt %.1f tokens/s, generation %.1f tokens/s, running %d, waiting %d, swapped %d, "
        "KV-cache in use %.1f%%, prefix hits %.1f%%"
    )
    numbers: list[Any] = [
        (stats.num_prompt_tokens - last.num_prompt_tokens) / seconds,
        (stats.num_generation_tokens - last.num_generation_tokens) / seconds,
        stats.num_running,
        stats.num_waiting + num_queued,
        stats.num_swapped,
        100 * used / stats.num_total_blocks,
        100 * hits / max(1, queries),
    ]
    if drafts:
        line += ", drafts accepted %.1f%%"
        numbers.append(100 * accepted / drafts)
    return (line, *numbers)
