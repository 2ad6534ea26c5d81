"""Whole engines over a fake model with a real tokenizer, for tests of everything above the model.

What the model says is chosen by the test (`says`), or else a hash of all it has read. The KV-cache
is `FakeRunner`'s, so that a mistake of bookkeeping fails here too.
"""

from __future__ import annotations

import math
import threading
from functools import cache
from typing import Any

from helpers.fake_engine import FakeLogits, FakeRunner, digest, first_allowed

from tinyserve.config import TinyServeConfig
from tinyserve.engine.build import Engine, assemble
from tinyserve.engine.plan import StepPlan
from tinyserve.engine.resolve import resolve_max_model_len
from tinyserve.engine.sampling import SampledToken, SampleRow
from tinyserve.engine.speculation import make_proposer
from tinyserve.models.checkpoint import Checkpoint
from tinyserve.models.synthetic import synthetic_checkpoint
from tinyserve.models.synthetic_tokenizer import EOS_ID
from tinyserve.spec.drafter import Drafter
from tinyserve.text.template import read_chat_template
from tinyserve.text.tokenizer import Tokenizer

VOCAB = 512


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer.from_spec(checkpoint().tokenizer_spec())


@cache
def checkpoint() -> Checkpoint:
    return synthetic_checkpoint()


class SpeakingRunner(FakeRunner):
    """A FakeRunner whose rows are drawn as the test says.

    `script`: output tokens by position, EOS after the last; None: hashes, with an EOS now and then.
    `gate`: each step waits for it. `steps`: how many have begun.
    """

    def __init__(self, config: TinyServeConfig) -> None:
        cache_config = config.cache
        assert cache_config.num_blocks is not None
        super().__init__(
            cache_config.num_blocks, cache_config.block_size, cache_config.num_swap_blocks
        )
        self.script: list[int] | None = None
        self.gate = threading.Event()
        self.reset()

    def reset(self) -> None:
        """Back to hashes, no faults, no waiting."""
        self.script = None
        self.nan_token = None
        self.error = None
        self.steps = 0
        self.gate.set()

    def says(self, text: str) -> None:
        """From now on every output is `text`, then EOS."""
        self.script = tokenizer().encode(text, add_special_tokens=False)

    def run(self, plan: StepPlan) -> SpeakingLogits:
        self.steps += 1
        self.gate.wait()
        logits = super().run(plan)
        return SpeakingLogits(logits.contexts, self.nan_token, self)


class SpeakingLogits(FakeLogits):
    """Rows drawn from the runner's script, or by hashing."""

    def __init__(
        self, contexts: list[tuple[int, ...]], nan_token: int | None, runner: SpeakingRunner
    ) -> None:
        super().__init__(contexts, nan_token)
        self.runner = runner

    def _sample(self, row: SampleRow) -> SampledToken:
        context = self.contexts[row.row]
        drawn = row.target if row.target is not None else self._draw(row, context)
        if drawn is None:
            return SampledToken(0, is_blocked=True)
        token = drawn
        is_nan = self.nan_token is not None and context[-1] == self.nan_token
        if row.num_logprobs is None:
            return SampledToken(token, is_nan=is_nan)
        # A distribution in which the drawn or scored token is the likeliest.
        others = [(token + 1 + i) % VOCAB for i in range(row.num_logprobs)]
        top = [(i, math.log(0.5) - rank) for rank, i in enumerate([token, *others])]
        return SampledToken(token, top[0][1], 1, top[: row.num_logprobs], is_nan)

    def _draw(self, row: SampleRow, context: tuple[int, ...]) -> int | None:
        script = self.runner.script
        if script is not None:
            index = len(row.output_ids) + len(row.drafted_ids)
            token = script[index] if index < len(script) else EOS_ID
        else:
            key = () if row.params.is_greedy else (row.seed, row.choice, row.position)
            number = digest(context, *key)
            token = EOS_ID if number % 29 == 0 else 3 + number % (VOCAB - 3)
        return first_allowed(row, token, VOCAB)


def make_engine(**sections: dict[str, Any]) -> Engine:
    """An engine over a SpeakingRunner: make_engine(scheduler={"max_num_seqs": 2}, cache={...})."""
    defaults: dict[str, dict[str, Any]] = {
        "cache": {"block_size": 4, "num_blocks": 512, "num_swap_blocks": 64},
        "scheduler": {"max_model_len": 512, "max_num_batched_tokens": 64},
    }
    merged = {
        name: {**defaults.get(name, {}), **sections.get(name, {})}
        for name in {*defaults, *sections}
    }
    config = TinyServeConfig.from_dict(merged)
    scheduler, _ = resolve_max_model_len(config.scheduler, checkpoint().config)
    config = config.replace(scheduler=scheduler)
    speaks = tokenizer()
    if config.model.chat_template is not None:
        template = read_chat_template(config.model.chat_template)
        speaks = Tokenizer.from_spec(checkpoint().tokenizer_spec().with_chat_template(template))
    drafter = Drafter(make_proposer(config.spec)) if config.spec.enabled else None
    return assemble(config, checkpoint(), speaks, SpeakingRunner(config), drafter=drafter)


def runner_of(engine: Engine) -> SpeakingRunner:
    """The fake model inside an engine made here."""
    runner = engine.core.runner
    assert isinstance(runner, SpeakingRunner)
    return runner


def assert_idle(engine: Engine) -> None:
    """Everything was given back."""
    stats = engine.core.stats()
    assert (stats.num_waiting, stats.num_running, stats.num_swapped) == (0, 0, 0)
    assert stats.num_free_blocks + stats.num_cached_blocks == stats.num_total_blocks
    assert stats.num_free_swap_blocks == stats.num_total_swap_blocks
    engine.core._kv.check()
