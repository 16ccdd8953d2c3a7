"""Markdown tables and the way numbers are written."""

from typing import Any

import pytest

from recurrify.pages import numbers
from recurrify.pages.markdown_text import markdown


def test_markdown_has_the_statement_and_aligned_tables(result: dict[str, Any]) -> None:
    text = markdown(result)
    assert text.startswith("With the shipped weights and no overlap, recurrence lowers perplexity per word by 4.3 %")
    assert "| plain     |       0 |               30.12 | 28.92 to 31.32 |" in text
    assert "**Trained live just now: mean over 2 seeds**" in text
    assert "within noise" in text
    for table in text.split("**")[2::2]:
        widths = {len(line) for line in table.strip().splitlines()}
        assert len(widths) == 1


def test_markdown_of_nothing_is_two_sentences() -> None:
    text = markdown({})
    assert "|" not in text
    assert len(text.strip().splitlines()) == 2


def test_a_single_live_seed_shows_its_interval(result: dict[str, Any]) -> None:
    result["rows"] = [row for row in result["rows"] if row["seed"] == 0]
    text = markdown(result)
    assert "range over seeds" not in text
    assert "31.20 to 33.80" in text


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1.14e6, "1.14 M"),
        (1.3e6, "1.30 M"),
        (999_999, "1.00 M"),
        (123_456, "123 k"),
        (12, "12.0"),
        (None, "–"),
    ],
)
def test_large_numbers_keep_three_digits(value: float | None, expected: str) -> None:
    assert numbers.large(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"), [(0.0432, "+4.3 %"), (-0.003, "−0.3 %"), (-0.0001, "0.0 %"), (None, "–")]
)
def test_percentages_have_a_true_sign(value: float | None, expected: str) -> None:
    assert numbers.percent(value, signed=True) == expected
