"""The draft model: what fits, its shadow of each sequence, and its memory."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.fake_engine import VOCAB, FakeEngine, FakeRunner, generate_alone

from tinyserve import LLM, SamplingParams
from tinyserve.engine.draft_model import DraftLimits, DraftModelProposer, Shadow
from tinyserve.errors import ConfigError
from tinyserve.kv.block_table import BlockTable
from tinyserve.kv.manager import KVManager

PROMPT = [1, 2, 3, 4, 5]


def fake_draft_model(
    most: int = 4, num_blocks: int = 64, vocab_size: int = VOCAB, max_len: int = 1000
) -> DraftModelProposer:
    """A draft model that says what the fake target says, and would notice any mistake."""
    limits = DraftLimits(vocab_size, VOCAB, max_len, 16)
    return DraftModelProposer(FakeRunner(num_blocks, 4, 0), KVManager(num_blocks, 4), limits, most)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_same_model_is_always_right(temperature: float) -> None:
    proposer = fake_draft_model()
    engine = FakeEngine(proposer=proposer)
    options: dict[str, Any] = {"temperature": temperature, "seed": 5, "max_tokens": 41}
    assert engine.generate(PROMPT, **options) == generate_alone(PROMPT, **options)[0]
    stats = engine.core.stats()
    assert stats.num_accepted_tokens == stats.num_draft_tokens == 32
    assert stats.num_steps == 1 + 8, "one for the prompt, then five tokens a step"
    proposer.check()
    assert not proposer._shadows


def test_many_sequences_share_runs_and_a_small_cache() -> None:
    """Choices, long prompts, few blocks: shadows are evicted and come back."""
    proposer = fake_draft_model(num_blocks=20)
    engine = FakeEngine(proposer=proposer, num_blocks=48, max_num_seqs=6)
    requests = {}
    for index in range(12):
        prompt = [7, 8, 9, 10] * 3 + [index] * (1 + 3 * index % 11)
        options: dict[str, Any] = {"max_tokens": 10 + index, "n": 1 + index % 2, "seed": index}
        requests[engine.add(prompt, temperature=1.0, **options)] = prompt, options
    for _ in range(10_000):
        if not engine.core.has_work():
            break
        engine.step()
        proposer.check()
    for request_id, (prompt, options) in requests.items():
        tokens = [choice.token_ids for choice in engine.results[request_id]]
        assert tokens == generate_alone(prompt, temperature=1.0, **options)
    stats = engine.core.stats()
    assert stats.num_accepted_tokens == stats.num_draft_tokens > 100
    assert not proposer._shadows
    plans = proposer.runner.plans  # type: ignore[attr-defined]
    catching_up = [plan for plan in plans if not any(chunk.num_logits for chunk in plan.chunks)]
    assert max(plan.num_tokens for plan in catching_up) == proposer.limits.max_tokens


def test_shadows_roll_back_to_what_came_true() -> None:
    shadow = Shadow(BlockTable(), 10, [1, 2, 3])
    known = [0] * 10
    assert Shadow(BlockTable(), 10, [1, 2, 3]).roll_back([*known, 1, 2, 9]) == 12
    assert Shadow(BlockTable(), 10, [1, 2, 3]).roll_back([*known, 9]) == 10
    assert Shadow(BlockTable(), 10, [1, 2, 3]).roll_back([*known, 1, 2, 3, 4]) == 13
    assert Shadow(BlockTable(), 10, []).roll_back([*known, 4]) == 10
    assert shadow.roll_back(known) == 9, "nothing new: the last token is computed again"
    assert shadow.fed == []


def test_a_sequence_beyond_its_context_or_vocabulary_gets_no_drafts() -> None:
    for proposer in (fake_draft_model(max_len=4), fake_draft_model(vocab_size=3)):
        engine = FakeEngine(proposer=proposer)
        assert engine.generate(PROMPT, max_tokens=9) == generate_alone(PROMPT, max_tokens=9)[0]
        assert engine.core.stats().num_draft_tokens == 0


def test_spec_09_another_vocabulary_is_refused_with_both_sizes() -> None:
    with pytest.raises(ConfigError, match=r"49152 against 512") as caught:
        LLM("synthetic", draft_model="synthetic:135m")
    assert "spec.draft_model" in str(caught.value)


def test_what_does_not_fit_beside_the_served_model_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """MEM-01: its KV-cache has as many blocks as the served model's."""
    monkeypatch.setattr("tinyserve.engine.speculation.total_memory", lambda: 24 << 20)
    LLM("synthetic", draft_model="synthetic", num_blocks=1024)  # of 8 KiB
    with pytest.raises(
        ConfigError, match=r"KV-cache, .* 16\.0 MiB, beside 16\.\d MiB .* 24\.0 MiB"
    ):
        LLM("synthetic", draft_model="synthetic", num_blocks=2048)


def test_its_memory_is_reported() -> None:
    plain, drafted = LLM("synthetic"), LLM("synthetic", draft_model="synthetic")
    drafted.generate("hello", SamplingParams(max_tokens=8, temperature=0), progress=False)
    report = drafted.engine.core.memory_report()
    extra = set(report) - set(plain.engine.core.memory_report())
    assert {"draft_weights", "draft_kv_cache", "draft_activations"} <= extra
    assert report["draft_weights"] == report["weights"]
    assert all(0 <= item["touched"] <= item["reserved"] for item in report.values())
