"""Tables from made-up results: which numbers rows have."""

import math
from dataclasses import replace
from typing import Any

import pytest
from experiments_support import LOSSES, made_up, perplexity

from recurrify_papers.declare import number_experiment
from recurrify_papers.experiment import Table, experiments
from recurrify_papers.plan import Entry, Plan
from recurrify_papers.sizes import SIZES, Size

SMALL = SIZES["small"]


def table(name: str, size: Size = SMALL) -> Table:
    experiment = experiments()[name]
    return experiment.table(size, made_up(list(experiment.runs(size))))


def value(found: Table, label: str, metric: str, **where: object) -> float:
    rows = [row for row in found.rows if (row.label, row.metric) == (label, metric)]
    (row,) = [row for row in rows if all(getattr(row, key) == one for key, one in where.items())]
    assert row.value is not None
    return row.value


@pytest.mark.usefixtures("patched")
def test_rows_are_means_over_seeds() -> None:
    found = table("table1")
    expected = sum(perplexity(LOSSES["carry"] + 0.001 * seed) for seed in (0, 1, 2)) / 3
    label = "recurrent, as in the paper"
    assert value(found, label, "perplexity_per_word", overlap=0, split="test") == pytest.approx(expected)
    (row,) = [
        one
        for one in found.rows
        if (one.label, one.metric, one.overlap, one.split) == (label, "perplexity_per_word", 5, "test")
    ]
    assert row.seeds == 1
    assert found.missing == []


def test_numbers_are_means_over_seeds_of_the_best_candidates() -> None:
    def entries(plan: Plan) -> list[Entry]:
        trained = {0: ("a", "b"), 1: ("c",), 2: ("not finished",)}
        return [Entry(label="gru", model="gru", dataset="parity", trained=trained, note="small")]

    def result(loss: float, value: float) -> dict[str, Any]:
        numbers = [{"metric": "accuracy", "at": 40.0, "value": value, "note": "fast"}]
        return {"loss": loss, "numbers": numbers, "curves": [{"x": [1], "y": [loss]}]}

    experiment = number_experiment(entries, lambda row: 0.5, name="n", title="t", source="s")
    results = {"a": result(2.0, 0.1), "b": result(1.0, 0.7), "c": result(3.0, 0.9)}
    found = experiment.table(SMALL, results)
    (row,) = found.rows
    assert (row.label, row.dataset, row.at, row.seeds, row.note) == ("gru", "parity", 40.0, 2, "small; fast")
    assert (row.value, row.spread) == (pytest.approx(0.8), pytest.approx(0.02**0.5))
    assert row.published == 0.5
    assert found.curves == [{"name": "gru", "x": [1], "y": [1.0]}]
    assert found.missing == ["parity, gru, seed 2"]


def test_learning_rate_with_the_lowest_loss_is_chosen() -> None:
    found = table("learning-rates")
    chosen = {row.model: row.at for row in found.rows if row.note == "chosen"}
    assert chosen == {"plain": 1e-4, "carry": 1e-4, "best": 1e-4}


@pytest.mark.usefixtures("patched")
def test_missing_rows_are_named() -> None:
    experiment = experiments()["table2"]
    results = made_up(list(experiment.runs(SMALL)))
    del results["books-carry-w300-o0-s1-test-o0"]
    assert experiment.table(SMALL, results).missing == ["books, recurrent, as in the paper, window 300, seed 1"]
    assert len(experiment.table(SMALL, {}).missing) == 15


@pytest.mark.usefixtures("patched")
def test_frozen_base_keeps_a_share_of_the_gain_by_memory() -> None:
    found = table("frozen")
    gain = 1 - math.exp(-0.05 * 2)
    assert value(found, "tail-16", "gain by memory") == pytest.approx(gain)
    assert value(found, "tail-16, frozen base", "remaining share of the gain by memory") == pytest.approx(1.0)
    assert value(found, "tail-16", "added kilobytes") == 1.0


@pytest.mark.usefixtures("patched")
def test_memories_are_compared_with_cheaper_rivals() -> None:
    found = table("mechanisms")
    # Plain windows may overlap by 5 tokens at the cost of a memory.
    rival = next(row for row in found.rows if row.label == "tail-16" and row.metric == "gain over cheaper rival")
    assert rival.note == "over plain, window 300, overlap 5"
    assert rival.value == pytest.approx(1 - math.exp(2 * (LOSSES["tail"] - LOSSES["none"] + 0.05)))
    dearer = [row for row in found.rows if row.metric == "gain of dearer rival"]
    assert dearer
    assert all(row.label == "plain" and row.value > 0 for row in dearer)


@pytest.mark.usefixtures("patched")
@pytest.mark.parametrize("name", ["tokens", "rotary", "unfamiliar", "starts", "figure4", "figure5", "thesis-enwik8"])
def test_tables_of_finished_runs_are_whole(name: str) -> None:
    found = table(name)
    assert found.missing == []
    assert {row.metric for row in found.rows} >= {"perplexity_per_word"}


@pytest.mark.usefixtures("patched")
def test_long_runs_take_the_better_learning_rate() -> None:
    found = table("tokens")
    tokens = {row.at for row in found.rows}
    assert tokens == {1e6, 3e6, 1e7, 3e7, 1e8}
    seeds = {row.at: row.seeds for row in found.rows if row.metric == "perplexity_per_word"}
    assert seeds == {1e6: 3, 3e6: 3, 1e7: 1, 3e7: 1, 1e8: 1}


def test_only_restricts_the_rows_of_mechanisms() -> None:
    size = replace(SMALL, own={**SMALL.own, "mechanisms": {"only": ["tail-16"]}})
    names = {run.name for run in experiments()["mechanisms"].runs(size)}
    assert any("beyond-tail-16-" in name for name in names)
    assert not any("beyond-compress-32-" in name for name in names)
    assert any("beyond-lookback-256-" in name for name in names)


@pytest.mark.usefixtures("patched")
def test_settle_compares_each_row_with_plain_windows_trained_alike() -> None:
    runs = experiments()["settle"].runs(SMALL)
    found = table("settle")
    assert not found.missing
    memories = [row for row in found.rows if row.metric == "gain"]
    assert {(row.window, row.at) for row in memories} >= {(100, 16e6), (300, 16e6), (300, 48e6), (300, 100e6)}
    assert {row.overlap for row in memories} == {0, 5, 10, 30, 50}
    controls = [row for row in found.rows if row.metric == "gain by memory"]
    assert len(controls) == len(memories)
    assert all(row.value == pytest.approx(1 - math.exp(-0.05 * 2)) for row in controls)
    names = [run.name for run in runs]
    trained = next(name for name in names if "w100" in name)
    assert names.index(f"{trained}-test-o0") == names.index(trained) + 1
