"""Incremental text equals whole text, whatever the ids."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_tokenizers import byte_level, sentencepiece

from tinyserve.text.tokenizer import Tokenizer

BYTE_LEVEL, SENTENCEPIECE = byte_level(), sentencepiece()
TOKENIZERS = {"bytes": BYTE_LEVEL, "spm": SENTENCEPIECE}
EITHER = pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS)
IDS = st.lists(st.integers(-1, 300), max_size=30)


def pieces(tokenizer: Tokenizer, ids: list[int], *, skip: bool = True) -> list[str]:
    """What each token adds, and last what the end adds."""
    detokenizer = tokenizer.detokenizer(skip_special_tokens=skip)
    return [*(detokenizer.push(i) for i in ids), detokenizer.flush()]


@EITHER
@given(ids=IDS, skip=st.booleans())
def test_stream_equals_whole(tokenizer: Tokenizer, ids: list[int], skip: bool) -> None:
    """STR-01, STR-02, STR-04: for any ids, with special tokens between the bytes of a letter."""
    whole = tokenizer.decode(ids, skip_special_tokens=skip)
    assert "".join(pieces(tokenizer, ids, skip=skip)) == whole


@EITHER
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
def test_no_replacement_character_in_valid_text(tokenizer: Tokenizer, text: str) -> None:
    """STR-01: no piece has U+FFFD that the text has not."""
    parts = pieces(tokenizer, tokenizer.encode(text, add_special_tokens=False))
    assert "".join(parts).count("\ufffd") == text.count("\ufffd")
    assert parts[-1] == ""


def test_emoji_comes_with_its_last_byte() -> None:
    """STR-01: three ids, one character."""
    assert pieces(BYTE_LEVEL, BYTE_LEVEL.encode("a😀b")) == ["a", "", "", "😀", "b", ""]


def test_end_inside_a_character() -> None:
    """STR-02: max_tokens=1 on an emoji: one U+FFFD, as in the whole text."""
    ids = BYTE_LEVEL.encode("😀")[:1]
    assert pieces(BYTE_LEVEL, ids) == ["", "\ufffd"]
    assert BYTE_LEVEL.decode(ids) == "\ufffd"


def test_impossible_bytes_are_replaced_at_once() -> None:
    """STR-03: 0xFF begins no character; the text before and after it is whole."""
    bad = BYTE_LEVEL.token_id("ÿ")
    assert bad is not None
    assert BYTE_LEVEL.token_bytes(bad) == b"\xff"
    (a,) = BYTE_LEVEL.encode("a")
    assert pieces(BYTE_LEVEL, [a, bad, a]) == ["a", "\ufffd", "a", ""]


@given(letter=st.sampled_from("é日😀"), used=st.integers(1, 3), token_id=st.integers(0, 300))
def test_what_cuts_a_character_is_known_before(letter: str, used: int, token_id: int) -> None:
    """A token that does not go on with the bytes held back leaves them as U+FFFD."""
    begun = BYTE_LEVEL.encode(letter, add_special_tokens=False)[:-1][:used]
    detokenizer = BYTE_LEVEL.detokenizer(skip_special_tokens=False)
    assert "".join(detokenizer.push(i) for i in begun) == ""
    alone = BYTE_LEVEL.decode([token_id], skip_special_tokens=False)
    both = BYTE_LEVEL.decode([*begun, token_id], skip_special_tokens=False)
    assert detokenizer.is_cut_by(token_id) == (alone != "" and both == f"\ufffd{alone}")


def test_long_word_without_spaces_is_not_held() -> None:
    """STR-18: every token of a URL shows at once."""
    ids = BYTE_LEVEL.encode("https://example.org/a?b=c&d=e")
    assert all(pieces(BYTE_LEVEL, ids)[:-1])


def test_only_the_first_marker_is_stripped() -> None:
    """SentencePiece's leading space goes once, after skipped special tokens too."""
    ids = SENTENCEPIECE.encode("hello world")
    assert pieces(SENTENCEPIECE, ids) == ["", "hello", " world", ""]
    assert pieces(SENTENCEPIECE, ids, skip=False) == ["<s>", " hello", " world", ""]
    assert pieces(SENTENCEPIECE, ids[2:]) == ["world", ""]
    going_on = SENTENCEPIECE.detokenizer(keeps_space=True)
    assert going_on.push(ids[2]) == " world"


def test_sequences_do_not_share_state() -> None:
    """STR-15: interleaved choices of one request."""
    first, second = BYTE_LEVEL.detokenizer(), BYTE_LEVEL.detokenizer()
    ids = BYTE_LEVEL.encode("é")
    assert first.push(ids[0]) == second.push(ids[0]) == ""
    assert first.push(ids[1]) == second.push(ids[1]) == "é"


def test_no_space_is_lost_after_a_character_that_lacks_bytes() -> None:
    """LOG-04: a text that begins with half a character does not begin with a marker."""
    half, word = SENTENCEPIECE.token_id("<0xF0>"), SENTENCEPIECE.token_id("\u2581hello")
    assert half is not None
    assert word is not None
    detokenizer = SENTENCEPIECE.detokenizer()
    lost = []
    for token_id in (half, word):
        lost.append(detokenizer.strip)
        detokenizer.push(token_id)
    assert lost[1] == 0
    assert SENTENCEPIECE.decode([half, word]) == "\ufffd hello"
