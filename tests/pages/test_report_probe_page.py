"""The page of probes: what is put side by side, and which levels stand beside it."""

from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from recurrify.errors import UserError
from recurrify.pages import plots
from recurrify.pages.probe import _by_task, draw_accuracy, probe_tables, write_probe_page
from recurrify.results import load_result

COMMITTED = Path(__file__).parents[2] / "results" / "probes"
Facts = dict[str, Any]


def result(name: str, *tasks: Facts, **config: Any) -> Facts:
    return {"kind": "probe", "name": name, "tasks": list(tasks), "provenance": {"config": config}}


def task(name: str, chance: float = 0.125, **more: Any) -> Facts:
    row = {"distance": 1, "accuracy": 0.5, "interval": [0.4, 0.6], "probability": 0.4, "answers": 9}
    return {"task": name, "asks": "What?", "chance": chance, "full_context": None, "rows": [row], **more}


def symbols(pairs: int, guess: float, **more: Any) -> Facts:
    return task("recall", 1 / 16, form="symbols", settings={"answers": 16, "pairs": pairs}, guess=guess, **more)


def captions(*results: Facts) -> list[str]:
    return [table.caption for table in probe_tables(results)]


def test_only_the_same_task_stands_in_one_table(tmp_path: Path) -> None:
    text = task("recall", form="text", settings={}, guess=0.45)
    found = [result("a", symbols(2, 0.77)), result("b", symbols(4, 0.57)), result("c", symbols(2, 0.77), text)]
    tables = probe_tables(found)
    assert [(table.caption, [row[0] for row in table.rows]) for table in tables] == [
        ("recall (symbols, answers 16, pairs 2) (chance 6.2 %, guess 77.0 %)", ["a", "c"]),
        ("recall (symbols, answers 16, pairs 4) (chance 6.2 %, guess 57.0 %)", ["b"]),
        ("recall (text) (chance 12.5 %, guess 45.0 %)", ["c"]),
    ]
    write_probe_page(found, tmp_path)
    page = (tmp_path / "index.html").read_text()
    assert page.count("<svg") == 3


def test_a_task_that_asks_otherwise_than_it_did_stands_apart() -> None:
    old, new = task("hidden", asks="Where?"), task("hidden", form="text", settings={}, guess=0.5, asks="Where now?")
    assert captions(result("a", old), result("b", new)) == [
        "hidden (chance 12.5 %)",
        "hidden, 2 (chance 12.5 %, guess 50.0 %)",
    ]


def test_where_one_answer_is_said_there_is_nothing_to_guess() -> None:
    assert captions(result("a", task("passkey", form="text", settings={}, guess=1.0))) == ["passkey (chance 12.5 %)"]


def test_older_results_are_read_and_their_guess_level_worked_out(tmp_path: Path) -> None:
    found = [load_result(path) for path in sorted(COMMITTED.glob("recall_*.json"))]
    # Two pairs: (17 / 32 + 1) / 2.
    assert captions(*found) == ["recall (chance 6.2 %, guess 76.6 %)"]
    new = {"answers": 16, "pairs": 2, "different_names": 16}
    asks = found[0]["tasks"][0]["asks"]
    both = [*found, result("new", task("recall", 1 / 16, form="symbols", settings=new, guess=49 / 64, asks=asks))]
    assert len(captions(*both)) == 1
    write_probe_page(found, tmp_path)
    assert "guess" in (tmp_path / "index.html").read_text()


@pytest.mark.parametrize("config", [{}, {"task_settings": None}, {"task_settings": {"pairs": "many"}}], ids=str)
def test_odd_results_are_shown_as_far_as_they_go(config: Facts) -> None:
    assert captions(result("a", task("recall", 1 / 16), **config)) in (
        ["recall (chance 6.2 %)"],
        ["recall (chance 6.2 %, guess 56.6 %)"],
    )


def test_without_a_task_there_is_no_page(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="The results hold no tasks"):
        write_probe_page([result("a")], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_both_levels_are_drawn() -> None:
    axes = Figure().add_subplot()
    assert draw_accuracy(axes, _by_task([result("a", symbols(2, 0.77))])[0], plots.ON_WHITE)
    levels = {line.get_label(): line.get_ydata()[0] for line in axes.lines}
    assert (levels["chance"], levels["guess"]) == (1 / 16, 0.77)
