"""Stop strings: the earliest match, wherever it lies; nothing of it leaks; little is held."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_tokenizers import IM_END, byte_level

from tinyserve.text.stops import StopChecker, special_stops

PIECES = st.lists(st.text("ab", max_size=4), max_size=12)
STOPS = st.lists(st.text("ab", min_size=1, max_size=5), max_size=3)


def feed(
    stops: tuple[str, ...], *texts: str, include: bool = False
) -> tuple[list[str], str | None]:
    """What each text shows and last what the end releases; the stop string hit."""
    checker = StopChecker(stops, include_in_output=include)
    shown = [checker.push(text) for text in texts]
    return [*shown, checker.flush()], checker.hit


def first_stop(text: str, stops: list[str]) -> tuple[int, str] | None:
    """The rule by definition: least start, then the longest."""
    found = [(text.find(stop), -len(stop), stop) for stop in stops if stop in text]
    return (min(found)[0], min(found)[2]) if found else None


@given(pieces=PIECES, stops=STOPS, include=st.booleans())
def test_agrees_with_a_search_of_the_whole_text(
    pieces: list[str], stops: list[str], include: bool
) -> None:
    """STR-05, STR-06: after each piece, against the plain definition on all text so far."""
    checker = StopChecker(stops, include_in_output=include)
    text = shown = ""
    for piece in pieces:
        text += piece
        shown += checker.push(piece)
        found = first_stop(text, stops)
        assert checker.hit == (found[1] if found else None)
        if found:
            start, stop = found
            assert shown == text[: start + (len(stop) if include else 0)]
            return
        held = text[len(shown) :]
        assert text.startswith(shown)
        longest = max(
            (n for stop in stops for n in range(len(stop)) if text.endswith(stop[:n])), default=0
        )
        assert len(held) == longest  # not a character more than may become a stop string
    assert shown + checker.flush() == text


@given(
    before=PIECES, after=PIECES, stops=st.lists(st.text("ab", min_size=1, max_size=4), min_size=1)
)
def test_min_tokens_by_definition(before: list[str], after: list[str], stops: list[str]) -> None:
    """SAM-08: a stop string counts where its last character comes after the threshold."""
    checker = StopChecker(stops)
    text = "".join(before)
    shown = "".join(checker.push(piece, can_stop=False) for piece in before)
    assert checker.hit is None
    for piece in after:
        first_end = len(text) + 1
        text += piece
        shown += checker.push(piece)
        found = []
        for stop in stops:
            starts = range(max(0, first_end - len(stop)), len(text) - len(stop) + 1)
            found += [(s, -len(stop), stop) for s in starts if text.startswith(stop, s)][:1]
        assert checker.hit == (min(found)[2] if found else None)
        if found:
            assert shown == text[: min(found)[0]]
            return
    assert shown + checker.flush() == text


def test_nothing_of_a_split_stop_leaks() -> None:
    """STR-05: ABC then DEFGHIJ over several tokens."""
    shown, hit = feed(("DEFGHIJ",), "ABC", "D", "EF", "GHI", "JK")
    assert (shown, hit) == (["ABC", "", "", "", "", ""], "DEFGHIJ")


def test_stop_ends_inside_a_token() -> None:
    """STR-06: '.\\n\\nNext' with stop '\\n\\n'."""
    assert feed(("\n\n",), "End", ".\n\nNext") == (["End", ".", ""], "\n\n")
    assert feed(("\n\n",), "End", ".\n\nNext", include=True) == (["End", ".\n\n", ""], "\n\n")


def test_stop_is_the_first_token() -> None:
    """STR-16."""
    assert feed(("\n",), "\n") == (["", ""], "\n")
    assert feed(("\n",), "\n", include=True) == (["\n", ""], "\n")


def test_held_text_is_released_when_it_cannot_match() -> None:
    assert feed(("abc",), "xab", "ax", "a")[0] == ["x", "abax", "", "a"]


def test_overlapping_beginnings() -> None:
    """Naive restarts miss a stop that begins inside a failed attempt."""
    assert feed(("aab",), "a", "a", "a", "b") == (["", "", "a", "", ""], "aab")


def test_earliest_start_wins_then_the_longest() -> None:
    assert feed(("cd", "bcde"), "abcdef") == (["a", ""], "bcde")
    assert feed(("bc", "bcd"), "abcd") == (["a", ""], "bcd")


def test_without_stops_nothing_is_held() -> None:
    assert feed((), "a", "b") == (["a", "b", ""], None)
    assert feed(("",), "a") == (["a", ""], None)


def test_text_after_a_hit_is_dropped() -> None:
    assert feed(("x",), "ax", "b")[0] == ["a", "", ""]


def test_long_repetitive_stop_is_linear() -> None:
    """A stop string made to be slow: 20,000 characters, all of them held."""
    checker = StopChecker(("a" * 20_000 + "b",))
    for _ in range(2_000):
        checker.push("a" * 20)
    assert len(checker.flush()) == 20_000


def test_special_tokens_stop_by_id() -> None:
    """STR-10: only a stop string that is exactly one special token."""
    assert special_stops(byte_level(), ["\n", IM_END, IM_END + "x", "hello"]) == {2: IM_END}


@pytest.mark.parametrize("can_stop", [True, False])
def test_stop_across_the_min_tokens_threshold(can_stop: bool) -> None:
    """SAM-08: begins before the threshold, ends after it: stops, cut where it begins."""
    checker = StopChecker(("END",))
    assert checker.push("xE", can_stop=False) == "x"
    assert checker.push("ND", can_stop=can_stop) == ("" if can_stop else "END")
    assert checker.hit == ("END" if can_stop else None)
