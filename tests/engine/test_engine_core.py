"""The engine as its callers see it: prefix hits, counters, reports."""

from __future__ import annotations

from helpers.fake_engine import FakeEngine, generate_alone

PROMPT = list(range(40, 60))


def test_a_prompt_seen_before_is_not_computed_again() -> None:
    engine = FakeEngine()
    first = engine.add(PROMPT, max_tokens=5)
    engine.run()
    second = engine.add(PROMPT, max_tokens=5)
    engine.run()
    assert engine.results[first][0].num_cached_tokens == 0
    assert engine.results[second][0].num_cached_tokens == 16
    assert engine.results[second][0].token_ids == engine.results[first][0].token_ids
    stats = engine.core.stats()
    assert (stats.num_prefix_query_tokens, stats.num_prefix_hit_tokens) == (40, 16)
    assert stats.num_scheduled_tokens == 20 + 4 + 4 + 4


def test_a_conversation_hits_its_own_answer() -> None:
    """PFX-09: two conversations in turns, one seat; each finds its whole history."""
    engine = FakeEngine(num_blocks=128, max_num_seqs=1)
    histories = [[1, 2, 3, 4, 5], [9, 8, 7, 6, 5]]
    for turn in range(4):
        for history in histories:
            known = len(history)
            history += [10 + turn] * 3
            request_id = engine.add(history, max_tokens=6)
            engine.run()
            choice = engine.results[request_id][0]
            history += choice.token_ids
            if turn:
                assert choice.num_cached_tokens == (known - 1) // 4 * 4


def test_without_a_cache_nothing_is_looked_up() -> None:
    engine = FakeEngine(caching=False)
    for _ in range(2):
        assert engine.generate(PROMPT, max_tokens=3) == generate_alone(PROMPT, max_tokens=3)[0]
    stats = engine.core.stats()
    assert stats.num_prefix_query_tokens == stats.num_prefix_hit_tokens == 0
    assert stats.num_cached_blocks == 0


def test_the_tokens_of_two_salts_do_not_mix() -> None:
    engine = FakeEngine()
    for salt, hit in (("a", 0), ("b", 0), (None, 0), ("a", 16)):
        request_id = engine.add(PROMPT, cache_salt=salt, max_tokens=1)
        engine.run()
        assert engine.results[request_id][0].num_cached_tokens == hit


def test_equal_prompts_at_once_end_up_sharing_their_blocks() -> None:
    engine = FakeEngine(max_num_batched_tokens=100)
    for _ in range(4):
        engine.add(PROMPT, max_tokens=8)
    engine.step()
    assert engine.last_plan.num_tokens == 80
    assert 64 - engine.kv.num_free == 5, "five full blocks, once"
    engine.step()
    first_blocks = {chunk.block_ids[:5] for chunk in engine.last_plan.chunks}
    assert len(first_blocks) == 1
    engine.run()


def test_stats_count_what_happened() -> None:
    engine = FakeEngine(max_num_seqs=2)
    engine.add([1, 2], n=2, max_tokens=3)
    engine.add([3], max_tokens=1)
    engine.add([4], max_tokens=1)
    before = engine.core.stats()
    assert (before.num_waiting, before.num_running, before.num_total_blocks) == (3, 0, 64)
    engine.step()
    assert engine.core.stats().num_running == 1
    engine.run()
    stats = engine.core.stats()
    assert (stats.num_prompt_tokens, stats.num_generation_tokens) == (4, 8)
    assert stats.num_steps == len(engine.runner.plans)
    assert stats.num_free_blocks + stats.num_cached_blocks == 64


def test_the_memory_report_names_the_bookkeeping() -> None:
    report = FakeEngine().core.memory_report()
    assert set(report) == {"weights", "kv_bookkeeping"}
    assert report["kv_bookkeeping"]["touched"] > 0


def test_nothing_is_kept_of_finished_requests() -> None:
    engine = FakeEngine()
    for i in range(50):
        engine.generate([i], max_tokens=2, n=2, temperature=1.0)
    engine.assert_empty()
    assert not engine.kv._tables
    assert not engine.core._scheduler._policy._heap  # type: ignore[attr-defined]


def test_requests_may_come_at_any_time() -> None:
    engine = FakeEngine(max_num_seqs=3)
    for i in range(20):
        engine.add([i, i + 1], max_tokens=5)
        engine.step()
    engine.run()
    for i in range(20):
        alone = generate_alone([i, i + 1], max_tokens=5)[0]
        assert engine.results[f"r{i}"][0].token_ids == alone
