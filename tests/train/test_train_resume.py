"""A stopped run resumes with identical weights; `tests/cli/test_cli_faults.py` kills every command that trains."""

import itertools
import json
import os
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from recurrify.data.texts import read_text
from recurrify.errors import UserError
from recurrify.modeling.loading import load_model
from recurrify.train import TrainSettings, callbacks, finetune
from recurrify.train.checkpoints import last_whole_checkpoint, replace_state
from recurrify.train.finetune import train_run
from recurrify.train.loop import ByLength, RecurrentTrainer
from support.faults import EVENTS
from support.runs import assert_same_end, assert_same_weights, model_folder, run_settings, validations, weights_of

DROPOUT = {"resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1}


@pytest.fixture(scope="session")
def inputs(tmp_path_factory: pytest.TempPathFactory, texts: Path) -> SimpleNamespace:
    """A model and its text; dropout makes a resumed run depend on its random state."""
    return SimpleNamespace(base=model_folder(tmp_path_factory.mktemp("inputs") / "base", **DROPOUT), texts=texts)


def settings_of(inputs: SimpleNamespace, out: Path, **more: Any) -> TrainSettings:
    shared = {"recurrence": {"standardize": True, "overlap": 2}, "added_learning_rate": 2e-2, "schedule": "linear"}
    return run_settings(inputs.base, inputs.texts, out, **{**shared, **more})


def run(settings: TrainSettings, said: list[str] | None = None) -> dict[str, Any]:
    return train_run(settings, ([] if said is None else said).append, show_progress=False)


@pytest.fixture(scope="session")
def whole(inputs: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an undisturbed run: three validations, each with a checkpoint, of which the best and last stay."""
    out = tmp_path_factory.mktemp("runs") / "train"
    run(settings_of(inputs, out))
    return out


def disturb(monkeypatch: pytest.MonkeyPatch, step: int, how: Callable[[], None]) -> None:
    """Call `how` in the middle of a training step."""
    real = RecurrentTrainer.training_step

    def disturbed(self: RecurrentTrainer, *args: Any, **kwargs: Any) -> Any:
        if self.state.global_step + 1 == step:
            how()
        return real(self, *args, **kwargs)

    monkeypatch.setattr(RecurrentTrainer, "training_step", disturbed)


def test_interrupted_run_resumes_and_counts_all_its_starts(
    inputs: SimpleNamespace, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, said = settings_of(inputs, tmp_path / "run"), list[str]()
    before = signal.getsignal(signal.SIGTERM)
    with monkeypatch.context() as patch:
        disturb(patch, 5, lambda: signal.raise_signal(signal.SIGHUP))
        result = run(settings)
    assert (result["finished"], result["interrupted"], result["steps"]) == (False, True, 5)
    assert not (tmp_path / "run" / "result.json").exists()
    assert signal.getsignal(signal.SIGTERM) is before
    run(settings, said)
    assert any("resuming the run" in line and "step 5" in line for line in said)
    assert_same_end(tmp_path / "run", whole)
    legs = json.loads((tmp_path / "run" / "result.json").read_text())["legs"]
    assert [leg["first_step"] for leg in legs] == [0, 5]


@pytest.mark.parametrize("validation", [1, 3])  # the last one too, of which only the result is missing
def test_signal_during_validation_loses_no_step(
    validation: int, inputs: SimpleNamespace, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long validation would outlast the grace time of a cluster; its step is saved, and validated afterwards."""
    settings, calls = settings_of(inputs, tmp_path / "run"), itertools.count(1)
    real = finetune.evaluate_documents

    def disturbed(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == validation:
            signal.raise_signal(signal.SIGTERM)
        return real(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(finetune, "evaluate_documents", disturbed)
        result = run(settings)
    assert (result["finished"], result["interrupted"]) == (False, True)
    assert len(validations(result)) == validation - 1
    saved = last_whole_checkpoint(tmp_path / "run")
    assert saved is not None
    assert saved.name == f"checkpoint-{result['steps']}"
    run(settings)
    assert_same_end(tmp_path / "run", whole)


def test_second_interrupt_stops_at_once(
    inputs: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disturb(monkeypatch, 5, lambda: [signal.raise_signal(signal.SIGINT) for _ in range(2)] and None)
    with pytest.raises(KeyboardInterrupt):
        run(settings_of(inputs, tmp_path / "run"))
    assert last_whole_checkpoint(tmp_path / "run") is not None


@pytest.fixture
def minutes_per_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that advances by one minute per step."""
    minutes = iter(range(10_000))
    monkeypatch.setattr(callbacks, "time", SimpleNamespace(monotonic=lambda: 60.0 * next(minutes)))


@pytest.mark.usefixtures("minutes_per_step")
def test_max_minutes(inputs: SimpleNamespace, whole: Path, tmp_path: Path) -> None:
    """Each start takes three steps and stops, after a validation or between two."""
    settings = settings_of(inputs, tmp_path / "run", max_minutes=3)
    starts = 0
    while not (result := run(settings))["finished"]:
        starts += 1
        assert result["steps"] == starts * 3
    assert starts > 1
    assert_same_end(tmp_path / "run", whole)


@pytest.mark.usefixtures("minutes_per_step")
def test_patience_is_kept(inputs: SimpleNamespace, tmp_path: Path) -> None:
    """The validation loss of these runs rises from the start, so patience ends them."""
    more = {"patience": 2, "learning_rate": 5e-2, "valid_every": 88, "max_tokens": 2_000}
    one = run(settings_of(inputs, tmp_path / "one", **more))
    settings = settings_of(inputs, tmp_path / "two", max_minutes=2, **more)
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
    settings = settings_of(inputs, tmp_path / "run", **more)
    while not (result := run(settings))["finished"]:
        next(seconds)  # between two starts, which does not count
    tokens = [entry["num_input_tokens_seen"] for entry in result["history"] if "loss" in entry]
    assert len({after - before for before, after in pairwise([0, *tokens])}) > 1  # grouped by length, steps differ
    texts, _ = read_text(settings.data, "train", load_model(settings.model)[1], lambda text: None)
    assert result["tokens"] == tokens[-1] == sum(len(text.ids) - 1 for text in texts)  # one epoch: every one once
    taken = [entry["seconds"] for entry in result["history"] if "seconds" in entry]
    # One reading of the clock at each start, and one for each entry after it.
    assert result["training_seconds"] == taken[-1] == len(taken)


def test_finished_run_is_left_alone(inputs: SimpleNamespace, whole: Path) -> None:
    out, said = whole, list[str]()
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    result = run(settings_of(inputs, out, max_minutes=1.0), said)
    assert "is finished" in said[-1]
    assert result == json.loads((out / "result.json").read_text())
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"learning_rate": 0.5}, ["learning_rate=0.01 there, 0.5 now"]),
        ({"recurrence": {"window": 9}}, ["recurrence.window=8 there, 9 now"]),
        ({"recurrence": {"mechanism": "summary"}}, ["(recurrence.mechanism='carry' there, 'summary' now): use"]),
        ({"batch": 3, "windows": 2}, ["batch=4 there", "windows=3 there"]),
    ],
)
def test_other_settings_raise(change: dict[str, Any], words: list[str], inputs: SimpleNamespace, whole: Path) -> None:
    with pytest.raises(UserError, match="another output folder") as caught:
        run(settings_of(inputs, whole, **change))
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
    settings = settings_of(own, tmp_path / "run", max_tokens=60, valid=str(valid))
    run(settings)
    if changed == "base":
        weights = load_file(own.base / "model.safetensors")
        weights["transformer.ln_f.weight"][3] += 0.1
        save_file(weights, own.base / "model.safetensors", metadata={"format": "pt"})
    for path in {"texts": list(own.texts.iterdir()), "valid": [valid], "base": []}[changed]:
        path.write_text(path.read_text() + " w9 w10")
    with pytest.raises(UserError, match=f"{words}.* changed since the run"):
        run(settings)


def kill_at(folder: Path, count: Iterator[int], at: int, event: str, given: tuple[Any, ...]) -> None:
    if event in EVENTS and str(folder) in str(given[0]) and next(count) == at:
        os.kill(os.getpid(), signal.SIGKILL)


class TestDamagedCheckpoint:
    @pytest.fixture
    def killed(self, whole: Path, tmp_path: Path) -> Path:
        """A run that was killed after its last checkpoint, before the model was saved."""
        out = Path(shutil.copytree(whole, tmp_path / "killed"))
        shutil.rmtree(out / "model")
        (out / "result.json").unlink()
        return out

    @staticmethod
    def steps(out: Path) -> list[int]:
        return sorted(int(path.name.split("-")[1]) for path in out.glob("checkpoint-*"))

    def test_unfinished_one_is_removed(self, killed: Path) -> None:
        older, newest = self.steps(killed)
        (killed / f"checkpoint-{newest}" / "checksums.json").unlink()  # written last
        assert last_whole_checkpoint(killed) == killed / f"checkpoint-{older}"
        assert self.steps(killed) == [older]

    def test_a_flipped_bit_in_any_file_is_found(self, killed: Path, capsys: pytest.CaptureFixture[str]) -> None:
        older, newest = self.steps(killed)
        names = sorted(path.name for path in (killed / f"checkpoint-{newest}").iterdir())
        assert {"model.safetensors", "optimizer.pt", "rng_state.pth", "trainer_state.json", "checksums.json"} <= set(
            names
        )
        for name in names:
            file = killed / f"checkpoint-{newest}" / name
            content = file.read_bytes()
            half = len(content) // 2
            file.write_bytes(content[:half] + bytes([content[half] ^ 4]) + content[half + 1 :])
            assert last_whole_checkpoint(killed) == killed / f"checkpoint-{older}"
            (aside,) = killed.glob("damaged-*")
            assert f"{aside}" in capsys.readouterr().err
            aside.rename(file.parent)
            file.write_bytes(content)
        assert last_whole_checkpoint(killed) == killed / f"checkpoint-{newest}"

    @pytest.mark.parametrize("which", ["newest", "best"])
    def test_run_resumes_from_the_newest_intact_one(
        self, which: str, killed: Path, whole: Path, inputs: SimpleNamespace
    ) -> None:
        """If the best one is damaged, all later ones are of no use: the result would be another."""
        newest = max(self.steps(killed))
        best = json.loads((killed / f"checkpoint-{newest}" / "trainer_state.json").read_text())["best_global_step"]
        weights = killed / f"checkpoint-{best if which == 'best' else newest}" / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1] + b"?")
        run(settings_of(inputs, killed))
        assert_same_end(killed, whole)

    def test_a_kill_while_its_state_is_replaced(self, killed: Path) -> None:
        """As when a validation is repeated: at any moment the newest checkpoint stays intact."""
        newest = killed / f"checkpoint-{max(self.steps(killed))}"
        new, events = newest / ".state.tmp", 0
        while True:
            new.write_text((newest / "trainer_state.json").read_text() + " ")
            child = os.fork()
            if child == 0:
                with suppress(BaseException):
                    sys.addaudithook(partial(kill_at, newest, itertools.count(1), events + 1))
                    replace_state(newest, new)
                os._exit(0)
            _, status = os.waitpid(child, 0)
            assert last_whole_checkpoint(killed) == newest
            if status == 0:
                break
            events += 1
        assert events > 3
        assert (newest / "trainer_state.json").read_text().endswith(" ")

    def test_other_folders_are_left_alone(self, tmp_path: Path) -> None:
        for name in ("checkpoint-best", "checkpoint-", "my-checkpoint-3"):
            (tmp_path / name).mkdir()
        assert last_whole_checkpoint(tmp_path) is None
        assert len(list(tmp_path.iterdir())) == 3

    def test_moved_run_knows_its_best_model(
        self, killed: Path, whole: Path, inputs: SimpleNamespace, tmp_path: Path
    ) -> None:
        """The best checkpoint is the first one here: the last model would be another."""
        moved = killed.rename(tmp_path / "moved")
        whole.rename(hidden := whole.with_name("hidden"))
        try:
            run(settings_of(inputs, moved))
        finally:
            hidden.rename(whole)
        assert_same_end(moved, whole)


def test_record_round_trip(inputs: SimpleNamespace, whole: Path) -> None:
    found = TrainSettings.read(whole)
    assert found is not None
    assert None not in (found.data_checksum, found.held_out_checksum, found.model_checksum)
    asked = replace(found, data_checksum=None, held_out_checksum=None, model_checksum=None)
    assert asked == settings_of(inputs, whole)
    assert TrainSettings.read(whole.parent) is None


@pytest.mark.parametrize("content", ['{"model": ', "[]", "3", '{"data": "x"}', '{"arch": "xl"}'])
def test_unreadable_record_raises(content: str, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(UserError, match=r"run\.json.*another folder"):
        TrainSettings.read(tmp_path)


@pytest.mark.usefixtures("minutes_per_step")
def test_batches_of_similar_length_come_in_the_same_order_after_a_resume(
    inputs: SimpleNamespace, tmp_path: Path
) -> None:
    more = {"max_tokens": None, "epochs": 2.0, "group_by_length": True}
    run(settings_of(inputs, tmp_path / "whole", max_minutes=None, **more))
    settings, starts = settings_of(inputs, tmp_path / "parts", max_minutes=3, **more), 1
    while not run(settings)["finished"]:
        starts += 1
    assert starts > 2
    assert_same_weights(weights_of(tmp_path / "parts"), weights_of(tmp_path / "whole"))


def test_batches_group_similar_lengths() -> None:
    lengths = np.random.default_rng(0).integers(1, 1000, size=103).tolist()
    sampler = ByLength(4, lengths, seed=0)
    orders = []
    for epoch in (0, 1, 0):
        sampler.set_epoch(epoch)
        orders.append(list(sampler))
        assert Counter(orders[-1]) == Counter(range(103))
    assert orders[0] == orders[2] != orders[1]
    batches = [[lengths[index] for index in orders[0][start : start + 4]] for start in range(0, 100, 4)]
    assert max(max(batch) - min(batch) for batch in batches) < 400
    # Batches are not sorted by length.
    longest = [max(batch) for batch in batches]
    assert longest != sorted(longest)
