"""The schedule against expected lists, and its properties for any numbers."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recurrify import UserError, Window, schedule
from recurrify.windows import completed


@st.composite
def cuts(draw: st.DrawFn) -> tuple[int, int, int]:
    window = draw(st.integers(1, 40))
    return draw(st.integers(0, 200)), window, draw(st.integers(0, window - 1))


def test_example_of_the_paper() -> None:
    """Section 4.2, windows of 10 and an overlap of 3: 1–10 predict t2:11, 8–17 t12:18, 15–24 t19:25."""
    windows = schedule(24, 10, 3)
    assert windows == [Window(0, 10, 0), Window(7, 17, 10), Window(14, 24, 17)]
    inputs = [(start + 1, stop) for start, stop, _ in windows]
    predicted = [(first + 2, stop + 1) for _, stop, first in windows]
    assert inputs == [(1, 10), (8, 17), (15, 24)]
    assert predicted == [(2, 11), (12, 18), (19, 25)]


@pytest.mark.parametrize(
    ("length", "window", "overlap", "expected"),
    [
        (0, 4, 0, []),
        (1, 4, 0, [(0, 1, 0)]),
        (4, 4, 0, [(0, 4, 0)]),
        (9, 4, 0, [(0, 4, 0), (4, 8, 4), (8, 9, 8)]),
        (4, 4, 3, [(0, 4, 0)]),
        (7, 4, 3, [(0, 4, 0), (1, 5, 4), (2, 6, 5), (3, 7, 6)]),
        (11, 6, 2, [(0, 6, 0), (4, 10, 6), (8, 11, 10)]),
        (10, 6, 2, [(0, 6, 0), (4, 10, 6)]),
        (3, 1, 0, [(0, 1, 0), (1, 2, 1), (2, 3, 2)]),
    ],
)
def test_expected_lists(length: int, window: int, overlap: int, expected: list[tuple[int, int, int]]) -> None:
    assert schedule(length, window, overlap) == expected


def test_disjoint_is_the_default() -> None:
    assert schedule(20, 6) == schedule(20, 6, 0)


@given(cuts())
def test_properties(cut: tuple[int, int, int]) -> None:
    length, window, overlap = cut
    windows = schedule(length, window, overlap)
    scored = [place for _, stop, first in windows for place in range(first, stop)]
    assert scored == list(range(length)), "every input is scored exactly once, in order"
    for start, stop, first in windows:
        assert 0 <= start <= first < stop <= length
        assert stop - start <= window
    for before, after in pairwise(windows):
        assert after.start - before.start == window - overlap
        assert before.stop - before.start == window, "only the last window may be short"


@given(cuts())
def test_completed_counts_full_windows(cut: tuple[int, int, int]) -> None:
    length, window, overlap = cut
    count, start = 0, 0
    while start + window <= length:
        count, start = count + 1, start + window - overlap
    assert completed(length, window, overlap) == count
    full = [span for span in schedule(length, window, overlap) if span.stop - span.start == window]
    assert len(full) == count


@pytest.mark.parametrize(
    ("length", "window", "overlap", "sentence"),
    [
        (5, 0, 0, r"`window` must be at least 1 token: got window=0\."),
        (5, -2, 0, r"got window=-2\."),
        (5, 4, 4, r"`overlap` must be at least 0 and smaller than `window`: got overlap=4, window=4\."),
        (5, 4, 9, r"got overlap=9, window=4\."),
        (5, 4, -1, r"got overlap=-1, window=4\."),
        (-1, 4, 0, r"`length` cannot be negative: got length=-1\."),
    ],
)
def test_bad_values(length: int, window: int, overlap: int, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        schedule(length, window, overlap)
