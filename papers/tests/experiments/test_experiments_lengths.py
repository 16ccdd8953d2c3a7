"""The experiment on lengths: rates chosen by validation, rows out of the kept runs, and nothing done twice."""

import statistics
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from recurrify.results import load_result, save_result
from recurrify.side_by_side import Outcome, Task
from recurrify_papers.experiments import lengths
from recurrify_papers.experiments.lab import Lab
from recurrify_papers.experiments.lengths import CONTESTANTS, Contest, LengthStudy, contests
from recurrify_papers.experiments.lengths import length_rows as all_rows
from recurrify_papers.models.language import count_parameters, language_model
from recurrify_papers.slides.rule_tasks import RULE_TASKS, rule_task
from recurrify_papers.slides.rule_training import read_sequences

STUDY = LengthStudy(
    tasks=("counting",),
    rates=(1e-3, 1e-2),
    steps=2,
    batch=4,
    lengths=(20, 60),
    valid_sequences=8,
    test_sequences=8,
)


def quiet(text: str) -> None:
    pass


def keep(contest: Contest, rate: float, seed: int, loss: float | None, right: dict[int, float]) -> None:
    """A run as if it had been made."""
    result = {
        "parameters": 1000,
        "valid": {"loss": loss, "accuracy": 0.5 + seed / 10, "answers": 8},
        "test": {str(length): {"accuracy": accuracy, "answers": 8} for length, accuracy in right.items()},
        "provenance": {"config": contest._config(rate, seed)},
    }
    save_result(contest.folder / contest.file(rate, seed), result)


@pytest.mark.parametrize("task", list(RULE_TASKS))
def test_models_are_about_equally_large(task: str) -> None:
    counts = [
        count_parameters(language_model(arch, rule_task(task).vocabulary, **one.model))
        for arch, one in CONTESTANTS.items()
    ]
    assert max(counts) / min(counts) < 1.06
    assert min(counts) > 140_000


@pytest.mark.parametrize("arch", list(CONTESTANTS))
def test_no_model_sees_what_comes_later(arch: str) -> None:
    contest = Contest(Path(), STUDY, "counting", arch)
    model = language_model(arch, 7, **contest.training(1e-3, 0).model).eval()
    ids = torch.randint(2, (2, 60), generator=torch.Generator().manual_seed(0))
    other = ids.clone()
    other[:, 45:] = 1 - ids[:, 45:]
    segment = CONTESTANTS[arch].segment
    one, two = (scores_of(model, rows, segment) for rows in (ids, other))
    torch.testing.assert_close(one[:, :45], two[:, :45], atol=1e-5, rtol=1e-5)
    assert not torch.allclose(one[:, 45:], two[:, 45:])


def scores_of(model: torch.nn.Module, ids: torch.Tensor, segment: int | None) -> torch.Tensor:
    with torch.no_grad():
        return read_sequences(model, ids, segment)


def test_rows_are_statistics_over_the_seeds_of_the_rate_that_validated_best(tmp_path: Path) -> None:
    contest = Contest(tmp_path, STUDY, "counting", "gru")
    assert contest.rows() == ([], ["counting-gru"])
    keep(contest, 1e-3, 0, 0.7, {20: 1.0, 60: 1.0})
    assert contest.chosen_rate() is None
    keep(contest, 1e-2, 0, 0.3, {20: 0.9, 60: 0.4})
    keep(contest, 1e-2, 2, 0.9, {20: 0.8, 60: 0.25})
    rows, missing = contest.rows()
    assert missing == ["counting-gru, seed 1"]
    assert contest.waiting() == (1e-2, 1)
    assert [row["length"] for row in rows] == [20, 60]
    row = rows[1]
    assert (row["learning_rate"], row["seeds"], row["per_seed"]) == (1e-2, [0, 2], [0.4, 0.25])
    assert row["accuracy"] == pytest.approx(0.325)
    assert row["spread"] == pytest.approx(statistics.stdev([0.4, 0.25]))
    assert row["chance"] == pytest.approx(0.2, abs=1e-4)
    # Of 60 marks, 20 lie before the last 40; of 20, none.
    assert row["short_memory"] == pytest.approx(rule_task("counting").chance_level(20))
    assert rows[0]["short_memory"] == 1.0
    assert row["valid_accuracy"] == pytest.approx(0.6)
    assert all((tmp_path / name).is_file() for name in row["files"])


def test_a_rate_at_which_training_broke_down_is_never_chosen(tmp_path: Path) -> None:
    contest = Contest(tmp_path, STUDY, "counting", "gru")
    keep(contest, 1e-3, 0, 0.7, {20: 1.0, 60: 1.0})
    keep(contest, 1e-2, 0, None, {20: 0.0, 60: 0.0})
    assert contest.chosen_rate() == 1e-3
    keep(contest, 1e-3, 0, None, {20: 0.0, 60: 0.0})
    assert contest.waiting() is None  # one that broke down everywhere does not hold up the others
    assert contest.rows() == ([], [contest.name])


def test_runs_are_kept_and_others_of_the_same_name_are_not_taken_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contest = Contest(tmp_path, replace(STUDY, seeds=(0, 1)), "counting", "gru")
    trained: list[Any] = []
    real = lengths.train_on_rule
    monkeypatch.setattr(
        lengths, "train_on_rule", lambda one, device: trained.append((one.learning_rate, one.seed)) or real(one, device)
    )
    assert not contest.do(quiet, deadline=0.0)
    assert trained == []
    assert contest.do(quiet)
    chosen = contest.chosen_rate()
    assert trained == [(1e-3, 0), (1e-2, 0), (chosen, 1)]
    assert contest.do(quiet)
    assert len(trained) == 3
    longer = replace(contest, study=replace(contest.study, steps=3))
    assert longer.rows() == ([], ["counting-gru"])
    monkeypatch.setattr(sys, "argv", ["main", str(longer.write())])
    lengths.main()
    assert len(trained) == 6
    assert load_result(tmp_path / longer.file(1e-2, 0))["provenance"]["config"]["steps"] == 3
    assert Contest.read(longer.write()) == longer


def test_every_task_and_model_is_run(lab: Lab) -> None:
    rows, missing = all_rows(lab)
    assert missing == []
    assert [(row["arch"], row["length"]) for row in rows] == [(a, n) for a in CONTESTANTS for n in (20, 40, 60)]
    assert {len(row["per_seed"]) for row in rows} == {2}
    assert {row["answers"] for row in rows} == {8}
    assert all(contest.waiting() is None for contest in contests(lab))


def test_several_jobs_get_a_process_for_each_model_that_waits(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.jobs = 2
    for contest in contests(lab):
        if contest.arch != "gru":
            for rate, seed in ((1e-3, 0), (1e-2, 0), (1e-3, 1)):
                keep(contest, rate, seed, rate, {20: 0.5, 40: 0.5, 60: 0.5})

    def run(tasks: list[Task], jobs: int, say: Any, deadline: float | None) -> Outcome:
        (task,) = tasks
        assert (task.name, task.arguments[0], jobs) == ("parity-gru", "-c", 2)
        assert task.arguments[1] == f"from {lengths.__name__} import {lengths.main.__name__}; main()"
        assert Contest.read(Path(task.arguments[2])).name == task.name
        return Outcome(True, ["parity-gru ended with 'no memory', see its log"])

    monkeypatch.setattr(lengths, "run_side_by_side", run)
    rows, missing = all_rows(lab)
    assert {row["arch"] for row in rows} == set(CONTESTANTS) - {"gru"}
    assert missing == ["parity-gru", "parity-gru ended with 'no memory', see its log"]
