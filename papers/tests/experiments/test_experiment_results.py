"""The committed results: one tidy file per table, each with provenance; their pages can be written."""

from pathlib import Path

import pytest

from recurrify.results import load_result
from recurrify_papers.experiment import Row, experiments
from recurrify_papers.report import experiment_page

RESULTS = sorted((Path(__file__).parents[2] / "results").glob("*.json"))
TABLES = [path for path in RESULTS if load_result(path).get("kind") == "experiment"]


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_committed_results_are_tidy_and_shown(path: Path) -> None:
    result = load_result(path)
    assert result["provenance"]["date_utc"]
    rows = [Row(**row) for row in result["rows"]]
    assert [row.to_dict() for row in rows] == result["rows"]
    page = experiment_page(result, experiments()[result["name"]])
    assert page.title == result["title"]
    assert page.blocks


def test_headline_compares_with_the_published_value() -> None:
    result = load_result(next(path for path in TABLES if path.stem == "table2"))
    verdict = experiment_page(result, experiments()["table2"]).verdict
    assert "published: 9.9" in str(verdict)
