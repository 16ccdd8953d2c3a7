"""A run from scratch that is stopped and resumed equals one that was never stopped, and runs are scored again."""

import itertools
import json
import signal
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from recurrify import UserError
from recurrify_papers.models.language import load_language_model
from recurrify_papers.scratch import run as running
from recurrify_papers.scratch import training
from recurrify_papers.scratch.rows import score_rows
from recurrify_papers.scratch.run import score_run, train_scratch
from recurrify_papers.scratch.settings import ScratchSettings
from recurrify_papers.scratch.stepping import Stepper
from recurrify_papers.scratch.symbols import encode_part, load_symbols

XL: dict[str, Any] = {"layers": 2, "width": 16, "heads": 2, "head_width": 8, "inner": 32, "memory_length": 12}
SHAPES: dict[str, dict[str, Any]] = {
    "xl": XL | {"dropout": 0.3},
    "rsa-xl": XL | {"dropout": 0.3, "rsa.counts": (0, 1, 1, 0, 0, 0), "rsa.dilations": ()},
    "lstm": {"layers": 2, "width": 16, "dropout": 0.3},
}
STEPS = 9


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("".join(f"{number} and {number * number % 97} make more.\n" for number in range(200)))
    return path


def settings(text: Path, out: Path, arch: str = "xl", **changed: Any) -> ScratchSettings:
    given: dict[str, Any] = {"settings": SHAPES[arch], "steps": STEPS, "batch": 16, "length": 40, "eval_batch": 2}
    given |= {"learning_rate": 1e-2, "valid_every": 16 * 40 * 4}
    return ScratchSettings(out=str(out), arch=arch, data=str(text), **(given | changed))


def train(run: ScratchSettings, said: list[str] | None = None) -> dict[str, Any]:
    return train_scratch(run, (said if said is not None else []).append)


@pytest.fixture(scope="module")
def whole(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was never stopped."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    train(settings(text, folder))
    return folder


def result_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "result.json").read_text())


def without_times(result: dict[str, Any]) -> dict[str, Any]:
    histories = {
        name: [{key: value for key, value in point.items() if key != "training_seconds"} for point in points]
        for name, points in result["history"].items()
    }
    kept = {key: result[key] for key in ("finished", "steps", "tokens", "parameters", "validation", "test")}
    return kept | {"history": histories}


def assert_same_end(one: Path, other: Path) -> None:
    assert without_times(result_of(one)) == without_times(result_of(other))
    weights = [load_file(folder / "model" / "model.safetensors") for folder in (one, other)]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())
    assert not list(one.glob("checkpoint-*"))


def loss_of(run: Path, text: Path, batch: int, length: int, model: nn.Module | None = None) -> float:
    """The loss of the test part, without a run's own choices."""
    stream = encode_part(load_symbols(run / "model"), str(text), "test")
    loaded = load_language_model(run / "model") if model is None else model
    return score_rows(loaded, torch.from_numpy(stream.ids), batch, length, nullcontext).loss


@pytest.mark.parametrize("arch", ["rsa-xl", "lstm"])
def test_stopped_after_every_step(arch: str, text: Path, tmp_path: Path) -> None:
    own = {"recurrence_learning_rate": 3e-2} if arch == "rsa-xl" else {}
    result = train(settings(text, tmp_path / "whole", arch, **own))
    assert result["stream_symbols"]["train"] // (16 * 40) == 6  # the second epoch begins before the end
    in_pieces = settings(text, tmp_path / "pieces", arch, max_minutes=1e-9, **own)
    for step in range(1, STEPS):
        result = train(in_pieces)
        assert (result["finished"], result["steps"]) == (False, step)
        torch.manual_seed(step)
    assert train(in_pieces)["finished"]
    assert_same_end(tmp_path / "pieces", tmp_path / "whole")


class KilledError(Exception):
    pass


def test_killed_run_resumes_from_its_last_checkpoint(
    text: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint is saved every five minutes; here a step takes two."""
    now, saved = 0.0, []
    real_step, real_save = Stepper.__call__, training.Run.save

    def slow(self: Stepper, step: int) -> torch.Tensor:
        nonlocal now
        now += 120
        if step == 7:
            raise KilledError
        return real_step(self, step)

    def save(self: training.Run) -> None:
        saved.append(self.progress.step)
        real_save(self)

    run, said = settings(text, tmp_path / "run"), []
    with monkeypatch.context() as patch:
        patch.setattr(Stepper, "__call__", slow)
        patch.setattr(training.Run, "save", save)
        patch.setattr(training, "time", SimpleNamespace(monotonic=lambda: now))
        with pytest.raises(KilledError):
            train(run)
    assert saved == [3, 6]
    train(run, said)
    assert any("from step 6" in line for line in said)
    assert_same_end(tmp_path / "run", whole)


@pytest.mark.parametrize("validation", [1, 3])  # the last one too
def test_signal_ends_a_validation(
    validation: int, text: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step is saved at once; the run that resumes validates it."""
    run, calls, real = settings(text, tmp_path / "run"), itertools.count(1), running.score_rows

    def disturbed(*given: Any) -> Any:
        if next(calls) == validation:
            signal.raise_signal(signal.SIGTERM)
        return real(*given)

    with monkeypatch.context() as patch:
        patch.setattr(running, "score_rows", disturbed)
        result = train(run)
    assert (result["finished"], result["interrupted"]) == (False, True)
    assert len(result["history"]["validation"]) == validation - 1
    assert train(run)["finished"]
    assert_same_end(tmp_path / "run", whole)


def test_run_stopped_during_scoring_only_scores_again(
    text: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, scored, steps = settings(text, tmp_path / "run"), [], []
    real_score, real_step = running._score, Stepper.__call__

    def stopped(*given: Any) -> Any:
        scored.append(1)
        if len(scored) > 4:  # after three validations
            raise KeyboardInterrupt
        return real_score(*given)

    def counted(self: Stepper, step: int) -> torch.Tensor:
        steps.append(step)
        return real_step(self, step)

    monkeypatch.setattr(Stepper, "__call__", counted)
    with monkeypatch.context() as patch:
        patch.setattr(running, "_score", stopped)
        with pytest.raises(KeyboardInterrupt):
            train(run)
    assert not (tmp_path / "run" / "result.json").exists()
    expected = result_of(whole)["test"]["loss"]
    assert score_run(tmp_path / "run", str(text))["loss"] == pytest.approx(expected, rel=1e-6)
    train(run)
    assert len(steps) == STEPS
    assert_same_end(tmp_path / "run", whole)


def test_finished_run_and_other_inputs(text: Path, tmp_path: Path) -> None:
    copied = tmp_path / "text.txt"
    copied.write_text(text.read_text())
    run = settings(copied, tmp_path / "run", "lstm", steps=2)
    first = train(run)
    assert train(run)["test"] == first["test"]
    with pytest.raises(UserError, match="length=40 there, 20 now"):
        train(replace(run, length=20))
    copied.write_text(text.read_text().replace("and", "or"))
    with pytest.raises(UserError, match=r"other settings|changed since"):
        train(run)


def test_evaluation_with_other_settings_uses_the_same_weights(text: Path, whole: Path, tmp_path: Path) -> None:
    changed = {"memory_length": 30, "same_length": True, "clamp": 25}
    shape = SHAPES["xl"] | {f"eval.{name}": value for name, value in changed.items()}
    other, plain = train(settings(text, tmp_path / "other", settings=shape)), result_of(whole)
    assert without_times(other)["history"]["training"] == without_times(plain)["history"]["training"]
    assert other["test"]["loss"] != plain["test"]["loss"]
    model = load_language_model(tmp_path / "other" / "model")
    assert model.config.memory_length == 12
    for name, value in changed.items():
        object.__setattr__(model.config, name, value)
    expected = loss_of(tmp_path / "other", text, 2, 40, model)
    again = score_run(tmp_path / "other", str(text))
    assert expected == pytest.approx(other["test"]["loss"], rel=1e-6) == again["loss"]
    with pytest.raises(UserError, match=r"settings inner after `eval\.` need other weights"):
        train(settings(text, tmp_path / "wrong", settings=SHAPES["xl"] | {"eval.inner": 64}))
    assert not (tmp_path / "wrong").exists()


def test_score_run_uses_the_rows_and_segments_of_the_run(text: Path, whole: Path, tmp_path: Path) -> None:
    result = result_of(whole)["test"]
    for folder in (whole, whole / "model"):
        found = score_run(folder, str(text))
        assert {key: found[key] for key in result} == pytest.approx(result, rel=1e-6)
        assert (found["arch"], found["unit"]) == ("xl", "byte")
        assert found["loss"] == pytest.approx(loss_of(whole, text, 2, 40), rel=1e-6)
    found = score_run(whole, str(text), length=20)
    assert (found["loss"], found["length"]) == (pytest.approx(loss_of(whole, text, 2, 20), rel=1e-6), 20)
    # A model without its run is scored in one row.
    (whole / "model").rename(tmp_path / "alone")
    try:
        alone = {rows: score_run(tmp_path / "alone", str(text), rows=rows)["loss"] for rows in (None, 3)}
    finally:
        (tmp_path / "alone").rename(whole / "model")
    for rows, loss in alone.items():
        assert loss == pytest.approx(loss_of(whole, text, rows or 1, 40), rel=1e-6)
