"""A run that was stopped, killed or finished before."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from recurrify.data.texts import read_text
from recurrify.errors import UserError
from recurrify.modeling.loading import load_model
from recurrify.train import callbacks, counting
from recurrify.train.checkpoints import last_whole_checkpoint
from recurrify.train.finetuning import train_run
from recurrify.train.settings import TrainSettings
from support.runs import assert_same_weights, model_folder, run_settings, validations, weights_of

DROPOUT = {"resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1}


class Heard(list[str]):
    """What a job said."""

    def __call__(self, text: str) -> None:
        self.append(text)

    @property
    def text(self) -> str:
        return "\n".join(self)


@pytest.fixture
def minutes_per_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that goes on by one minute each time a step asks for it."""
    minutes = iter(range(10_000))
    monkeypatch.setattr(callbacks, "time", SimpleNamespace(monotonic=lambda: 60.0 * next(minutes)))


@pytest.fixture(scope="session")
def shaky_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With dropout: a resumed run must go on with the random numbers where they stopped."""
    return model_folder(tmp_path_factory.mktemp("models") / "shaky", **DROPOUT)


@pytest.fixture(scope="session")
def settings_for(shaky_base: Path, texts: Path) -> Callable[..., TrainSettings]:
    def build(out: Path, **more: Any) -> TrainSettings:
        shared = {"recurrence": {"standardize": True, "overlap": 2}, "added_learning_rate": 2e-2, "schedule": "linear"}
        return run_settings(shaky_base, texts, out, **{**shared, **more})

    return build


@pytest.fixture(scope="session")
def whole(settings_for: Callable[..., TrainSettings], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run without any interruption."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    train_run(settings_for(out), Heard(), show_progress=False)
    return out


def check_same_end(out: Path, whole: Path) -> None:
    ours, theirs = (json.loads((folder / "result.json").read_text()) for folder in (out, whole))
    assert ours["finished"]
    assert (ours["steps"], ours["tokens"]) == (theirs["steps"], theirs["tokens"])
    assert validations(ours) == validations(theirs)
    assert_same_weights(weights_of(out), weights_of(whole))


@pytest.mark.usefixtures("minutes_per_step")
@pytest.mark.parametrize("minutes", [1, 3])  # after each step, and after several, with a validation or without
def test_goes_on_after_its_minutes(
    minutes: int, settings_for: Callable[..., TrainSettings], whole: Path, tmp_path: Path
) -> None:
    out, heard, invocations = tmp_path / "run", Heard(), 0
    steps = json.loads((whole / "result.json").read_text())["steps"]
    settings = settings_for(out, max_minutes=minutes)
    while not (result := train_run(settings, heard, show_progress=False))["finished"]:
        invocations += 1
        assert result["steps"] == invocations * minutes
        assert not (out / "result.json").exists()
        assert "run the same command again" in heard.text
        assert invocations < steps
    assert invocations == (steps - 1) // minutes
    assert "going on with the run" in heard.text
    check_same_end(out, whole)


@pytest.mark.usefixtures("minutes_per_step")
def test_patience_is_remembered(settings_for: Callable[..., TrainSettings], texts: Path, tmp_path: Path) -> None:
    """The validation loss of these runs rises from the start, so that patience ends them."""
    more = {"patience": 2, "learning_rate": 5e-2, "valid_every": 88, "max_tokens": 2_000}
    one = train_run(settings_for(tmp_path / "one", **more), Heard(), show_progress=False)
    settings = settings_for(tmp_path / "two", max_minutes=2, **more)
    while not (two := train_run(settings, Heard(), show_progress=False))["finished"]:
        assert two["steps"] < 20
    assert one["steps"] < 20
    assert validations(two) == validations(one)
    # Killed after patience had ended it, before the model was saved.
    shutil.rmtree(tmp_path / "two" / "model")
    (tmp_path / "two" / "result.json").unlink()
    again = train_run(settings, Heard(), show_progress=False)
    assert again["finished"]
    assert validations(again) == validations(one)
    assert_same_weights(weights_of(tmp_path / "two"), weights_of(tmp_path / "one"))


def test_a_finished_run_is_left_alone(whole: Path, settings_for: Callable[..., TrainSettings]) -> None:
    before = {path: path.stat().st_mtime_ns for path in whole.rglob("*")}
    heard = Heard()
    result = train_run(settings_for(whole, max_minutes=1.0), heard, show_progress=False)
    assert "finished already" in heard.text
    assert result == json.loads((whole / "result.json").read_text())
    assert {path: path.stat().st_mtime_ns for path in whole.rglob("*")} == before


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"learning_rate": 0.5}, ("learning_rate=0.01 there", "0.5 now")),
        ({"seed": 7}, ("seed=0 there", "7 now")),
        ({"recurrence": {"window": 9}}, ("recurrence.window=8 there, 9 now",)),
        ({"batch": 3, "windows": 2}, ("batch=4 there", "windows=3 there")),
    ],
)
def test_other_settings_are_refused(
    change: dict[str, Any], words: tuple[str, ...], whole: Path, settings_for: Callable[..., TrainSettings]
) -> None:
    with pytest.raises(UserError) as caught:
        train_run(settings_for(whole, **change), Heard(), show_progress=False)
    for word in (*words, str(whole), "another output folder"):
        assert word in str(caught.value)
    for name in ("model", "data", "epochs"):
        assert f"{name}=" not in str(caught.value)


class TestUnfinishedCheckpoint:
    @pytest.fixture
    def killed(self, whole: Path, tmp_path: Path) -> Path:
        """A run that was killed after its last checkpoint, before the model was saved."""
        out = tmp_path / "killed"
        shutil.copytree(whole, out)
        shutil.rmtree(out / "model")
        (out / "result.json").unlink()
        return out

    @staticmethod
    def steps(out: Path) -> list[int]:
        return sorted(int(path.name.split("-")[1]) for path in out.glob("checkpoint-*"))

    @staticmethod
    def lose_state(checkpoint: Path) -> None:
        (checkpoint / "trainer_state.json").unlink()

    @staticmethod
    def cut_state(checkpoint: Path) -> None:
        path = checkpoint / "trainer_state.json"
        path.write_text(path.read_text()[:40])

    @staticmethod
    def cut_weights(checkpoint: Path) -> None:
        path = checkpoint / "model.safetensors"
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])

    @staticmethod
    def lose_optimizer(checkpoint: Path) -> None:
        (checkpoint / "optimizer.pt").unlink()

    @staticmethod
    def lose_random_numbers(checkpoint: Path) -> None:
        (checkpoint / "rng_state.pth").unlink()

    @pytest.mark.parametrize("damage", [lose_state, cut_state])
    def test_unfinished_it_is_removed(self, damage: Callable[[Path], None], killed: Path) -> None:
        older, newest = self.steps(killed)
        damage(killed / f"checkpoint-{newest}")
        assert last_whole_checkpoint(killed) == killed / f"checkpoint-{older}"
        assert self.steps(killed) == [older]
        assert not list(killed.glob("damaged-*"))

    @pytest.mark.parametrize(
        ("damage", "named"),
        [
            (cut_weights, "model.safetensors"),
            (lose_optimizer, "optimizer.pt"),
            (lose_random_numbers, "rng_state.pth"),
        ],
    )
    def test_damaged_it_is_set_aside(
        self, damage: Callable[[Path], None], named: str, killed: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        older, newest = self.steps(killed)
        aside = killed / f"damaged-checkpoint-{newest}"
        aside.mkdir()  # from another time
        (aside / "mine").touch()
        damage(killed / f"checkpoint-{newest}")
        left = sorted(path.name for path in (killed / f"checkpoint-{newest}").iterdir())
        assert last_whole_checkpoint(killed) == killed / f"checkpoint-{older}"
        assert self.steps(killed) == [older]
        assert sorted(path.name for path in (killed / f"damaged-checkpoint-{newest}-2").iterdir()) == left
        assert (aside / "mine").is_file()
        told = capsys.readouterr().err
        assert told.startswith(f"note: {named} of {killed / f'checkpoint-{newest}'} is damaged or gone")

    def test_the_run_goes_on_from_the_one_before(
        self, killed: Path, whole: Path, settings_for: Callable[..., TrainSettings]
    ) -> None:
        older, newest = self.steps(killed)
        self.lose_optimizer(killed / f"checkpoint-{newest}")
        heard = Heard()
        result = train_run(settings_for(killed), heard, show_progress=False)
        assert result["steps"] == newest
        assert f"going on with the run in {killed}, from step {older}" in heard.text
        check_same_end(killed, whole)

    def test_all_damaged_begins_anew(
        self, killed: Path, whole: Path, settings_for: Callable[..., TrainSettings]
    ) -> None:
        for step in self.steps(killed):
            self.cut_weights(killed / f"checkpoint-{step}")
        train_run(settings_for(killed), Heard(), show_progress=False)
        check_same_end(killed, whole)

    def test_other_folders_are_left_alone(self, tmp_path: Path) -> None:
        for name in ("checkpoint-best", "checkpoint-", "my-checkpoint-3"):
            (tmp_path / name).mkdir()
        assert last_whole_checkpoint(tmp_path) is None
        assert len(list(tmp_path.iterdir())) == 3
        assert last_whole_checkpoint(tmp_path / "nothing") is None

    def test_a_run_killed_before_its_model_was_saved(
        self, killed: Path, whole: Path, settings_for: Callable[..., TrainSettings]
    ) -> None:
        train_run(settings_for(killed), Heard(), show_progress=False)
        check_same_end(killed, whole)

    def test_a_moved_run_still_knows_its_best(
        self, killed: Path, whole: Path, settings_for: Callable[..., TrainSettings], tmp_path: Path
    ) -> None:
        """The best checkpoint is the first one here: the last model would be another."""
        older, newest = self.steps(killed)
        assert older < newest
        shutil.rmtree(killed / f"checkpoint-{newest}")
        moved = killed.rename(tmp_path / "moved")
        whole.rename(hidden := whole.with_name("hidden"))
        try:
            train_run(settings_for(moved), Heard(), show_progress=False)
        finally:
            hidden.rename(whole)
        check_same_end(moved, whole)


class TestSettingsFile:
    def test_round_trip(self, whole: Path, settings_for: Callable[..., TrainSettings]) -> None:
        found = TrainSettings.read(whole)
        assert found is not None
        assert found.data_checksum is not None
        assert replace(found, data_checksum=None) == settings_for(whole)
        assert TrainSettings.read(whole.parent) is None

    def test_damaged(self, tmp_path: Path) -> None:
        (tmp_path / "run.json").write_text('{"model": ')
        with pytest.raises(UserError, match=r"run\.json.*another folder"):
            TrainSettings.read(tmp_path)

    @pytest.mark.parametrize("content", ["[]", "3", '{"data": "x"}'])
    def test_not_settings(self, content: str, tmp_path: Path) -> None:
        (tmp_path / "run.json").write_text(content)
        with pytest.raises(UserError):
            TrainSettings.read(tmp_path)

    def test_from_a_newer_version(self, whole: Path, tmp_path: Path) -> None:
        values = json.loads((whole / "run.json").read_text()) | {"telepathy": True}
        (tmp_path / "run.json").write_text(json.dumps(values))
        with pytest.raises(UserError, match="telepathy"):
            TrainSettings.read(tmp_path)


@pytest.mark.usefixtures("minutes_per_step")
def test_the_log_counts_the_tokens_and_seconds_of_all_legs(
    settings_for: Callable[..., TrainSettings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = iter(range(1_000_000))
    monkeypatch.setattr(counting, "time", SimpleNamespace(monotonic=lambda: float(next(seconds))))
    settings = settings_for(tmp_path / "run", max_minutes=3, max_tokens=None, epochs=1.0, group_by_length=True)
    asked = 0
    while not (result := train_run(settings, Heard(), show_progress=False))["finished"]:
        asked += 1
        next(seconds)  # between the legs, which does not count
    assert asked
    log = [entry for entry in result["history"] if "loss" in entry]
    tokens = [entry["num_input_tokens_seen"] for entry in log]
    steps = [after - before for before, after in pairwise([0, *tokens])]
    assert steps != sorted(steps)[:1] * len(steps)  # grouped by length, steps differ
    _, tokenizer = load_model(settings.model, settings.recurrence)
    texts, _ = read_text(settings.data, "train", tokenizer, Heard())
    assert result["tokens"] == tokens[-1] == sum(len(text.ids) - 1 for text in texts)  # one epoch: every one once
    taken = [entry["seconds"] for entry in result["history"] if "seconds" in entry]
    assert taken == sorted(taken)
    assert result["training_seconds"] == taken[-1]
    # One reading of the clock at the start of each leg, and one for each entry behind it.
    assert taken[-1] == len(taken)


@pytest.mark.usefixtures("minutes_per_step")
def test_steps_that_an_older_version_did_not_count_are_counted_on_average(
    settings_for: Callable[..., TrainSettings], whole: Path, tmp_path: Path
) -> None:
    settings = settings_for(tmp_path / "run", max_minutes=3)
    assert not train_run(settings, Heard(), show_progress=False)["finished"]
    saved = last_whole_checkpoint(tmp_path / "run")
    assert saved is not None
    state = json.loads((saved / "trainer_state.json").read_text())
    (saved / "trainer_state.json").write_text(json.dumps(state | {"num_input_tokens_seen": 0}))
    result = train_run(replace(settings, max_minutes=None), Heard(), show_progress=False)
    expected = json.loads((whole / "result.json").read_text())["tokens"]
    assert result["tokens"] == pytest.approx(expected, rel=0.15)
