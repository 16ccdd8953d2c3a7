"""A stopped run resumes with identical weights, whatever stopped it, in every command that trains."""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from recurrify.data.texts import read_text
from recurrify.errors import UserError
from recurrify.modeling.loading import load_model
from recurrify.train import AnswerSettings, ClassifySettings, TrainSettings, callbacks
from recurrify.train.answer import answer_train
from recurrify.train.checkpoints import last_whole_checkpoint
from recurrify.train.classify import classify_train
from recurrify.train.finetune import train_run
from recurrify.train.loop import RecurrentTrainer
from support.runs import (
    assert_same_weights,
    encoder_folder,
    labelled_file,
    model_folder,
    question_file,
    run_settings,
    validations,
    weights_of,
)

DROPOUT = {"resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1}
MEMORY = {"mechanism": "carry", "window": 16, "hidden_layers": 1, "hidden_size": 8}
Job = Callable[..., dict[str, Any]]


class Killed(BaseException):
    """Ends a run at once, as kill -9 does."""


@pytest.fixture(scope="session")
def inputs(tmp_path_factory: pytest.TempPathFactory, texts: Path) -> SimpleNamespace:
    """Models and data of the three commands; dropout makes a resumed run depend on its random state."""
    folder = tmp_path_factory.mktemp("inputs")
    return SimpleNamespace(
        base=model_folder(folder / "base", **DROPOUT),
        encoder=encoder_folder(folder / "encoder"),
        texts=texts,
        labelled=labelled_file(folder / "labelled.csv"),
        questions=question_file(folder / "questions.json"),
    )


def settings_of(command: str, inputs: SimpleNamespace, out: Path, **more: Any) -> Any:
    if command == "train":
        shared = {"recurrence": {"standardize": True, "overlap": 2}, "added_learning_rate": 2e-2, "schedule": "linear"}
        return run_settings(inputs.base, inputs.texts, out, **{**shared, **more})
    more = {"batch": 3, "epochs": 2.0, "learning_rate": 1e-2, "warmup_steps": 1, "recurrence": MEMORY, **more}
    if command == "classify":
        return ClassifySettings(model=str(inputs.base), data=str(inputs.labelled), out=str(out), **more)
    return AnswerSettings(
        model=str(inputs.encoder), data=str(inputs.questions), out=str(out), **{**more, "batch": 1, "epochs": 2.0}
    )


def run(settings: Any, said: list[str] | None = None) -> dict[str, Any]:
    jobs: dict[type, Job] = {TrainSettings: train_run, ClassifySettings: classify_train, AnswerSettings: answer_train}
    return jobs[type(settings)](settings, ([] if said is None else said).append, show_progress=False)


@pytest.fixture(scope="session")
def whole(inputs: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a command's undisturbed run."""
    found: dict[str, Path] = {}

    def build(command: str) -> Path:
        if command not in found:
            found[command] = tmp_path_factory.mktemp("runs") / command
            run(settings_of(command, inputs, found[command]))
        return found[command]

    return build


def check_same_end(out: Path, whole: Path) -> None:
    ours, theirs = (json.loads((folder / "result.json").read_text()) for folder in (out, whole))
    assert ours["finished"]
    assert (ours["steps"], ours["tokens"]) == (theirs["steps"], theirs["tokens"])
    assert ours["train_loss"] == pytest.approx(theirs["train_loss"])
    assert validations(ours) == validations(theirs)
    assert_same_weights(weights_of(out), weights_of(whole))


def disturb(monkeypatch: pytest.MonkeyPatch, step: int, how: Callable[[], None]) -> None:
    """Call `how` in the middle of a training step."""
    real = RecurrentTrainer.training_step

    def disturbed(self: RecurrentTrainer, *args: Any, **kwargs: Any) -> Any:
        if self.state.global_step + 1 == step:
            how()
        return real(self, *args, **kwargs)

    monkeypatch.setattr(RecurrentTrainer, "training_step", disturbed)


@pytest.mark.parametrize("command", ["train", "classify", "qa"])
@pytest.mark.parametrize("how", ["SIGINT", "SIGTERM", "SIGHUP", "kill"])
def test_stopped_run_resumes_with_identical_weights(
    command: str,
    how: str,
    inputs: SimpleNamespace,
    whole: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings, said = settings_of(command, inputs, tmp_path / "run"), list[str]()
    before = signal.getsignal(signal.SIGTERM)
    with monkeypatch.context() as patch:
        if how == "kill":
            disturb(patch, 5, lambda: (_ for _ in ()).throw(Killed()))
            with pytest.raises(Killed):
                run(settings)
        else:
            disturb(patch, 5, lambda: signal.raise_signal(getattr(signal, how)))
            result = run(settings)
            assert (result["finished"], result["interrupted"], result["steps"]) == (False, True, 5)
            assert not (tmp_path / "run" / "result.json").exists()
    assert signal.getsignal(signal.SIGTERM) is before
    run(settings, said)
    assert any("resuming the run" in line and ("step 5" in line or how == "kill") for line in said)
    check_same_end(tmp_path / "run", whole(command))
    legs = json.loads((tmp_path / "run" / "result.json").read_text())["legs"]
    assert len(legs) == 2
    assert legs[0]["first_step"] == 0 < legs[1]["first_step"]


PROGRAM = """
import os, sys
from recurrify.cli.main import main
from recurrify.train.loop import RecurrentTrainer

number, real = int(sys.argv.pop()), RecurrentTrainer.training_step

def disturbed(self, *args, **kwargs):
    if self.state.global_step == 3:
        os.kill(os.getpid(), number)
    return real(self, *args, **kwargs)

RecurrentTrainer.training_step = disturbed
main()
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), (signal.SIGTERM, 143)])
def test_signals_from_outside(
    number: int, code: int, inputs: SimpleNamespace, whole: Callable[[str], Path], tmp_path: Path
) -> None:
    """The process itself: exit code, one sentence, and a run that resumes."""
    settings = settings_of("train", inputs, tmp_path / "run")
    (tmp_path / "settings.json").write_text(json.dumps(settings.to_dict()))
    command = [sys.executable, "-c", PROGRAM, "train", "--config", str(tmp_path / "settings.json"), str(int(number))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    if code == 143:
        assert done.stderr.endswith("Stopped. Run the same command to resume from the last checkpoint.\n")
    run(settings)
    check_same_end(tmp_path / "run", whole("train"))


def test_second_interrupt_stops_at_once(
    inputs: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disturb(monkeypatch, 5, lambda: [signal.raise_signal(signal.SIGINT) for _ in range(2)] and None)
    with pytest.raises(KeyboardInterrupt):
        run(settings_of("train", inputs, tmp_path / "run"))
    assert last_whole_checkpoint(tmp_path / "run") is not None


@pytest.fixture
def minutes_per_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that advances by one minute per step."""
    minutes = iter(range(10_000))
    monkeypatch.setattr(callbacks, "time", SimpleNamespace(monotonic=lambda: 60.0 * next(minutes)))


@pytest.mark.usefixtures("minutes_per_step")
@pytest.mark.parametrize("minutes", [1, 3])  # after each step, and after several, with a validation or without
def test_max_minutes(minutes: int, inputs: SimpleNamespace, whole: Callable[[str], Path], tmp_path: Path) -> None:
    settings = settings_of("train", inputs, tmp_path / "run", max_minutes=minutes)
    starts = 0
    while not (result := run(settings))["finished"]:
        starts += 1
        assert result["steps"] == starts * minutes
    assert starts > 1
    check_same_end(tmp_path / "run", whole("train"))


@pytest.mark.usefixtures("minutes_per_step")
def test_patience_is_kept(inputs: SimpleNamespace, tmp_path: Path) -> None:
    """The validation loss of these runs rises from the start, so patience ends them."""
    more = {"patience": 2, "learning_rate": 5e-2, "valid_every": 88, "max_tokens": 2_000}
    one = run(settings_of("train", inputs, tmp_path / "one", **more))
    settings = settings_of("train", inputs, tmp_path / "two", max_minutes=2, **more)
    while not (two := run(settings))["finished"]:
        assert two["steps"] < 20
    assert one["steps"] < 20
    assert validations(two) == validations(one)
    # Killed after patience had ended it, before the model was saved.
    shutil.rmtree(tmp_path / "two" / "model")
    (tmp_path / "two" / "result.json").unlink()
    assert validations(run(settings)) == validations(one)
    assert_same_weights(weights_of(tmp_path / "two"), weights_of(tmp_path / "one"))


@pytest.mark.usefixtures("minutes_per_step")
def test_log_counts_tokens_and_seconds_of_all_starts(
    inputs: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = iter(range(1_000_000))
    monkeypatch.setattr(callbacks, "perf_counter", lambda: float(next(seconds)))
    more = {"max_minutes": 3, "max_tokens": None, "epochs": 1.0, "group_by_length": True}
    settings = settings_of("train", inputs, tmp_path / "run", **more)
    while not (result := run(settings))["finished"]:
        next(seconds)  # between two starts, which does not count
    tokens = [entry["num_input_tokens_seen"] for entry in result["history"] if "loss" in entry]
    assert len({after - before for before, after in pairwise([0, *tokens])}) > 1  # grouped by length, steps differ
    texts, _ = read_text(settings.data, "train", load_model(settings.model)[1], lambda text: None)
    assert result["tokens"] == tokens[-1] == sum(len(text.ids) - 1 for text in texts)  # one epoch: every one once
    taken = [entry["seconds"] for entry in result["history"] if "seconds" in entry]
    # One reading of the clock at each start, and one for each entry after it.
    assert result["training_seconds"] == taken[-1] == len(taken)


def test_finished_run_is_left_alone(inputs: SimpleNamespace, whole: Callable[[str], Path]) -> None:
    out, said = whole("train"), list[str]()
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    result = run(settings_of("train", inputs, out, max_minutes=1.0), said)
    assert "is finished" in said[-1]
    assert result == json.loads((out / "result.json").read_text())
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"learning_rate": 0.5}, ["learning_rate=0.01 there, 0.5 now"]),
        ({"recurrence": {"window": 9}}, ["recurrence.window=8 there, 9 now"]),
        ({"batch": 3, "windows": 2}, ["batch=4 there", "windows=3 there"]),
    ],
)
def test_other_settings_raise(
    change: dict[str, Any], words: list[str], inputs: SimpleNamespace, whole: Callable[[str], Path]
) -> None:
    with pytest.raises(UserError, match="another output folder") as caught:
        run(settings_of("train", inputs, whole("train"), **change))
    assert all(word in str(caught.value) for word in words)
    assert "epochs=" not in str(caught.value)


@pytest.mark.parametrize(
    ("changed", "words"),
    [("texts", "the training data"), ("valid", "the validation or test data"), ("base", "the weights of the base")],
)
def test_changed_input_raises(changed: str, words: str, inputs: SimpleNamespace, tmp_path: Path) -> None:
    own = SimpleNamespace(**vars(inputs))
    own.texts = Path(shutil.copytree(inputs.texts, tmp_path / "texts"))
    own.base = Path(shutil.copytree(inputs.base, tmp_path / "base"))
    valid = tmp_path / "valid.txt"
    valid.write_text("w5 w6 w7 " * 9)
    settings = settings_of("train", own, tmp_path / "run", max_tokens=60, valid=str(valid))
    run(settings)
    if changed == "base":
        weights = load_file(own.base / "model.safetensors")
        weights["transformer.ln_f.weight"][3] += 0.1
        save_file(weights, own.base / "model.safetensors", metadata={"format": "pt"})
    for path in {"texts": list(own.texts.iterdir()), "valid": [valid], "base": []}[changed]:
        path.write_text(path.read_text() + " w9 w10")
    with pytest.raises(UserError, match=f"{words}.* changed since the run"):
        run(settings)


class TestDamagedCheckpoint:
    @pytest.fixture
    def killed(self, whole: Callable[[str], Path], tmp_path: Path) -> Path:
        """A run that was killed after its last checkpoint, before the model was saved."""
        out = Path(shutil.copytree(whole("train"), tmp_path / "killed"))
        shutil.rmtree(out / "model")
        (out / "result.json").unlink()
        return out

    @staticmethod
    def steps(out: Path) -> list[int]:
        return sorted(int(path.name.split("-")[1]) for path in out.glob("checkpoint-*"))

    def test_killed_before_the_model_was_saved(
        self, killed: Path, whole: Callable[[str], Path], inputs: SimpleNamespace
    ) -> None:
        run(settings_of("train", inputs, killed))
        check_same_end(killed, whole("train"))

    @pytest.mark.parametrize("cut", [None, 40])
    def test_unfinished_one_is_removed(self, cut: int | None, killed: Path) -> None:
        older, newest = self.steps(killed)
        state = killed / f"checkpoint-{newest}" / "trainer_state.json"
        state.unlink() if cut is None else state.write_text(state.read_text()[:cut])
        assert last_whole_checkpoint(killed) == killed / f"checkpoint-{older}"
        assert self.steps(killed) == [older]

    @pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt", "rng_state.pth"])
    def test_damaged_one_is_set_aside(
        self,
        name: str,
        killed: Path,
        whole: Callable[[str], Path],
        inputs: SimpleNamespace,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        older, newest = self.steps(killed)
        (killed / f"damaged-checkpoint-{newest}").mkdir()  # of another time
        file = killed / f"checkpoint-{newest}" / name
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
        assert last_whole_checkpoint(killed) == killed / f"checkpoint-{older}"
        assert (killed / f"damaged-checkpoint-{newest}-2" / name).is_file()
        assert f"{name} of {killed / f'checkpoint-{newest}'} is damaged" in capsys.readouterr().err
        if name == "optimizer.pt":
            run(settings_of("train", inputs, killed))
            check_same_end(killed, whole("train"))

    def test_other_folders_are_left_alone(self, tmp_path: Path) -> None:
        for name in ("checkpoint-best", "checkpoint-", "my-checkpoint-3"):
            (tmp_path / name).mkdir()
        assert last_whole_checkpoint(tmp_path) is None
        assert len(list(tmp_path.iterdir())) == 3

    def test_moved_run_knows_its_best_model(
        self, killed: Path, whole: Callable[[str], Path], inputs: SimpleNamespace, tmp_path: Path
    ) -> None:
        """The best checkpoint is the first one here: the last model would be another."""
        shutil.rmtree(killed / f"checkpoint-{self.steps(killed)[1]}")
        moved, out = killed.rename(tmp_path / "moved"), whole("train")
        out.rename(hidden := out.with_name("hidden"))
        try:
            run(settings_of("train", inputs, moved))
        finally:
            hidden.rename(out)
        check_same_end(moved, out)


def test_record_round_trip(inputs: SimpleNamespace, whole: Callable[[str], Path]) -> None:
    found = TrainSettings.read(whole("train"))
    assert found is not None
    assert None not in (found.data_checksum, found.held_out_checksum, found.model_checksum)
    asked = replace(found, data_checksum=None, held_out_checksum=None, model_checksum=None)
    assert asked == settings_of("train", inputs, whole("train"))
    assert TrainSettings.read(whole("train").parent) is None


@pytest.mark.parametrize("content", ['{"model": ', "[]", "3", '{"data": "x"}', '{"arch": "xl"}'])
def test_unreadable_record_raises(content: str, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(UserError, match=r"run\.json.*another folder"):
        TrainSettings.read(tmp_path)
