"""NaN and infinity in one sequence: its own rows show it, and nobody else's bits change, then or
later.
"""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest
from exact_models import KV_DTYPES, SEED, SHAPES, VOCAB, WEIGHTS, decoder_of, make_runner, truth_of
from helpers.plans import Sequences, run_chunks
from serving import make_core

from tinyserve.engine.request import EngineRequest
from tinyserve.engine.sampling import SamplingParams
from tinyserve.kernels.formats import FloatWeight
from tinyserve.kernels.native import NativeBackend
from tinyserve.models.decoder import Decoder
from tinyserve.models.synthetic import synthetic_checkpoint
from tinyserve.models.weights import Conversion

pytestmark = pytest.mark.usefixtures("native_kernels")

BAD = {"nan": VOCAB - 1, "inf": VOCAB - 2}  # tokens whose embeddings are not numbers


def damaged(weights: str, shape: str) -> Decoder:
    """The same model, but for the embeddings of two tokens that no truth contains."""
    name = "model.embed_tokens.weight"
    options = WEIGHTS[weights]
    weight = synthetic_checkpoint(SEED, **SHAPES[shape]).tensors.weight(name)
    table = Conversion(options.dtype, options.quantization)(name, weight).dequantize()
    table[BAD["nan"]] = np.nan
    table[BAD["inf"]] = np.inf
    embedding = NativeBackend(1).linear([FloatWeight(table)])
    return dataclasses.replace(decoder_of(weights, shape), embedding=embedding)


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("weights", WEIGHTS)
def test_damage_stays_in_its_sequence(weights: str, kv_dtype: str, kind: str) -> None:
    shape = list(SHAPES)[kind == "nan"]
    truth, rand = truth_of(weights, shape, kv_dtype), random.Random(f"{weights} {kv_dtype}")
    prompts = {s: [rand.randrange(VOCAB - 2) for _ in range(rand.randint(9, 60))] for s in range(9)}
    prompts[4][5] = BAD[kind]
    runner = make_runner(
        damaged(weights, shape),
        kv_dtype,
        threads=2,
        bf16x2=weights == "bf16x2",
        num_blocks=40,
    )
    sequences = Sequences(block_size=16, num_blocks=40)
    rows = run_chunks(runner, [sequences.chunk(s, ids) for s, ids in prompts.items()])
    for s, ids in prompts.items():
        if s != 4:
            assert rows[s].tobytes() == truth.logits(ids).tobytes()
    assert rows[4][:5].tobytes() == truth.logits(prompts[4][:5]).tobytes()
    assert np.isnan(rows[4][5]).all()
    assert not np.isfinite(rows[4][6:]).any() or shape == "windowed"
    # its blocks and its rows of every buffer go to others
    for s in prompts:
        sequences.release(s)
    for s in range(10, 14):
        ids = [rand.randrange(VOCAB - 2) for _ in range(rand.randint(50, 130))]
        got = run_chunks(runner, [sequences.chunk(s, ids)])[s]
        assert got.tobytes() == truth.logits(ids).tobytes()


def test_the_engine_fails_that_request_alone() -> None:
    """The others get what they would have got, and the next request works."""
    runner = make_runner(damaged("u4", "grouped"), "f16", threads=2, num_blocks=40)
    core = make_core(runner, blocks=40, block_size=16)

    def serve(prompts: dict[str, list[int]]) -> tuple[dict[str, list[int]], dict[str, str]]:
        tokens: dict[str, list[int]] = {name: [] for name in prompts}
        reasons = {}
        for name, ids in prompts.items():
            params = SamplingParams(temperature=1.0, seed=3, max_tokens=8)
            core.add_request(EngineRequest(request_id=name, prompt_token_ids=ids, params=params))
        while core.has_work():
            for output in core.step():
                tokens[output.request_id] += output.new_token_ids
                if output.finish_reason:
                    reasons[output.request_id] = output.finish_reason
        return tokens, reasons

    good = {f"good{i}": list(range(i, 40 + i)) for i in range(3)}
    bad = {"bad": [1, 2, BAD["nan"], 3]}
    want, _ = serve(good)
    got, reasons = serve({**good, **bad})
    assert reasons.pop("bad") == "error"
    assert set(reasons.values()) == {"length"}
    assert {name: got[name] for name in good} == want
    assert serve(good)[0] == want
    assert core.stats().num_corrupted == 1
