"""Runs: what is skipped, what resumes, what fails, and jobs in other processes."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from recurrify import UserError
from recurrify_papers.clusters import Resources
from recurrify_papers.runner import DEADLINE, Run, minutes_left
from recurrify_papers.sweep import run_all


def add(settings: dict[str, Any], folder: Path, say: Any) -> dict[str, Any] | None:
    """A run that counts its calls and adds the results of others."""
    calls = folder / "calls"
    calls.write_text(calls.read_text() + "x" if calls.is_file() else "x")
    if settings.get("stops_before") and len(calls.read_text()) < settings["stops_before"]:
        return None
    if settings.get("fails"):
        raise ValueError("it does not work\nand more")
    others = [json.loads((Path(run) / "result.json").read_text())["sum"] for run in settings["of"]]
    return {"sum": settings["value"] + sum(others), "loss": settings.get("loss"), "pid": os.getpid()}


def run(name: str, value: Any = 1, of: tuple[str, ...] = (), **more: Any) -> Run:
    settings = {"value": value, "of": [{"run": one} for one in of], **more}
    return Run(name=name, function=f"{__name__}:add", settings=settings)


def quiet(text: str) -> None:
    pass


def test_runs_wait_for_what_they_need(tmp_path: Path) -> None:
    found = run_all([run("c", 3, ("a", "b")), run("b", 2, ("a",)), run("a")], tmp_path, quiet)
    assert {name: result["sum"] for name, result in found.items()} == {"a": 1, "b": 3, "c": 7}


def test_best_run_is_the_one_with_the_lowest_loss(tmp_path: Path) -> None:
    tried = [run("a", loss=2.0), run("b", loss=1.0), run("not-finite", loss=None)]
    best = run("best", {"best_of": {"a": 10, "b": 20, "not-finite": 30}})
    assert best.needs == ("a", "b", "not-finite")
    assert run_all([best, *tried], tmp_path, quiet)["best"]["sum"] == 20
    failures: list[str] = []
    run_all([run("none", {"best_of": {"not-finite": 30}}), tried[2]], tmp_path, quiet, failures=failures)
    assert failures == ["none failed: The loss is not finite in any of not-finite: try other values."]


def test_finished_runs_are_skipped(tmp_path: Path) -> None:
    said: list[str] = []
    run_all([run("a")], tmp_path, quiet)
    run_all([run("a"), run("b")], tmp_path, said.append)
    assert (tmp_path / "a" / "calls").read_text() == "x"
    assert said == ["1 of 2 runs are finished", "b: 1 of 1 runs done, about 0 min left"]


def test_other_settings_under_the_same_name_raise(tmp_path: Path) -> None:
    run_all([run("a")], tmp_path, quiet)
    with pytest.raises(UserError, match="holds a run with other settings"):
        run_all([run("a", 2)], tmp_path, quiet)


def test_stopped_runs_resume(tmp_path: Path) -> None:
    runs = [run("a", stops_before=2), run("b", 1, ("a",))]
    assert run_all(runs, tmp_path, quiet) == {}
    assert run_all(runs, tmp_path, quiet).keys() == {"a", "b"}


def test_failed_run_is_one_sentence_and_does_not_stop_others(tmp_path: Path) -> None:
    runs = [run("a", fails=True), run("b", 1, ("a",)), run("c")]
    failures: list[str] = []
    assert run_all(runs, tmp_path, quiet, failures=failures).keys() == {"c"}
    assert failures == ["a failed: it does not work."]
    assert "ValueError" in (tmp_path / "a" / "ended.txt").read_text()
    with pytest.raises(UserError, match="1 runs failed: a failed: it does not work"):
        run_all(runs, tmp_path, quiet)


def test_no_run_starts_after_the_deadline(tmp_path: Path) -> None:
    assert run_all([run("a")], tmp_path, quiet, Resources(max_minutes=0.0)) == {}
    assert DEADLINE not in os.environ
    assert minutes_left() is None


def test_unknown_cluster_raises() -> None:
    with pytest.raises(UserError, match="`cluster` must be one of local, slurm, debug: got 'cloud'"):
        Resources(cluster="cloud")


def test_jobs_run_in_processes_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]))
    failures: list[str] = []
    runs = [run("a"), run("b", 2, ("a",)), run("broken", fails=True)]
    found = run_all(runs, tmp_path, quiet, Resources(jobs=2), failures)
    assert {name: result["sum"] for name, result in found.items()} == {"a": 1, "b": 3}
    assert os.getpid() not in {result["pid"] for result in found.values()}
    assert failures == ["broken failed: it does not work."]
    assert list((tmp_path / "a" / "log").glob("*.out"))
