"""A run from scratch that is stopped and resumed equals one that was never stopped, and runs are scored again."""

import json
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from recurrify import UserError
from recurrify_papers.models.language import load_language_model
from recurrify_papers.scratch import run as running
from recurrify_papers.scratch import training
from recurrify_papers.scratch.run import score_run, score_stream, stream_for, train_scratch
from recurrify_papers.scratch.settings import ScratchSettings
from recurrify_papers.scratch.stepping import Stepper

SHAPES: dict[str, dict[str, Any]] = {
    "xl": {"layers": 2, "width": 16, "heads": 2, "head_width": 8, "inner": 32, "memory_length": 12, "dropout": 0.3},
    "lstm": {"layers": 2, "width": 16, "dropout": 0.3},
}
SHAPES["rsa-xl"] = SHAPES["xl"] | {"rsa.counts": (0, 1, 1, 0, 0, 0), "rsa.dilations": ()}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("".join(f"{number} and {number * number % 97} make more.\n" for number in range(200)))
    return path


def settings(text: Path, out: Path, arch: str = "xl", **changed: Any) -> ScratchSettings:
    given: dict[str, Any] = {"settings": SHAPES[arch], "steps": 11, "batch": 16, "length": 40, "eval_batch": 2}
    given |= {"learning_rate": 1e-2, "valid_every": 16 * 40 * 4}
    return ScratchSettings(out=str(out), arch=arch, data=str(text), **(given | changed))


def train(run: ScratchSettings, said: list[str] | None = None) -> dict[str, Any]:
    return train_scratch(run, (said if said is not None else []).append, show_progress=False)


@pytest.fixture(scope="module")
def whole(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was never stopped."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    train(settings(text, folder))
    return folder


def without_times(result: dict[str, Any]) -> dict[str, Any]:
    histories = {
        name: [{key: value for key, value in point.items() if key != "training_seconds"} for point in points]
        for name, points in result["history"].items()
    }
    kept = {key: result[key] for key in ("finished", "steps", "tokens", "parameters", "validation", "test")}
    return kept | {"history": histories}


def assert_same_end(one: Path, other: Path) -> None:
    results = [without_times(json.loads((folder / "result.json").read_text())) for folder in (one, other)]
    assert results[0] == results[1]
    weights = [load_file(folder / "model" / "model.safetensors") for folder in (one, other)]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())
    assert not list(one.glob("checkpoint-*"))


@pytest.mark.parametrize("arch", SHAPES)
def test_stopped_after_every_step(arch: str, text: Path, tmp_path: Path) -> None:
    own = {"recurrence_learning_rate": 3e-2} if arch == "rsa-xl" else {}
    result = train(settings(text, tmp_path / "whole", arch, **own))
    assert result["stream_symbols"]["train"] // (16 * 40) == 6  # the second epoch begins before the end
    in_pieces = settings(text, tmp_path / "pieces", arch, max_minutes=1e-9, **own)
    for step in range(1, 11):
        result = train(in_pieces)
        assert (result["finished"], result["steps"]) == (False, step)
        torch.manual_seed(step)
    assert train(in_pieces)["finished"]
    assert_same_end(tmp_path / "pieces", tmp_path / "whole")


def test_interrupt_saves_and_resumes(text: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGINT)
    run, said = settings(text, tmp_path / "run"), []
    real = Stepper.__call__

    def interrupted(self: Stepper, step: int) -> torch.Tensor:
        if step == 4:
            signal.raise_signal(signal.SIGINT)
        return real(self, step)

    with monkeypatch.context() as patch:
        patch.setattr(Stepper, "__call__", interrupted)
        result = train(run, said)
    assert (result["finished"], result["interrupted"], result["steps"]) == (False, True, 5)
    assert not (tmp_path / "run" / "result.json").exists()
    train(run, said)
    assert any("from step 5" in line for line in said)
    assert_same_end(tmp_path / "run", whole)
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize(("seconds_per_step", "expected"), [(0.0, [11]), (80.0, [4, 8, 11]), (400.0, [*range(1, 12)])])
def test_checkpoints_are_saved_every_five_minutes(
    seconds_per_step: float, expected: list[int], text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, steps = 0.0, []
    real_step, real_save = Stepper.__call__, training.Run.save

    def slow(self: Stepper, step: int) -> torch.Tensor:
        nonlocal now
        now += seconds_per_step
        return real_step(self, step)

    def save(self: training.Run) -> None:
        steps.append(self.progress.step)
        real_save(self)

    monkeypatch.setattr(Stepper, "__call__", slow)
    monkeypatch.setattr(training.Run, "save", save)
    monkeypatch.setattr(training, "time", SimpleNamespace(monotonic=lambda: now))
    train(settings(text, tmp_path / "run"))
    assert steps == expected


class KilledError(Exception):
    pass


@pytest.mark.parametrize("saved", [None, 5], ids=["without a checkpoint", "after step 5"])
def test_killed_run_resumes_from_its_checkpoint(
    saved: int | None, text: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, said = settings(text, tmp_path / "run"), []
    real = Stepper.__call__

    def killed(self: Stepper, step: int) -> torch.Tensor:
        # A clock that runs on only once makes one checkpoint.
        monkeypatch.setattr(training, "SECONDS_BETWEEN_SAVES", 0 if step + 1 == saved else 300)
        if step == 9:
            raise KilledError
        return real(self, step)

    with monkeypatch.context() as patch:
        patch.setattr(Stepper, "__call__", killed)
        with pytest.raises(KilledError):
            train(run)
    train(run, said)
    assert any(("from the start" if saved is None else f"from step {saved}") in line for line in said)
    assert_same_end(tmp_path / "run", whole)


def test_damaged_checkpoint_is_not_used(text: Path, whole: Path, tmp_path: Path) -> None:
    run, said = settings(text, tmp_path / "run"), []
    train(replace(run, max_minutes=1e-9))
    path = tmp_path / "run" / "checkpoint-1" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    train(run, said)
    assert any("from the start" in line for line in said)
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
    expected = json.loads((whole / "result.json").read_text())["test"]["loss"]
    assert score_run(tmp_path / "run", str(text), show_progress=False)["loss"] == pytest.approx(expected, rel=1e-6)
    train(run)
    assert len(steps) == 11
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


def test_eval_settings_use_the_same_weights(text: Path, whole: Path, tmp_path: Path) -> None:
    changed = {"memory_length": 30, "same_length": True, "clamp": 25}
    other = train(settings(text, tmp_path / "other", eval_settings=changed))
    plain = json.loads((whole / "result.json").read_text())
    assert without_times(other)["history"]["training"] == without_times(plain)["history"]["training"]
    assert other["test"]["loss"] != plain["test"]["loss"]
    model = load_language_model(tmp_path / "other" / "model")
    assert model.config.memory_length == 12
    for name, value in changed.items():
        object.__setattr__(model.config, name, value)
    found = score_stream(model, stream_for(tmp_path / "other", str(text)), batch=2, length=40)
    again = score_run(tmp_path / "other", str(text), show_progress=False)
    assert found.loss == pytest.approx(other["test"]["loss"], rel=1e-6) == again["loss"]
    with pytest.raises(UserError, match="`eval_settings` inner need other weights"):
        train(settings(text, tmp_path / "wrong", eval_settings={"inner": 64}))
    assert not (tmp_path / "wrong").exists()


def test_score_run_uses_the_rows_and_segments_of_the_run(text: Path, whole: Path, tmp_path: Path) -> None:
    result = json.loads((whole / "result.json").read_text())
    stream = stream_for(whole, str(text))
    expected = {length: score_stream(whole, stream, batch=2, length=length).loss for length in (20, 40)}
    assert result["test"]["symbols"] == len(stream.ids) - 1
    for folder in (whole, whole / "model"):
        found = score_run(folder, str(text), show_progress=False)
        assert {key: found[key] for key in result["test"]} == pytest.approx(result["test"], rel=1e-6)
        assert (found["arch"], found["unit"], found["loss"]) == ("xl", "byte", pytest.approx(expected[40], rel=1e-6))
    found = score_run(whole, str(text), length=20, show_progress=False)
    assert (found["loss"], found["length"]) == (pytest.approx(expected[20], rel=1e-6), 20)
    # A model without its run is scored in one row.
    (tmp_path / "alone").mkdir()
    for file in (whole / "model").iterdir():
        (tmp_path / "alone" / file.name).write_bytes(file.read_bytes())
    for rows, batch in ((None, 1), (3, 3)):
        found = score_run(tmp_path / "alone", str(text), rows=rows, show_progress=False)
        assert found["loss"] == pytest.approx(score_stream(whole, stream, batch=batch, length=40).loss, rel=1e-6)


def test_long_text_is_scored_in_more_rows(text: Path, tmp_path: Path) -> None:
    result = train(settings(text, tmp_path / "run", batch=1, length=10, steps=2, eval_batch=None))
    assert result["test"]["rows"] == 1
    found = score_run(tmp_path / "run", str(text), "all", show_progress=False)
    stream = stream_for(tmp_path / "run", str(text), "all")
    losses = {rows: score_stream(tmp_path / "run", stream, batch=rows, length=10).loss for rows in (1, 4)}
    assert (found["rows"], found["symbols"]) == (4, len(stream.ids) - 1)
    assert found["loss"] == pytest.approx(losses[4], rel=1e-6)
    assert found["loss"] == pytest.approx(losses[1], rel=1e-3)
