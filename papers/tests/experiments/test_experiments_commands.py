"""`recurrify experiment` on the command line."""

import time
from dataclasses import replace
from pathlib import Path

import pytest

from recurrify.errors import UserError
from recurrify.results import load_result
from recurrify_papers.experiments.catalogue import EXPERIMENTS
from recurrify_papers.experiments.lab import Lab
from recurrify_papers.experiments.running import STOPPED, run_experiments
from recurrify_papers.experiments.sizes import SIZES, Size
from support.commands import invoke


def test_list_names_every_experiment_and_size() -> None:
    said = invoke("experiment", "list")
    for name in (*EXPERIMENTS, *SIZES):
        assert name in said


def test_run_writes_the_result_and_chooses_rates_first(known: Size, tmp_path: Path) -> None:
    said = invoke("experiment", "run", "learning-rates", "--size", "tiny", "--root", tmp_path)
    assert str(tmp_path / "tiny" / "learning-rates.json") in said
    assert not load_result(tmp_path / "tiny" / "learning-rates.json")["missing"]


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (["tabel2"], "There is no experiment 'tabel2'"),
        (["table3"], "table3 is not run from here"),
    ],
    ids=["unknown", "later"],
)
def test_names_that_cannot_be_run(lab: Lab, names: list[str], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        run_experiments(names, lab)


def test_time_that_ran_out_is_said_and_nothing_is_lost(size: Size, tmp_path: Path) -> None:
    said: list[str] = []
    size = replace(size, candidates=(1e-2,))
    lab = Lab(size, tmp_path, said.append, deadline=0.0)
    assert run_experiments(["table2"], lab) == []
    assert "stopped before the end: the same command goes on from here" in said
    lab = Lab(size, tmp_path, said.append)
    run_experiments(["learning-rates"], lab)
    assert not load_result(lab.folder / "learning-rates.json")["missing"]


def test_what_was_measured_is_kept_until_it_is_deleted(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose rows are missing is measured again; and nothing is begun when time is up."""
    answers = iter([([{"part": "a"}], ["b"]), ([{"part": "a"}, {"part": "b"}], [])])
    experiment = replace(EXPERIMENTS["slides-complexity"], rows=lambda lab: next(answers))
    monkeypatch.setitem(EXPERIMENTS, experiment.name, experiment)
    said: list[str] = []
    lab = replace(lab, say=said.append)
    path = lab.folder / "slides-complexity.json"
    assert run_experiments([experiment.name], replace(lab, deadline=time.monotonic() - 1)) == []
    assert said[-1] == STOPPED
    assert not path.exists()
    for parts in (1, 2, 2):
        assert run_experiments([experiment.name], lab) == [path]
        assert len(load_result(path)["rows"]) == parts
    assert said[-1] == f"slides-complexity was measured already: delete {path} to measure again"


def test_missing_rows_are_named(lab: Lab) -> None:
    from recurrify_papers.experiments.catalogue import overlap_table
    from recurrify_papers.experiments.unit import do_unit

    plain = lab.unit("books", "plain").with_scores([lab.wanted("valid", 0), lab.wanted("test", 0)])
    do_unit(plain, lambda text: None, show_progress=False)
    rows, missing = overlap_table(lab, "books", None, ())
    assert [row["row"] for row in rows] == ["plain/w8/o0"]
    assert rows[0]["seeds"] == [0]
    assert "carry/o0" in missing
    assert "plain/o3" in missing


def test_unknown_sizes_are_refused(tmp_path: Path) -> None:
    from recurrify_papers.experiments.sizes import size_named

    with pytest.raises(UserError, match="There is no size 'huge': choose one of paper, small, tiny"):
        size_named("huge")
