"""Runs: what is skipped, what resumes, what fails, and jobs in other processes."""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from recurrify import UserError, interrupts
from recurrify.interrupts import Interrupt
from recurrify_papers.clusters import Resources
from recurrify_papers.runner import DEADLINE, Run, minutes_left
from recurrify_papers.sweep import Sweep, cancel, log_of, run_all, standings


def add(settings: dict[str, Any], folder: Path, say: Any) -> dict[str, Any] | None:
    """A run that counts its calls and adds the results of others."""
    calls = folder / "calls"
    calls.write_text(calls.read_text() + "x" if calls.is_file() else "x")
    if settings.get("stops_before") and len(calls.read_text()) < settings["stops_before"]:
        return None
    if settings.get("fails"):
        raise ValueError("it does not work\nand more")
    if settings.get("signal") and calls.read_text() == "x":
        interrupt = Interrupt()
        with interrupt.listening():
            signal.raise_signal(settings["signal"])
            assert interrupt.heard
        return None
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
    assert said == ["1 of 2 runs are finished", "b: 1 of 1 runs done, about 0 s left"]


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
    with pytest.raises(UserError, match="1 of 3 runs failed: a failed: it does not work"):
        run_all(runs, tmp_path, quiet)


def test_no_run_starts_after_the_deadline(tmp_path: Path) -> None:
    assert run_all([run("a")], tmp_path, quiet, Resources(max_minutes=0.0)) == {}
    assert DEADLINE not in os.environ
    assert minutes_left() is None


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"cluster": "cloud"}, "`cluster` must be one of local, slurm, debug: got 'cloud'"),
        ({"partition": "gpu"}, "`partition`, `detach` and `time` are for Slurm: got cluster='local'"),
        ({"time": 90}, "are for Slurm: got cluster='local'"),
        ({"cluster": "slurm", "time": 0}, "`time` is 0 minutes, but jobs are asked to save up to 180 seconds before"),
        ({"gpus_per_run": 2}, "`gpus_per_run` is 0 or 1, because a run is one process: got 2"),
        ({"gpus_per_run": -1}, "`gpus_per_run` is 0 or 1"),
    ],
)
def test_bad_resources_raise(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        Resources(**options)


@pytest.fixture
def jobs_find_this_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]))


@pytest.mark.usefixtures("jobs_find_this_module")
def test_jobs_run_in_processes_of_their_own(tmp_path: Path) -> None:
    failures: list[str] = []
    runs = [run("a"), run("b", 2, ("a",)), run("broken", fails=True)]
    found = run_all(runs, tmp_path, quiet, Resources(jobs=2), failures)
    assert {name: result["sum"] for name, result in found.items()} == {"a": 1, "b": 3}
    assert os.getpid() not in {result["pid"] for result in found.values()}
    assert failures == ["broken failed: it does not work."]
    assert "Job completed successfully" in log_of("a", ["a"], tmp_path).read_text()
    assert standings(runs, tmp_path)["broken"] == ("failed", "it does not work.")
    with pytest.raises(UserError, match=r"no run 'brokn' in it \(did you mean 'broken'\?\): give a name such as a\."):
        log_of("brokn", ["a", "broken"], tmp_path)


@pytest.mark.usefixtures("jobs_find_this_module")
def test_signals_requeue_stop_and_kill_jobs(tmp_path: Path) -> None:
    said: list[str] = []
    runs = [
        run("out-of-time", signal=signal.SIGUSR1),
        run("killed", signal=signal.SIGKILL),
        run("stopped", 1, ("out-of-time",), signal=signal.SIGTERM),
        run("after", 1, ("stopped",)),
    ]
    failures: list[str] = []
    assert run_all(runs, tmp_path, said.append, Resources(jobs=2), failures).keys() == {"out-of-time"}
    assert (tmp_path / "out-of-time" / "calls").read_text() == "xx"
    assert failures[0].startswith("killed failed: it ended without a result: ")
    found = {name: one.state for name, one in standings(runs, tmp_path).items()}
    assert found == {"out-of-time": "finished", "killed": "failed", "stopped": "stopped", "after": "waiting"}
    assert run_all(runs, tmp_path, quiet).keys() == {"out-of-time", "killed", "stopped", "after"}


def test_a_signal_to_the_sweep_is_its_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "_received", [])
    monkeypatch.setattr(Sweep, "_step", lambda sweep: signal.raise_signal(signal.SIGTERM))
    with pytest.raises(KeyboardInterrupt):
        run_all([run("a")], tmp_path, quiet, Resources(jobs=1))
    assert interrupts.interrupt_code() == interrupts.TERMINATED


@pytest.mark.parametrize("content", ['{"clus', '{"a": 1}', "[1]"])
def test_damaged_record_of_a_job_is_one_sentence(content: str, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "job.json").write_text(content)
    with pytest.raises(UserError, match=r"a/job.json is not [^\n]*\.$"):
        standings([run("a")], tmp_path)


FAKE = """#!{python}
import sys
from pathlib import Path

folder = Path("{folder}")
scripts = sorted(folder.glob("*.sbatch"))
match Path(sys.argv[0]).name:
    case "sbatch":
        (folder / f"{{len(scripts) + 1}}.sbatch").write_text(Path(sys.argv[1]).read_text())
        print("Submitted batch job", len(scripts) + 1)
    case "squeue":
        for script in scripts:
            arrays = [line.split("-")[-1] for line in script.read_text().split() if line.startswith("--array=")]
            tasks = [f"_{{i}}" for i in range(int(arrays[0].split("%")[0]) + 1)] if arrays else [""]
            for task in tasks:
                print(f"{{script.stem}}{{task}}|PENDING|Dependency")
    case "scancel":
        (folder / "cancelled").write_text(" ".join(sys.argv[1:]))
"""


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Slurm's commands, which only write down what they are given; `make test-cluster` has a real Slurm."""
    folder = tmp_path / "slurm"
    folder.mkdir()
    for name in ("sbatch", "srun", "squeue", "scancel"):
        (folder / name).write_text(FAKE.format(python=sys.executable, folder=folder))
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def test_slurm_gets_arrays_with_dependencies(slurm: Path, tmp_path: Path) -> None:
    runs = [run("base"), run("a", 1, ("base",)), run("b", 1, ("base",)), run("score", 1, ("b",))]
    own = {"slurm_account": "me"}
    resources = Resources(cluster="slurm", detach=True, time=90, partition="gpu", gpus_per_run=1, slurm=own)
    for _ in range(2):  # the second finds the jobs of the first
        assert run_all(runs, tmp_path / "runs", quiet, resources) == {}
    base, both, score = (
        set(file.read_text().replace("#SBATCH ", "").splitlines()) for file in sorted(slurm.glob("*.sbatch"))
    )
    common = {"--time=90", "--partition=gpu", "--gpus-per-node=1", "--account=me", "--requeue"}
    assert base >= common
    assert both >= common | {"--array=0-1%2", "--dependency=afterok:1", "--kill-on-invalid-dep=yes"}
    assert score >= common | {"--dependency=afterok:2_1"}
    assert {one.state for one in standings(runs, tmp_path / "runs").values()} == {"queued: dependency"}
    assert cancel(runs, tmp_path / "runs") == ["base", "a", "b", "score"]
    assert (slurm / "cancelled").read_text() == "1 2_0 2_1 3"


def test_missing_slurm_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="'sbatch' is not installed: run this on a machine of the cluster"):
        run_all([run("a")], tmp_path, quiet, Resources(cluster="slurm"))
