"""The reproduction's protocol as one thing: the same for every model, run once, stopped and gone on with."""

import signal
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from recurrify import UserError, side_by_side
from recurrify.cli import main as cli
from recurrify.results import load_result
from recurrify.side_by_side import Outcome, Task
from recurrify_papers.commands import experiment as commands
from recurrify_papers.experiments import scratch
from recurrify_papers.experiments import sizes as size_module
from recurrify_papers.experiments.lab import Lab
from recurrify_papers.experiments.running import STOPPED, run_experiments
from recurrify_papers.experiments.scratch import (
    ScratchStudy,
    protocol,
    protocol_rows,
    runs_of,
    small,
    small_rows,
    smallest,
)
from recurrify_papers.experiments.sizes import SIZES, Size
from recurrify_papers.models.language import count_parameters, language_model
from recurrify_papers.scratch.settings import ScratchSettings


@pytest.fixture
def text_lab(lab: Lab, tmp_path: Path) -> Lab:
    path = tmp_path / "text.txt"
    path.write_text("".join(f"{number} and {number * number % 97} make more.\n" for number in range(120)))
    return replace(lab, wiki=str(path))


def with_study(lab: Lab, **changed: Any) -> Lab:
    """With one seed, and small models of one width."""
    study = lab.size.scratch | {"seeds": (0,), "small_widths": (8,)} | changed
    said: list[str] = []
    return replace(lab, size=replace(lab.size, scratch=study), say=said.append)


def test_the_defaults_are_the_protocol(lab: Lab) -> None:
    """14 layers of 512, target = memory = 512, 22 lanes, 20,000 steps; the published numbers of parameters."""
    study = ScratchStudy()
    runs = {run.entrant.name: run.settings for run in runs_of(lab, protocol(study), study)}
    assert list(runs) == ["xl", "rsa-xl", "brt", "rsa-xl-closed"]
    for settings in runs.values():
        assert (settings.steps, settings.batch, settings.length) == (20_000, 22, 512)
        assert (settings.learning_rate, settings.schedule, settings.warmup_steps) == (2.5e-4, "cosine", 0)
        assert settings.symbols == "bytes-without-newlines"
        assert settings.valid_steps == 2_000
        assert (settings.settings["layers"], settings.settings["width"]) == (14, 512)
    assert runs["xl"].settings["memory_length"] == runs["brt"].settings["window"] == 512
    with torch.device("meta"):
        counts = {
            name: count_parameters(language_model(one.arch, 204, target_length=512, **one.settings))
            for name, one in runs.items()
            if name != "brt"
        }
    assert counts == {"xl": 47_880_396, "rsa-xl": 47_880_466, "rsa-xl-closed": 47_880_466}
    apart = {"arch", "settings", "out"}
    alike = [{key: value for key, value in asdict(one).items() if key not in apart} for one in runs.values()]
    assert alike[0] == alike[1] == alike[2] == {**alike[3], "recurrence_learning_rate": None}
    assert alike[3]["recurrence_learning_rate"] == 1e-2
    assert runs["rsa-xl-closed"].settings == runs["rsa-xl"].settings | {"rsa.gate_start": -3.0}


def test_the_small_models_have_half_the_layers_and_both_widths(lab: Lab) -> None:
    shapes = {one.name: (one.arch, one.shape["layers"], one.shape["width"]) for one in small(ScratchStudy())}
    assert shapes == {
        "xl-small-256": ("xl", 7, 256),
        "rsa-xl-small-256": ("rsa-xl", 7, 256),
        "xl-small-8": ("xl", 7, 8),
        "rsa-xl-small-8": ("rsa-xl", 7, 8),
        "rsa-xl-small-256-own-rate": ("rsa-xl", 7, 256),
        "xl-smallest": ("xl", 7, 8),
        "rsa-xl-smallest": ("rsa-xl", 7, 8),
    }
    runs = {run.name: run.settings for run in runs_of(lab, small(ScratchStudy()), ScratchStudy())}
    rates = {name: one.recurrence_learning_rate for name, one in runs.items()}
    assert {name: rate for name, rate in rates.items() if rate is not None} == {"rsa-xl-small-256-own-rate-s0": 1e-2}


def test_the_smallest_are_as_small_as_in_the_reproductions_scripts(lab: Lab) -> None:
    """The reproduction's log has 24,000 parameters; five for each of seven layers are the recurrence's here, as in all
    other models of ours."""
    runs = {run.name: run.settings for run in runs_of(lab, smallest(ScratchStudy()), ScratchStudy())}
    one = runs["rsa-xl-smallest-s0"]
    with torch.device("meta"):
        assert count_parameters(language_model("rsa-xl", 204, **one.settings)) == 24_007
        assert count_parameters(language_model("xl", 204, **runs["xl-smallest-s0"].settings)) == 24_007 - 35
    assert (one.length, one.settings["memory_length"], one.batch, one.steps) == (32, 32, 22, 20_000)
    assert one.valid_every == 2_000 * 22 * 32


@pytest.mark.parametrize("name", ["paper", "small"])
def test_full_sizes_are_the_protocol_on_enwik8(name: str, tmp_path: Path) -> None:
    lab = Lab(SIZES[name], tmp_path, lambda text: None)
    study = ScratchStudy(**lab.size.scratch)
    assert replace(study, seeds=(0,)) == ScratchStudy()
    assert {run.settings.data for run in runs_of(lab, protocol(study), study)} == {"enwik8"}


@pytest.mark.parametrize(
    ("wiki", "expected"), [("enwik8:/dump/enwik8.zip", "enwik8:/dump/enwik8.zip"), ("/books/enwik8", "enwik8")]
)
def test_enwik8_may_be_a_file_of_the_users_own(wiki: str, expected: str, tmp_path: Path) -> None:
    """At the size whose wiki text is another; that other text never takes enwik8's place."""
    lab = Lab(SIZES["paper"], tmp_path, lambda text: None, wiki=wiki)
    study = ScratchStudy()
    assert {run.settings.data for run in runs_of(lab, protocol(study), study)} == {expected}
    assert lab.source("wiki") == wiki


def test_stopped_and_gone_on_with(text_lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    rows, missing = protocol_rows(replace(text_lab, deadline=now - 1))
    assert (rows, missing) == ([], ["xl-s0", "rsa-xl-s0", "brt-s0", "xl-s1", "rsa-xl-s1", "brt-s1"])
    rows, missing = protocol_rows(text_lab)
    assert missing == []
    assert [row["name"] for row in rows] == ["xl-s0", "rsa-xl-s0", "brt-s0", "xl-s1", "rsa-xl-s1", "brt-s1"]
    for row in rows:
        kept = load_result(text_lab.folder / row["files"][0])
        assert row["test"] == kept["test"]
        assert row["test"]["symbols"] == 49
        assert [point["step"] for point in row["history"]["training"]] == [1, 2, 3]
        times = [point["training_seconds"] for point in row["history"]["training"]]
        assert 0 < times[0] < times[1] < times[2] == row["training_seconds"]
    assert rows[0]["test"] != rows[3]["test"]
    assert len({row["provenance"]["data_checksum"] for row in rows}) == 1
    monkeypatch.setattr(scratch, "train_scratch", lambda *_: pytest.fail("done again"))
    again, _ = protocol_rows(text_lab)
    assert [row["test"] for row in again] == [row["test"] for row in rows]
    text_lab.size = replace(text_lab.size, scratch=text_lab.size.scratch | {"steps": 4})
    with pytest.raises(UserError, match="steps=3 there, 4 now"):
        protocol_rows(text_lab)


def test_side_by_side(text_lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each in a process of its own, which is told everything by a file."""
    text_lab.size = replace(text_lab.size, scratch=text_lab.size.scratch | {"seeds": (0,), "small_widths": (8,)})
    text_lab.jobs = 2
    asked: list[Task] = []

    def run(tasks: list[Task], jobs: int, say: object, deadline: float | None) -> Outcome:
        asked.extend(tasks)
        for task in tasks:
            monkeypatch.setattr(sys, "argv", ["-c", task.arguments[-1]])
            with pytest.raises(SystemExit) as end:
                scratch.main()
            assert end.value.code == 0
        return Outcome(True, [])

    monkeypatch.setattr(scratch, "run_side_by_side", run)
    rows, missing = small_rows(text_lab)
    assert [task.name for task in asked] == [row["name"] for row in rows] == ["xl-small-8-s0", "rsa-xl-small-8-s0"]
    assert missing == []
    settings = ScratchSettings.read(text_lab.folder / "scratch" / "xl-small-8-s0")
    assert settings is not None
    assert (settings.settings["layers"], settings.settings["width"]) == (1, 8)


@pytest.mark.parametrize("when", ["rsa-xl-s0: step 1: validation", "rsa-xl-s0: rsa-xl:"], ids=["training", "before"])
def test_ctrl_c_stops_the_command_and_begins_nothing_else(
    text_lab: Lab, size: Size, when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the training heard it and saved itself, or was still being made ready."""
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        if text.startswith(when):
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(commands, "say", say)
    often = size.scratch | {"seeds": (0,), "valid_every": 16}
    monkeypatch.setitem(size_module.SIZES, "tiny", replace(size, scratch=often))
    names = ["rsa-enwik8", "rsa-small", "slides-complexity", "slides-lengths"]
    arguments = ["experiment", "run", *names, "--size", "tiny", "--root", str(tmp_path), "--wiki", str(text_lab.wiki)]
    ended = CliRunner().invoke(cli.app, arguments)
    assert ended.exit_code == 130
    assert said[-1] == STOPPED
    found = load_result(tmp_path / "tiny" / "rsa-enwik8.json")
    assert [row["name"] for row in found["rows"]] == ["xl-s0"]
    assert found["missing"] == ["rsa-xl-s0", "brt-s0"]
    assert [path.name for path in (tmp_path / "tiny").glob("*.json")] == ["rsa-enwik8.json"]
    assert not (tmp_path / "tiny" / "scratch" / "brt-s0").exists()


def test_a_run_that_fails_does_not_stop_the_others(text_lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    def train(settings: ScratchSettings, *rest: Any) -> dict[str, Any]:
        if settings.arch == "xl":
            raise UserError("The gradient is not finite at step 2.")
        return real(settings, *rest)

    real = scratch.train_scratch
    monkeypatch.setattr(scratch, "train_scratch", train)
    lab = with_study(text_lab)
    sentence = "xl-s0 ended with 'The gradient is not finite at step 2.'"
    with pytest.raises(UserError, match=f"1 runs failed: {sentence}. The same command tries them again"):
        run_experiments(["rsa-enwik8"], lab)
    found = load_result(lab.folder / "rsa-enwik8.json")
    assert [row["name"] for row in found["rows"]] == ["rsa-xl-s0", "brt-s0"]
    assert found["missing"] == ["xl-s0", sentence]
    monkeypatch.setattr(scratch, "train_scratch", real)
    run_experiments(["rsa-enwik8"], lab)  # what failed another time counts no more
    assert load_result(lab.folder / "rsa-enwik8.json")["missing"] == []


def test_a_process_that_failed_fails_the_command(text_lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = Outcome(True, ["xl-s0 ended with 'no room', see its log"])
    monkeypatch.setattr(scratch, "run_side_by_side", lambda *_: outcome)
    with pytest.raises(UserError, match="1 runs failed: xl-s0 ended with 'no room', see its log"):
        run_experiments(["rsa-enwik8"], replace(with_study(text_lab), jobs=2))


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("name", ["rsa-small", "slides-lengths"])
def test_time_that_ran_out_is_said(text_lab: Lab, name: str, jobs: int) -> None:
    said: list[str] = []
    lab = replace(text_lab, jobs=jobs, say=said.append, deadline=time.monotonic() - 1)
    assert run_experiments([name], lab) == []
    assert said[-1] == STOPPED


@pytest.mark.parametrize("jobs", [1, 2])
def test_no_run_is_begun_in_the_last_minutes(text_lab: Lab, jobs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch, "train_scratch", lambda *_: pytest.fail("begun"))
    monkeypatch.setattr(side_by_side, "_start", lambda *_: pytest.fail("begun"))
    lab = replace(with_study(text_lab, steps=20_000), jobs=jobs, deadline=time.monotonic() + 100)
    rows, missing = small_rows(lab)
    assert (rows, missing, lab.stopped) == ([], ["xl-small-8-s0", "rsa-xl-small-8-s0"], True)


def test_small_runs_may_begin_late(text_lab: Lab) -> None:
    lab = with_study(text_lab)
    (run, _) = runs_of(lab, small(ScratchStudy(**lab.size.scratch)), ScratchStudy(**lab.size.scratch))
    assert run.least_minutes * 60 < 0.1
    assert run.task().least_minutes == run.least_minutes


def test_a_run_that_another_process_trains_is_left_to_it(text_lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_by_side, "LOCK_SECONDS", 0.0)
    lab = with_study(text_lab)
    with side_by_side.held_alone(lab.folder / "scratch" / "xl-small-8-s0"):
        rows, missing = small_rows(lab)
    assert [row["name"] for row in rows] == ["rsa-xl-small-8-s0"]
    assert missing[0] == "xl-small-8-s0"
    assert "is being trained by another process" in missing[1]
    assert lab.failures == missing[1:]
