"""Requests that share a prefix: decodes attend to it together, with the bits of each alone."""

from __future__ import annotations

import random

import pytest
from exact_models import VOCAB, decoder_of, make_runner, truth_of
from helpers.native import exact_variants
from serving import RecordingRunner, make_core, serve

from tinyserve.engine.plan import StepPlan
from tinyserve.engine.request import EngineRequest
from tinyserve.engine.sampling import SamplingParams
from tinyserve.kernels.recorder import Program

pytestmark = pytest.mark.usefixtures("native_kernels")

PREFIX = 300  # tokens: more than a partition of keys, and a part of the next


def requests(rand: random.Random) -> list[EngineRequest]:
    """A common beginning, then a few tokens of their own; some ask for two choices."""
    stem = [rand.randrange(VOCAB) for _ in range(PREFIX)]
    return [
        EngineRequest(
            request_id=f"r{index}",
            prompt_token_ids=stem + [rand.randrange(VOCAB) for _ in range(rand.randint(1, 30))],
            params=SamplingParams(temperature=0.7, seed=index, max_tokens=24, n=1 + index % 3 // 2),
        )
        for index in range(9)
    ]


class CountingRunner(RecordingRunner):
    """Adds up the keys that attention reads, and those it would read one sequence at a time."""

    keys_read = 0
    keys_seen = 0

    def run(self, plan: StepPlan) -> object:  # type: ignore[override]
        logits = super().run(plan)
        body = self.runner._body
        assert isinstance(body, Program)
        if all(len(chunk.token_ids) == 1 for chunk in plan.chunks):
            self.keys_read += body.keys_read
            self.keys_seen += sum(chunk.start + 1 for chunk in plan.chunks)
        return logits


@pytest.mark.parametrize(
    ("kv_dtype", "shape"), [("f16", "grouped"), ("int8", "grouped"), ("f32", "windowed")]
)
def test_a_shared_prefix_is_read_once_and_no_bit_tells(kv_dtype: str, shape: str) -> None:
    truth = truth_of("f32", shape, kv_dtype)
    for variant in exact_variants():
        runner = make_runner(
            decoder_of("f32", shape), kv_dtype, threads=2, variant=variant, num_blocks=120
        )
        recording = CountingRunner(runner)
        core = make_core(recording, blocks=120, block_size=16, max_num_batched_tokens=256)
        recording.core = core
        first, *others = requests(random.Random(5))
        results = serve(core, [first])  # computes the prefix; the others find it
        results |= serve(core, others)
        finished = [
            [*results[r].prompt_token_ids, *choice.token_ids]
            for r in results
            for choice in results[r].outputs
        ]
        assert len(finished) == 12
        assert recording.wrong_rows(finished, truth) == [], variant
        assert recording.keys_read < recording.keys_seen / 2
