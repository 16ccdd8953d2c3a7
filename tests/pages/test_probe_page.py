"""The page of probes: which scores are comparable, the levels next to them, and the verdict."""

from pathlib import Path
from typing import Any

import pytest

from recurrify.errors import UserError
from recurrify.pages.probe import _by_task, accuracy_chart, probe_tables, probe_verdict, write_probe_page

Facts = dict[str, Any]


def result(name: str, *tasks: Facts, **config: Any) -> Facts:
    return {"kind": "probe", "name": name, "tasks": list(tasks), "provenance": {"config": config}}


def task(name: str, chance: float = 0.125, low: float = 0.4, distance: int = 1, **more: Any) -> Facts:
    row = {"distance": distance, "accuracy": 0.5, "interval": [low, 0.6], "probability": 0.4, "answers": 9}
    return {"task": name, "asks": "What?", "chance": chance, "full_context": None, "rows": [row], **more}


def symbols(pairs: int, guess: float, **more: Any) -> Facts:
    return task("recall", 1 / 16, form="symbols", settings={"answers": 16, "pairs": pairs}, guess=guess, **more)


def captions(*results: Facts) -> list[str]:
    return [table.caption for table in probe_tables(results)]


def test_a_table_holds_scores_of_the_same_task_and_settings(tmp_path: Path) -> None:
    text = task("recall", form="text", settings={}, guess=0.45)
    found = [result("a", symbols(2, 0.77)), result("b", symbols(4, 0.57)), result("c", symbols(2, 0.77), text)]
    assert [(table.caption, [row[0] for row in table.rows]) for table in probe_tables(found)] == [
        ("recall (symbols, answers 16, pairs 2) (chance 6.2 %, guessing 77.0 %)", ["a", "c"]),
        ("recall (symbols, answers 16, pairs 4) (chance 6.2 %, guessing 57.0 %)", ["b"]),
        ("recall (text) (chance 12.5 %, guessing 45.0 %)", ["c"]),
    ]
    write_probe_page(found, tmp_path)
    assert (tmp_path / "index.html").read_text().count('<figure class="chart">') == 3
    assert (tmp_path / "probe.png").read_bytes().startswith(b"\x89PNG")


def test_tasks_that_ask_differently_are_separate() -> None:
    old, new = (
        task("hidden", form="text", asks="Where?"),
        task("hidden", form="text", settings={}, guess=0.5, asks="Where now?"),
    )
    assert captions(result("a", old), result("b", new)) == [
        "hidden (chance 12.5 %)",
        "hidden, 2 (chance 12.5 %, guessing 50.0 %)",
    ]


def test_one_possible_answer_leaves_nothing_to_guess() -> None:
    assert captions(result("a", task("passkey", form="text", settings={}, guess=1.0))) == ["passkey (chance 12.5 %)"]


def test_result_without_tasks_raises(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="The results hold no tasks"):
        write_probe_page([result("a")], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_chart_draws_both_levels_and_full_context() -> None:
    full = {"accuracy": 0.9, "interval": [0.8, 1.0]}
    chart = accuracy_chart(*_by_task([result("a", symbols(2, 0.77, full_context=full))])[0])
    sets = list(chart.spec["datasets"].values())
    assert [{"level": 1 / 16, "name": "chance"}] in sets
    assert [{"level": 0.77, "name": "guessing"}] in sets
    assert [(one["distance"], one["accuracy"]) for one in sets[0]] == [(0, 0.9), (1, 0.5)]


def test_verdict_needs_an_interval_above_chance_and_guessing() -> None:
    near, far = task("passkey", low=0.4), task("passkey", low=0.3, distance=10)
    verdict = probe_verdict([result("a", {**near, "rows": near["rows"] + far["rows"]})])
    assert verdict.number == "10 windows"
    assert "a recalls from up to 10 windows back (passkey): 50.0 % right there, 12.5 % without" in verdict.sentence
    for weak in (task("passkey", low=0.1), symbols(2, 0.77)):
        assert "No evidence of recall at any distance" in probe_verdict([result("a", weak)]).sentence
