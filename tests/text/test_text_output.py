"""`TextOutput`: what the engine pushes and what readers see."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tiny_tokenizers import IM_END, IM_START, byte_level

from tinyserve.text.output import TextOutput
from tinyserve.text.reasoning import ThinkingSplit

TOKENIZER = byte_level()
EOS_ID = 2


def run(ids: list[int], **options: object) -> tuple[list[str], str | None]:
    """What becomes visible with each token and at the end; the stop hit (tokens end there)."""
    output = TextOutput(TOKENIZER, **options)  # type: ignore[arg-type]
    taken = []
    for token_id in ids:
        taken.append(output.push(token_id))
        if output.stop_hit is not None:
            break
    return [*taken, output.flush()], output.stop_hit


@given(
    ids=st.lists(st.integers(0, 280), max_size=20),
    stops=st.lists(st.text("ab\ufffd", min_size=1, max_size=2), max_size=2),
    skip=st.booleans(),
)
def test_text_is_the_decoded_text_up_to_the_stop(
    ids: list[int], stops: list[str], skip: bool
) -> None:
    """STR-04, STR-05: streamed parts join to the decoding of all ids, cut at the stop."""
    taken, hit = run(ids, stops=stops, skip_special_tokens=skip)
    whole = TOKENIZER.decode(ids, skip_special_tokens=skip)
    joined = "".join(taken)
    assert joined == (whole if hit is None else whole[: len(joined)])
    assert whole[len(joined) :].startswith(hit or "")


def test_stop_over_several_tokens() -> None:
    """STR-05, SPEC-04."""
    ids = TOKENIZER.encode("ABC END.")
    assert run(ids, stops=["END"]) == ([*"ABC ", "", "", "", ""], "END")
    assert "".join(run(ids, stops=["END"], include_stop=True)[0]) == "ABC END"


def test_what_one_choice_shows_of_special_tokens_no_other_shows() -> None:
    """The texts of tokens are kept for all choices of a model."""
    ids = [EOS_ID, *TOKENIZER.encode("a"), EOS_ID]
    assert run(ids, skip_special_tokens=False)[0] == [IM_END, "a", IM_END, ""]
    assert run(ids)[0] == ["", "a", "", ""]


def test_special_token_as_stop() -> None:
    """STR-10: stops although its text is skipped; shown only if asked for."""
    ids = [*TOKENIZER.encode("a"), EOS_ID, *TOKENIZER.encode("b")]
    assert run(ids, stops=[IM_END]) == (["a", "", ""], IM_END)
    assert run(ids, stops=[IM_END], include_stop=True) == (["a", IM_END, ""], IM_END)
    assert run(ids, stops=[IM_END], skip_special_tokens=False) == (["a", "", ""], IM_END)


def test_special_stop_releases_what_was_held() -> None:
    """STR-10: the beginning of another stop string was only text after all."""
    ids = [*TOKENIZER.encode("a\n"), EOS_ID]
    assert run(ids, stops=[IM_END, "\n\n"]) == (["a", "", "\n", ""], IM_END)


def test_special_token_beside_text_in_a_stop() -> None:
    """STR-10: skipped on decoding, it is seen all the same; what comes before it is held back."""
    ids = TOKENIZER.encode(f"ab{IM_END}\ncd{IM_START}{IM_END}ef")
    for stop, shown, pieces in (
        (f"{IM_END}\n", "ab", ["a", "b", "", "", ""]),
        (f"b{IM_END}", "a", ["a", "", "", ""]),
        (f"b{IM_END}\nc", "a", ["a", "", "", "", "", ""]),
        (f"d{IM_START}{IM_END}e", "ab\nc", ["a", "b", "", "\n", "c", "", "", "", "", ""]),
        (f"{IM_START}{IM_END}", "ab\ncd", ["a", "b", "", "\n", "c", "d", "", "", ""]),
    ):
        assert run(ids, stops=[stop]) == (pieces, stop)
        shown_too = run(ids, stops=[stop], include_stop=True)[0]
        assert "".join(shown_too) == shown + stop
    # Another special token came; what is spelled in letters might still be the stop string.
    assert run(ids, stops=[f"b{IM_START}"]) == (
        ["a", "", "", "b\n", "c", "d", "", "", "e", "f", ""],
        None,
    )
    assert run(ids, stops=["b\nc"]) == (["a", "", "", "", "", ""], "b\nc")


def test_special_tokens_in_stops_keep_to_the_other_rules() -> None:
    """SAM-08, and thinking: there it is no stop; nor where the token is shown, as text is."""
    stop = f"b{IM_END}"
    output = TextOutput(TOKENIZER, stops=[stop])
    b = TOKENIZER.encode("b")[0]
    assert [output.push(b, False), output.push(EOS_ID, False), output.stop_hit] == ["", "", None]
    assert [output.push(b), output.push(EOS_ID), output.stop_hit] == ["b", "", stop]
    ids = TOKENIZER.encode(f"b{IM_END}</think>ab{IM_END}c")
    taken, hit = run(ids, stops=[stop], new_thinking=lambda: ThinkingSplit(is_open=True))
    assert ("".join(taken), hit) == ("b</think>a", stop)
    taken, hit = run(ids, stops=[stop], visible_ids=frozenset({EOS_ID}))
    assert ("".join(taken), hit) == ("", stop)


@given(
    ids=st.lists(st.sampled_from([1, EOS_ID, *TOKENIZER.encode("ab")]), max_size=12),
    stops=st.lists(
        st.lists(st.sampled_from(["a", "b", IM_START, IM_END]), min_size=1, max_size=4).map(
            "".join
        ),
        min_size=1,
        max_size=3,
    ),
)
def test_special_tokens_in_stops_by_definition(ids: list[int], stops: list[str]) -> None:
    """STR-10: stops with the first token that completes a stop string, in the text or in the text
    with its special tokens; what is shown went before it.
    """

    def short(text: str) -> str:
        """With a digit for each special token: their letters are no text."""
        return text.replace(IM_START, "1").replace(IM_END, "2")

    taken, hit = run(ids, stops=stops)
    shown, num_taken = "".join(taken), len(taken) - 1
    for end in range(1, len(ids) + 1):
        plain, full = (
            short(TOKENIZER.decode(ids[:end], skip_special_tokens=skip)) for skip in (True, False)
        )
        if any(short(stop) in text for stop in stops for text in (plain, full)):
            assert hit is not None
            assert num_taken == end
            before = [text.removesuffix(short(hit)) for text in (plain, full)]
            assert any(b != text for b, text in zip(before, (plain, full), strict=True))
            assert any(b.replace("1", "").replace("2", "") == shown for b in before)
            return
    assert (hit, shown) == (None, TOKENIZER.decode(ids))


def test_text_of_a_special_token_from_ordinary_tokens() -> None:
    """STR-10: spelled out letter by letter it is a stop string like any other."""
    letters = [i for char in f"a{IM_END}b" for i in TOKENIZER.encode(char)]
    assert "".join(run(letters, stops=[IM_END])[0]) == "a"


def test_min_tokens_holds_for_special_stops() -> None:
    """SAM-08."""
    output = TextOutput(TOKENIZER, stops=[IM_END, "a"])
    (a,) = TOKENIZER.encode("a")
    assert (output.push(EOS_ID, False), output.stop_hit) == ("", None)
    assert (output.push(a, False), output.stop_hit) == ("a", None)
    assert (output.push(EOS_ID), output.stop_hit) == ("", IM_END)


def test_flush_inside_a_character() -> None:
    """STR-02: released once, however often flush is called."""
    output = TextOutput(TOKENIZER)
    assert output.push(TOKENIZER.encode("é")[0]) == ""
    assert (output.flush(), output.flush()) == ("\ufffd", "")


@given(
    text=st.lists(
        st.sampled_from(["<think>", "</think>", "<", "a", "b", " ", "\n"]), max_size=9
    ).map("".join),
    stops=st.lists(st.sampled_from(["a", "ab", "\n", "<", "</think>"]), max_size=2),
    is_open=st.booleans(),
    size=st.integers(1, 4),
)
def test_stop_strings_are_for_the_answer(
    text: str, stops: list[str], is_open: bool, size: int
) -> None:
    """In the thinking, and in the space after it, they are words like any other."""
    split = ThinkingSplit(is_open=is_open)
    pieces = [split.push(text[i : i + size]) for i in range(0, len(text), size)]
    thinking, answer = (
        ("".join(parts) for parts in zip(*pieces, strict=True)) if pieces else ("", "")
    )
    held = split.flush()
    assert thinking + answer + held == text
    ids = TOKENIZER.encode(text)
    taken, hit = run(ids, stops=stops, new_thinking=lambda: ThinkingSplit(is_open=is_open))
    shown = "".join(taken)
    assert text.startswith(shown)
    if hit is None:
        assert shown == text
        assert not any(stop in answer for stop in stops)
    else:
        assert text[len(shown) :].startswith(hit)
        assert len(shown) + len(hit) > len(thinking)


def test_what_went_before_opens_the_thinking() -> None:
    taken, hit = run(
        TOKENIZER.encode("a</think>\n\nb\n\nc"),
        stops=["a", "\n\n"],
        new_thinking=lambda: ThinkingSplit(is_open=False, before="<think>x"),
    )
    assert ("".join(taken), hit) == ("a</think>\n\nb", "\n\n")
