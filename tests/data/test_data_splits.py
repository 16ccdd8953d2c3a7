"""Splitting by position, for any text."""

from hypothesis import given
from hypothesis import strategies as st

from recurrify.data.splits import cut_by_position

TEXTS = st.text(alphabet=st.sampled_from("ab \n\r\té\u2028"), max_size=400)


@given(TEXTS)
def test_nothing_is_lost_or_duplicated(text: str) -> None:
    assert "".join(cut_by_position(text)) == text


@given(TEXTS.filter(lambda text: len(text) >= 20))
def test_no_part_is_empty(text: str) -> None:
    assert all(cut_by_position(text))


def test_cuts_are_at_lines_where_there_are_any_and_at_words_otherwise() -> None:
    lines = "some words here\r\n" * 200
    assert all(part.endswith("here\r\n") for part in cut_by_position(lines))
    words = "some words here " * 200
    assert all(part.endswith(" ") and part.startswith(("some", "words", "here")) for part in cut_by_position(words))


def test_a_windows_newline_is_never_cut_in_two() -> None:
    text = "a" * 924 + "\r\n" + "a" * 74
    assert not any(part.endswith("\r") for part in cut_by_position(text))
