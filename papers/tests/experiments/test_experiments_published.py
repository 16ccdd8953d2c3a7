"""The published numbers, and what is worked out from them."""

import pytest

from recurrify_papers.experiments import published
from recurrify_papers.experiments.catalogue import EXPERIMENTS


def test_gains_at_overlap_0_are_the_ones_the_paper_speaks_of() -> None:
    # 147.71 -> 133.02 and 30.47 -> 29.01, worked out by hand.
    assert published.gain(published.TABLE_2, "carry", 0)["test"] == pytest.approx(0.09945, abs=1e-5)
    assert published.gain(published.TABLE_1, "carry", 0)["test"] == pytest.approx(0.04792, abs=1e-5)


def test_recurrence_without_overlap_matches_plain_at_30_in_what_was_published() -> None:
    table = published.TABLE_2
    assert table["carry"][0].test < table["plain"][30].test
    assert table["carry"][5].test < table["plain"][50].test


def test_plain_rows_and_unpublished_overlaps_have_no_gain() -> None:
    assert published.gain(published.TABLE_2, "plain", 0) is None
    assert published.row(published.TABLE_2, "carry", 75) == {"published": None, "published_gain": None}
    assert published.row(None, "carry", 0) == {"published": None, "published_gain": None}


def test_perplexities_fall_as_overlap_grows() -> None:
    for table in (published.TABLE_1, published.TABLE_2):
        for rows in table.values():
            for split in ("valid", "test"):
                values = [getattr(rows[overlap], split) for overlap in sorted(rows)]
                assert values == sorted(values, reverse=True)


def test_every_published_result_has_a_name() -> None:
    sources = " ".join(experiment.source for experiment in EXPERIMENTS.values())
    for where in (
        "Table 1",
        "Table 2",
        "Table 3",
        "Figure 4",
        "Figure 5",
        "Tables 4 and 5",
        "5.3.1",
        "10.1.5",
        "10.1.6",
    ):
        assert where in sources, where
