"""The engine alone, without HTTP: decoding so many streams, and one prompt."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tinyserve.config import TinyServeConfig
from tinyserve.engine.core import EngineCore
from tinyserve.engine.request import EngineRequest
from tinyserve.engine.sampling import SamplingParams


@dataclass(frozen=True)
class Case:
    """One offline case: `streams` that decode at once, or with 0 one prompt of `prompt` tokens."""

    streams: int
    prompt: int
    new: int

    @property
    def name(self) -> str:
        return f"decode {self.streams}" if self.streams else f"prefill {self.prompt}"


def configuration(
    model: Mapping[str, Any], streams: int, length: int, **sections: Mapping[str, Any]
) -> TinyServeConfig:
    """An engine for `streams` sequences of `length` tokens at once, and nothing that would help or
    hinder by chance: no prefix cache, no swapping. Prompts of up to `length` go in one step.
    """
    return TinyServeConfig.from_dict(
        {
            "model": dict(model),
            "cache": {
                "num_blocks": -(-length // 16) * streams + 64,
                "num_swap_blocks": 0,
                "enable_prefix_caching": False,
            },
            "scheduler": {
                "max_num_seqs": streams,
                "max_num_batched_tokens": max(512, length),
                "chunked_prefill_size": max(512, length),  # so that streams begin at about one time
            },
            **{name: dict(values) for name, values in sections.items()},
        }
    )


def measure(core: EngineCore, case: Case, seed: int = 0) -> float:
    """Tokens per second of one case."""
    if case.streams:
        return decode(core, case.streams, case.prompt, case.new, seed)
    return prefill(core, case.prompt, seed)


def decode(core: EngineCore, streams: int, prompt: int, new: int, seed: int = 0) -> float:
    """Tokens per second over all streams, once every prompt is computed."""
    begin_decodes(core, streams, prompt, new, seed)
    begin = time.perf_counter()
    total = 0
    while core.has_work():
        total += sum(len(output.new_token_ids) for output in core.step())
    return total / (time.perf_counter() - begin)


def begin_decodes(core: EngineCore, streams: int, prompt: int, new: int, seed: int) -> None:
    """Bring requests of so many tokens each, greedy, to the first token of the last one."""
    for i in range(streams):
        core.add_request(_request(str(i), token_ids(prompt, seed + i), new))
    has_begun: set[str] = set()
    while len(has_begun) < streams:
        has_begun |= {output.request_id for output in core.step() if output.new_token_ids}


def prefill(core: EngineCore, length: int, seed: int = 0) -> float:
    """Prompt tokens per second of one prompt, its first token included."""
    core.add_request(_request("p", token_ids(length, seed), 1))
    begin = time.perf_counter()
    while core.has_work():
        core.step()
    return length / (time.perf_counter() - begin)


def _request(request_id: str, ids: list[int], new: int) -> EngineRequest:
    params = SamplingParams(temperature=0, max_tokens=new, ignore_eos=True)
    return EngineRequest(request_id=request_id, prompt_token_ids=ids, params=params)


def token_ids(count: int, seed: int) -> list[int]:
    """Ordinary tokens of any vocabulary of 512 or more."""
    return [100 + (seed * 7919 + i * 31) % 400 for i in range(count)]
