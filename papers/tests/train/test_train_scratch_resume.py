"""A run from scratch that is stopped and continued is the run that was never stopped, dropout and all."""

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
from recurrify_papers.scratch import training as scratch
from recurrify_papers.scratch.run import Scorer, score_run, score_stream, stream_for, train_scratch
from recurrify_papers.scratch.settings import ScratchSettings
from recurrify_papers.scratch.stepping import Stepper
from recurrify_papers.scratch.training import TRAINING_FILE

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


def without_times(result: dict[str, Any]) -> dict[str, Any]:
    """What two runs of the same settings have in common."""
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
    for name, value in weights[0].items():
        assert torch.equal(value, weights[1][name]), name


@pytest.mark.parametrize("arch", SHAPES)
def test_stopped_after_every_step(arch: str, text: Path, tmp_path: Path) -> None:
    own = {"recurrence_learning_rate": 3e-2} if arch == "rsa-xl" else {}
    whole = train(settings(text, tmp_path / "whole", arch, **own))
    # The second epoch begins on the way.
    assert whole["stream_symbols"]["train"] // (16 * 40) == 6
    in_pieces = settings(text, tmp_path / "pieces", arch, max_minutes=1e-9, **own)
    for step in range(1, 11):
        result = train(in_pieces)
        assert (result["finished"], result["steps"]) == (False, step)
        torch.manual_seed(step)  # what happens in between must not matter
    assert train(in_pieces)["finished"]
    assert_same_end(tmp_path / "pieces", tmp_path / "whole")
    assert not (tmp_path / "pieces" / TRAINING_FILE).exists()
    assert whole["test"]["bits_per_symbol"] < 4.5


def test_ctrl_c(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGINT)
    train(settings(text, tmp_path / "whole"))
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
    assert_same_end(tmp_path / "run", tmp_path / "whole")
    assert signal.getsignal(signal.SIGINT) is before


@pytest.fixture
def saved_steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    steps: list[int] = []
    real = scratch._save

    def save(folder: Path, run: scratch.Run) -> None:
        steps.append(run.progress.step)
        real(folder, run)

    monkeypatch.setattr(scratch, "_save", save)
    return steps


@pytest.mark.parametrize(("seconds_of_a_step", "expected"), [(0.0, [11]), (80.0, [4, 8, 11]), (400.0, [*range(1, 12)])])
def test_saved_by_the_clock_not_at_validations(
    seconds_of_a_step: float,
    expected: list[int],
    saved_steps: list[int],
    text: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    real = Stepper.__call__

    def slow(self: Stepper, step: int) -> torch.Tensor:
        nonlocal now
        now += seconds_of_a_step
        return real(self, step)

    monkeypatch.setattr(Stepper, "__call__", slow)
    monkeypatch.setattr(scratch, "time", SimpleNamespace(monotonic=lambda: now))
    result = train(settings(text, tmp_path / "run", valid_every=16 * 40 * 2))
    assert [entry["step"] for entry in result["history"]["validation"]] == [2, 4, 6, 8, 10, 11]
    assert saved_steps == expected


@pytest.mark.parametrize("saved", [None, 5], ids=["before anything was saved", "after step 5"])
def test_a_killed_run_goes_on_from_what_was_saved_last(
    saved: int | None, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Validated at steps 4 and 8 and killed in the 10th: what came after the checkpoint is done again."""
    train(settings(text, tmp_path / "whole"))
    run, said = settings(text, tmp_path / "run"), []
    real = Stepper.__call__

    class KilledError(Exception):
        pass

    def killed(self: Stepper, step: int) -> torch.Tensor:
        if step == 9:
            raise KilledError
        return real(self, step)

    with monkeypatch.context() as patch:
        patch.setattr(Stepper, "__call__", killed)
        patch.setattr(scratch.Run, "is_due", property(lambda self: self.progress.step == saved))
        with pytest.raises(KilledError):
            train(run)
    train(run, said)
    where = "from the start: no whole checkpoint is there" if saved is None else f"from step {saved}"
    assert any(where in line for line in said)
    assert_same_end(tmp_path / "run", tmp_path / "whole")


def test_stopped_while_it_is_scored(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is there already, and only the scoring is done again."""
    train(settings(text, tmp_path / "whole"))
    run, steps, real = settings(text, tmp_path / "run"), [], Stepper.__call__
    scored: list[int] = []
    real_scorer = Scorer.__call__

    def stopped(self: Scorer, model: torch.nn.Module, ids_T: torch.Tensor, *more: Any) -> Any:
        # Thrice it is validated on its way.
        scored.append(len(ids_T))
        if len(scored) > 4:
            raise KeyboardInterrupt
        return real_scorer(self, model, ids_T, *more)

    def counted(self: Stepper, step: int) -> torch.Tensor:
        steps.append(step)
        return real(self, step)

    monkeypatch.setattr(Stepper, "__call__", counted)
    with monkeypatch.context() as patch:
        patch.setattr(Scorer, "__call__", stopped)
        with pytest.raises(KeyboardInterrupt):
            train(run)
    assert not (tmp_path / "run" / "result.json").exists()
    expected = json.loads((tmp_path / "whole" / "result.json").read_text())["test"]["loss"]
    found = score_run(tmp_path / "run", str(text), show_progress=False)
    assert found["loss"] == pytest.approx(expected, rel=1e-6)
    assert len(steps) == 11
    train(run)
    assert len(steps) == 11
    assert_same_end(tmp_path / "run", tmp_path / "whole")
    assert not (tmp_path / "run" / TRAINING_FILE).exists()


def test_a_finished_run_is_left_alone_and_other_settings_are_refused(text: Path, tmp_path: Path) -> None:
    run, said = settings(text, tmp_path / "run", "lstm", steps=2), []
    first = train(run)
    assert train(run, said)["test"] == first["test"]
    assert any("finished already" in line for line in said)
    with pytest.raises(UserError, match="length=40 there, 20 now"):
        train(replace(run, length=20))


def test_other_text_under_the_same_name_is_refused(text: Path, tmp_path: Path) -> None:
    copied = tmp_path / "text.txt"
    copied.write_text(text.read_text())
    run = settings(copied, tmp_path / "run", "lstm", steps=2)
    train(run)
    copied.write_text(text.read_text().replace("and", "or"))
    with pytest.raises(UserError, match="data_checksum"):
        train(run)


def test_a_damaged_checkpoint_is_named(text: Path, tmp_path: Path) -> None:
    run = settings(text, tmp_path / "run", "lstm", max_minutes=1e-9)
    train(run)
    path = tmp_path / "run" / TRAINING_FILE
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(UserError, match=f"{TRAINING_FILE} cannot be gone on from"):
        train(run)


def test_a_saved_model_scores_as_at_the_end_of_its_run(text: Path, tmp_path: Path) -> None:
    result = train(settings(text, tmp_path / "run", steps=3))
    found = score_stream(tmp_path / "run", stream_for(tmp_path / "run", str(text)), batch=2, length=40)
    assert found.loss == pytest.approx(result["test"]["loss"], rel=1e-6)
    assert found.symbols == result["test"]["symbols"] == result["stream_symbols"]["test"] - 1


def test_other_settings_in_evaluation(text: Path, tmp_path: Path) -> None:
    """The memory is longer in validation and test, and the weights are the same."""
    asked = {"memory_length": 30, "same_length": True, "clamp": 25}
    plain = train(settings(text, tmp_path / "plain", steps=3))
    other = train(settings(text, tmp_path / "other", steps=3, eval_settings=asked))
    one, two = (without_times(result)["history"]["training"] for result in (other, plain))
    assert one == two
    assert other["test"]["loss"] != plain["test"]["loss"]
    model = load_language_model(tmp_path / "other" / "model")
    assert model.config.memory_length == 12
    object.__setattr__(model.config, "memory_length", 30)
    object.__setattr__(model.config, "same_length", True)
    object.__setattr__(model.config, "clamp", 25)
    found = score_stream(model, stream_for(tmp_path / "other", str(text)), batch=2, length=40)
    assert found.loss == pytest.approx(other["test"]["loss"], rel=1e-6)
    again = score_run(tmp_path / "other", str(text), show_progress=False)
    assert again["loss"] == pytest.approx(other["test"]["loss"], rel=1e-6)


class TestHeadWidth:
    def without(self, **own: Any) -> dict[str, Any]:
        return {name: value for name, value in SHAPES["xl"].items() if name != "head_width"} | own

    def test_the_record_holds_the_number(self, text: Path, tmp_path: Path) -> None:
        run = settings(text, tmp_path / "run", settings=self.without(), steps=2, max_minutes=1e-9)
        train(run)
        assert json.loads((tmp_path / "run" / "run.json").read_text())["settings"]["head_width"] == 8
        result = train(run)
        assert result["finished"]
        assert result["provenance"]["config"]["settings"]["head_width"] == result["model"]["head_width"] == 8
        # Whether it is told or left out, it is the same run.
        assert train(settings(text, tmp_path / "run", steps=2)) == train(run) == result

    def test_a_run_that_does_not_say_has_heads_of_64(self, text: Path, tmp_path: Path) -> None:
        """Written when that was the default, whatever the width: it is scored, and goes on, with them."""
        asked = {"memory_length": 30}
        wide = settings(text, tmp_path / "run", settings=self.without(head_width=64), steps=2, eval_settings=asked)
        train(replace(wide, max_minutes=1e-9))
        record = tmp_path / "run" / "run.json"
        written = json.loads(record.read_text())
        del written["settings"]["head_width"]
        record.write_text(json.dumps(written))
        with pytest.raises(UserError, match=r"settings\.head_width=64 there, 8 now"):
            train(replace(wide, settings=self.without()))
        result = train(wide)
        record.write_text(json.dumps(written))
        again = score_run(tmp_path / "run", str(text), show_progress=False)
        assert again["loss"] == pytest.approx(result["test"]["loss"], rel=1e-6)


def test_segments_of_another_length_in_evaluation(text: Path, tmp_path: Path) -> None:
    result = train(settings(text, tmp_path / "run", steps=3, eval_length=8))
    stream = stream_for(tmp_path / "run", str(text))
    expected = {length: score_stream(tmp_path / "run", stream, batch=2, length=length).loss for length in (8, 20, 40)}
    assert len(set(expected.values())) == 3
    assert (result["test"]["loss"], result["test"]["length"]) == (pytest.approx(expected[8], rel=1e-6), 8)
    for asked, length in ((None, 8), (20, 20)):
        found = score_run(tmp_path / "run", str(text), length=asked, show_progress=False)
        assert (found["loss"], found["length"]) == (pytest.approx(expected[length], rel=1e-6), length)


def test_a_long_text_is_scored_in_more_lanes_than_it_was_trained_in(text: Path, tmp_path: Path) -> None:
    result = train(settings(text, tmp_path / "run", batch=1, length=10, steps=2, eval_batch=None))
    assert (result["stream_symbols"]["test"] < 2 * 20 * 12, result["test"]["lanes"]) == (True, 1)
    found = score_run(tmp_path / "run", str(text), "all", show_progress=False)
    stream = stream_for(tmp_path / "run", str(text), "all")
    by_lanes = {lanes: score_stream(tmp_path / "run", stream, batch=lanes, length=10).loss for lanes in (1, 4)}
    assert (found["lanes"], found["symbols"]) == (4, len(stream.ids) - 1)
    assert found["loss"] == pytest.approx(by_lanes[4], rel=1e-6)
    assert found["loss"] == pytest.approx(by_lanes[1], rel=1e-3)


def test_a_run_is_scored_as_it_scored_itself_and_a_model_alone_in_one_lane(text: Path, tmp_path: Path) -> None:
    result = train(settings(text, tmp_path / "run", steps=3))
    for run in (tmp_path / "run", tmp_path / "run" / "model"):
        found = score_run(run, str(text), show_progress=False)
        assert {key: found[key] for key in result["test"]} == pytest.approx(result["test"], rel=1e-6)
        assert (found["arch"], found["unit"]) == ("xl", "byte")
    (tmp_path / "run" / "model").rename(tmp_path / "alone")
    stream = stream_for(tmp_path / "alone", str(text))
    for lanes, batch in ((None, 1), (3, 3)):
        found = score_run(tmp_path / "alone", str(text), lanes=lanes, show_progress=False)
        expected = score_stream(tmp_path / "alone", stream, batch=batch, length=40)
        assert found["loss"] == pytest.approx(expected.loss, rel=1e-6)


def test_evaluation_settings_that_change_the_weights_are_refused(text: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="`eval_settings` inner ask for other weights"):
        train(settings(text, tmp_path / "run", eval_settings={"inner": 64}))
    assert not (tmp_path / "run").exists()
