"""When a choice ends, with which reason, and what of it is shown."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.fake_engine import VOCAB, Choice, FakeEngine, generate_alone

PROMPT = [1, 2, 3]
TOKENS = generate_alone(PROMPT, max_tokens=20)[0]


def run(*, eos_token_ids: tuple[int, ...] = (), max_model_len: int = 200, **options: Any) -> Choice:
    engine = FakeEngine(eos_token_ids=eos_token_ids, max_model_len=max_model_len)
    options.setdefault("text", True)
    request_id = engine.add(PROMPT, **{"max_tokens": 20, **options})
    engine.run()
    engine.assert_empty()
    return engine.results[request_id][0]


def text_of(tokens: list[int]) -> str:
    return "".join(f"<{token}>" for token in tokens)


def test_the_tokens_of_this_file_are_distinct() -> None:
    assert len(set(TOKENS[:8])) == 8, "choose another prompt: the tests below need eight distinct"


def test_max_tokens_ends_a_choice_and_flushes_its_text() -> None:
    choice = run(max_tokens=5)
    assert (choice.token_ids, choice.finish_reason) == (TOKENS[:5], "length")
    assert choice.text == text_of(TOKENS[:5]) + ".", "what was held back is flushed"


@pytest.mark.parametrize("index", [0, 3])
def test_every_eos_id_ends_the_answer(index: int) -> None:
    """The EOS token is in the ids; its text is not shown, and the reason is None."""
    choice = run(eos_token_ids=(VOCAB - 1, TOKENS[index]))
    assert choice.token_ids == TOKENS[: index + 1]
    assert (choice.finish_reason, choice.stop_reason) == ("stop", None)
    assert choice.text == text_of(TOKENS[:index]) + "."


def test_ignore_eos() -> None:
    choice = run(eos_token_ids=(TOKENS[3],), ignore_eos=True)
    assert (choice.token_ids, choice.finish_reason) == (TOKENS, "length")
    choice = run(eos_token_ids=(TOKENS[3],), ignore_eos=True, stop_token_ids=(TOKENS[5],))
    assert choice.token_ids == TOKENS[:6]


def test_stop_token_ids_name_themselves_as_the_reason() -> None:
    choice = run(stop_token_ids=(TOKENS[4],))
    assert choice.token_ids == TOKENS[:5]
    assert (choice.finish_reason, choice.stop_reason) == ("stop", TOKENS[4])
    assert choice.text == text_of(TOKENS[:4]) + "."


def test_include_stop_shows_the_stopping_token() -> None:
    choice = run(stop_token_ids=(TOKENS[4],), include_stop_str_in_output=True)
    assert choice.text == text_of(TOKENS[:5]) + "."


def test_a_stop_string_ends_the_answer_without_a_flush() -> None:
    stop = text_of(TOKENS[3:5])
    choice = run(stop=(stop,))
    assert choice.token_ids == TOKENS[:5]
    assert (choice.finish_reason, choice.stop_reason) == ("stop", stop)
    assert choice.text == text_of(TOKENS[:4])


def test_a_stop_string_that_is_the_first_token() -> None:
    """STR-16."""
    choice = run(stop=(text_of(TOKENS[:1]),), logprobs=2)
    assert (choice.token_ids, choice.text, choice.finish_reason) == (TOKENS[:1], "", "stop")
    assert len(choice.logprobs) == 1


def test_a_stop_at_the_last_allowed_token_is_a_stop() -> None:
    """SPEC-02: the stop is looked for before the length."""
    assert run(stop_token_ids=(TOKENS[4],), max_tokens=5).finish_reason == "stop"
    assert run(stop=(text_of([TOKENS[4]]),), max_tokens=5).finish_reason == "stop"
    assert run(stop_token_ids=(TOKENS[5],), max_tokens=5).finish_reason == "length"


def test_min_tokens_bans_every_stop_id() -> None:
    """SAM-08: all EOS ids and stop_token_ids, until so many tokens are there."""
    eos, stop = (VOCAB - 1, TOKENS[0]), (TOKENS[1],)
    choice = run(eos_token_ids=eos, stop_token_ids=stop, min_tokens=6)
    assert len(choice.token_ids) >= 6
    assert not {*eos, *stop} & set(choice.token_ids[:6])
    assert choice.token_ids[0] == (TOKENS[0] + 1) % VOCAB


def test_min_tokens_bans_no_longer_than_it_must() -> None:
    assert run(stop_token_ids=(TOKENS[3],), min_tokens=3).token_ids == TOKENS[:4]
    assert run(stop_token_ids=(TOKENS[3],), min_tokens=4).token_ids[3] == (TOKENS[3] + 1) % VOCAB


def test_min_tokens_with_ignore_eos_bans_only_the_stop_ids() -> None:
    choice = run(eos_token_ids=(TOKENS[0],), min_tokens=6, ignore_eos=True)
    assert choice.token_ids == TOKENS


def test_a_stop_string_does_not_count_before_min_tokens() -> None:
    stop = text_of([TOKENS[2]])
    assert len(run(stop=(stop,)).token_ids) == 3
    assert len(run(stop=(stop,), min_tokens=2).token_ids) == 3
    assert len(run(stop=(stop,), min_tokens=3).token_ids) > 3


def test_the_context_ends_the_answer_exactly_at_its_end() -> None:
    """LIM-09: prompt plus answer never exceed max_model_len."""
    for max_tokens in (None, 7):
        choice = run(max_model_len=10, max_tokens=max_tokens, eos_token_ids=(), ignore_eos=True)
        assert (choice.token_ids, choice.finish_reason) == (TOKENS[:7], "length")


def test_the_pool_ends_the_answer_where_nobody_set_a_limit() -> None:
    engine = FakeEngine(num_blocks=4, max_model_len=None)
    request_id = engine.add(PROMPT, max_tokens=None)
    engine.run()
    choice = engine.results[request_id][0]
    assert (len(PROMPT) + len(choice.token_ids), choice.finish_reason) == (17, "length")


def test_max_tokens_zero_computes_nothing() -> None:
    """LOG-07."""
    engine = FakeEngine()
    request_id = engine.add(PROMPT, n=2, max_tokens=0, text=True)
    assert engine.core.has_work()
    engine.run()
    for choice in engine.results[request_id]:
        assert (choice.token_ids, choice.text, choice.finish_reason) == ([], "", "length")
    assert engine.runner.plans == []
    engine.assert_empty()


def test_one_bad_word_of_one_token_is_never_drawn() -> None:
    choice = run(bad_words_ids=((TOKENS[0],), (TOKENS[1],)))
    assert choice.token_ids[0] == (TOKENS[0] + 1) % VOCAB
    assert not {TOKENS[0], TOKENS[1]} & set(choice.token_ids)


def test_a_bad_word_of_several_tokens_is_never_completed() -> None:
    choice = run(bad_words_ids=(tuple(TOKENS[2:5]),))
    assert choice.token_ids[:4] == TOKENS[:4]
    assert choice.token_ids[4] == (TOKENS[4] + 1) % VOCAB


def test_a_bad_word_that_only_begins_alike_bans_nothing() -> None:
    unlike = (*TOKENS[2:4], (TOKENS[4] + 50) % VOCAB)
    assert run(bad_words_ids=(unlike, (TOKENS[0] ^ 1, TOKENS[1]))).token_ids == TOKENS


def test_exactly_one_output_of_a_choice_has_a_finish_reason() -> None:
    """STR-13; the fake engine fails where another output follows it."""
    engine = FakeEngine(eos_token_ids=(TOKENS[3],))
    engine.add(PROMPT, max_tokens=20)
    reasons = []
    while engine.core.has_work():
        reasons += [output.finish_reason for output in engine.step()]
    assert reasons == [None, None, None, "stop"]


def test_logprobs_come_with_every_token() -> None:
    choice = run(logprobs=3, max_tokens=5)
    assert [entry.token_id for entry in choice.logprobs] == TOKENS[:5]
    assert all(len(entry.top) == 3 for entry in choice.logprobs)
    engine = FakeEngine()
    engine.add(PROMPT, max_tokens=2)
    assert engine.step()[0].logprobs is None
