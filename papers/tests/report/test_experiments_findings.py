"""What the report claims is what the numbers say: headlines, published findings and the Pareto front."""

from pathlib import Path
from typing import Any

import pytest
from experiment_results import experiment, scored_row, window_rows

from recurrify_papers.report.experiments_data import Experiment, SizeResults
from recurrify_papers.report.experiments_front import Point, pareto_front
from recurrify_papers.report.experiments_statement import (
    front_finding,
    further_statements,
    headline,
    overlap_finding,
    window_finding,
)

Facts = dict[str, Any]


def table(rows: list[Facts], layout: str = "perplexity") -> Experiment:
    return Experiment(Path("small/table2.json"), experiment("table2", layout, "Books", rows))


def results(*experiments: Experiment, size: str = "small") -> SizeResults:
    return SizeResults(size, Path(size), list(experiments))


def pair(gain: Facts | None) -> list[Facts]:
    carry = scored_row("carry", 131.2) | {"gain": gain, "published_gain": {"test": 0.0994}}
    return [scored_row("plain", 138.4), carry]


def of(relative: float, interval: list[float] | None, **more: Any) -> Facts:
    return {"test": {"relative_gain": relative, "interval": interval, "seeds": 3} | more}


@pytest.mark.parametrize(
    ("gain", "expected"),
    [
        pytest.param(
            of(0.052, [0.047, 0.058]),
            "lowered test perplexity per word by 5.2 % (95 % interval 4.7 % to 5.8 %), from 138.4 to 131.2, 3 seeds.",
            id="lower",
        ),
        pytest.param(
            of(-0.02, [-0.03, -0.01]),
            "raised test perplexity per word by 2.0 % (95 % interval 1.0 % to 3.0 %), from 138.4 to 131.2, 3 seeds.",
            id="higher",
        ),
        pytest.param(
            of(0.004, [-0.002, 0.01]),
            "lowered test perplexity per word by 0.4 % (95 % interval −0.2 % to +1.0 %), which is within noise, "
            "3 seeds.",
            id="noise",
        ),
        pytest.param(
            of(0.05, None, seeds=1),
            "lowered test perplexity per word by 5.0 %; without an interval that counts as within noise, one seed.",
            id="no interval",
        ),
    ],
)
def test_the_headline_says_what_the_interval_allows(gain: Facts, expected: str) -> None:
    told = headline(results(table(pair(gain))))
    assert told == f"On books without overlap, recurrence as published {expected} Published: 9.9 % lower."


def test_without_a_comparison_nothing_is_claimed() -> None:
    assert "has not been compared" in headline(results(table(pair(None))))
    assert headline(results()) == "The comparison on books (table2) has not been run at this size."


def test_what_is_not_run_is_counted() -> None:
    waiting = Experiment(Path("small/a.json"), experiment("a", "topics", "A", [], missing=["x", "y"]))
    assert "Not run yet: 2 rows, named in the sections below." in further_statements(results(waiting))


def overlaps(carry: float, plain: dict[int, float], window: int = 300) -> Experiment:
    rows = [scored_row("plain", value, overlap=overlap, window=window) for overlap, value in plain.items()]
    return table([*rows, scored_row("carry", carry, window=window)])


@pytest.mark.parametrize(
    ("carry", "verdict"),
    [
        pytest.param(126.0, "it holds: 126.0 against 128.0, 1.6 % lower (means over seeds;", id="holds"),
        pytest.param(128.0, "it holds: 128.0 against 128.0, 0.0 % lower (", id="equal"),
        pytest.param(131.0, "it does not hold: 131.0 against 128.0, 2.3 % higher (", id="does not"),
    ],
)
def test_the_finding_about_overlap_is_computed(carry: float, verdict: str) -> None:
    told = overlap_finding(overlaps(carry, {0: 138.0, 10: 132.0, 30: 128.0, 50: 125.0}), "carry")
    assert f"Here {verdict}" in told
    assert told.endswith(f"no better is {10 if carry > 128 else 30}.")


def test_the_finding_about_overlap_needs_the_same_windows_and_both_rows() -> None:
    assert "cannot be said yet" in overlap_finding(overlaps(126.0, {0: 138.0}), "carry")
    shorter = overlap_finding(overlaps(126.0, {0: 138.0, 30: 128.0}, window=64), "carry")
    assert "cannot be said: the windows are of 64 tokens" in shorter
    worst = overlap_finding(overlaps(140.0, {0: 138.0, 30: 128.0}), "carry")
    assert worst.endswith("not as good as plain windows at any overlap that was run.")


def test_the_finding_about_windows_is_computed() -> None:
    rows = window_rows()
    told = window_finding(table(rows, "windows"))
    assert "Here it does: recurrence gains +7.8 % at window 200 and +2.6 % at window 600." in told
    for row in rows:
        if row["kind"] == "carry" and row["window"] == 600:
            row["gain"]["valid"]["relative_gain"] = 0.09
    assert "Here it does not:" in window_finding(table(rows, "windows"))
    assert "too few" in window_finding(table(rows[:3], "windows"))


def point(kind: str, flops: float, perplexity: float) -> Point:
    return Point(kind, 300, 0, flops, perplexity)


def test_the_front_of_a_case_by_hand() -> None:
    cheap, middle, good = point("plain", 1.0, 10.0), point("carry", 2.0, 8.0), point("plain", 4.0, 5.0)
    twin = point("best", 2.0, 8.0)
    dominated = [
        point("plain", 3.0, 8.5),  # costlier and worse than the middle
        point("plain", 1.0, 11.0),  # as cheap as the first, but worse
        point("plain", 5.0, 5.0),  # as good as the last, but costlier
    ]
    front = pareto_front([*dominated, good, middle, twin, cheap])
    assert front[0] == cheap
    assert set(front[1:3]) == {middle, twin}
    assert front[3:] == [good]
    assert pareto_front([]) == []


def test_the_front_is_told_by_both_counts_of_cost() -> None:
    rows = [
        scored_row("plain", 140.0, window=200) | {"flops_per_token": 1.0e8, "full_flops_per_token": 1.0e8},
        scored_row("carry", 130.0, window=200) | {"flops_per_token": 1.0e8, "full_flops_per_token": 1.2e8},
        scored_row("carry", 129.0, window=300) | {"flops_per_token": 2.0e8, "full_flops_per_token": 2.2e8},
        scored_row("plain", 128.0, window=300) | {"flops_per_token": 1.5e8, "full_flops_per_token": 1.5e8},
    ]
    published, full = front_finding(table(rows, "frontier"))
    assert "lie: recurrent, overlap 0 (windows of 200); plain, overlap 0 (windows of 300)." in published
    assert "That is 1 of 2 recurrent points as published." in published
    assert "these do: plain, overlap 0 (windows of 200 and 300); recurrent, overlap 0 (windows of 200)." in full
    assert front_finding(table([], "frontier")) == []
