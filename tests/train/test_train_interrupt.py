"""Ctrl-C loses nothing, and a run does not go on with other text than it began with."""

import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from recurrify import UserError
from recurrify.train.finetuning import train_run
from recurrify.train.trainer import RecurrentTrainer
from support.runs import assert_same_weights, run_settings, weights_of


def press_ctrl_c(monkeypatch: pytest.MonkeyPatch, step: int, times: int = 1) -> None:
    """The signal arrives in the middle of this training step."""
    real = RecurrentTrainer.training_step

    def interrupted(self: RecurrentTrainer, *args: Any, **kwargs: Any) -> Any:
        if self.state.global_step + 1 == step:
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)
        return real(self, *args, **kwargs)

    monkeypatch.setattr(RecurrentTrainer, "training_step", interrupted)


def test_an_interrupted_run_is_saved_and_goes_on_to_the_same_end(
    base: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.getsignal(signal.SIGINT)
    whole = run_settings(base, texts, tmp_path / "whole")
    train_run(whole, lambda text: None, show_progress=False)
    settings = run_settings(base, texts, tmp_path / "run")
    said: list[str] = []
    with monkeypatch.context() as patch:
        press_ctrl_c(patch, step=3)
        result = train_run(settings, said.append, show_progress=False)
    assert (result["finished"], result["interrupted"], result["steps"]) == (False, True, 3)
    assert (tmp_path / "run" / "checkpoint-3").is_dir()
    assert not (tmp_path / "run" / "result.json").exists()
    result = train_run(settings, said.append, show_progress=False)
    assert result["finished"]
    assert any("from step 3" in line for line in said)
    assert_same_weights(weights_of(tmp_path / "run"), weights_of(tmp_path / "whole"))
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_ctrl_c_stops_at_once(
    base: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    press_ctrl_c(monkeypatch, step=3, times=2)
    with pytest.raises(KeyboardInterrupt):
        train_run(run_settings(base, texts, tmp_path / "run"), lambda text: None, show_progress=False)
    assert (tmp_path / "run" / "checkpoint-2").is_dir()


def test_other_text_under_the_same_name_is_refused(base: Path, texts: Path, tmp_path: Path) -> None:
    copied = Path(shutil.copytree(texts, tmp_path / "texts"))
    settings = run_settings(base, copied, tmp_path / "run")
    train_run(settings, lambda text: None, show_progress=False)
    for path in copied.iterdir():
        path.write_text(path.read_text() + " w9 w10")
    with pytest.raises(UserError, match="data_checksum"):
        train_run(settings, lambda text: None, show_progress=False)


def test_tokens_are_counted_where_batches_are_short(base: Path, texts: Path, tmp_path: Path) -> None:
    """Batches larger than the text: an epoch is one update, and its tokens are the text's."""
    settings = run_settings(base, texts, tmp_path / "run", batch=1_000, max_tokens=None, epochs=2)
    result = train_run(settings, lambda text: None, show_progress=False)
    words = [len(path.read_text().split()) for path in texts.iterdir()]
    assert result["steps"] == 2
    assert 0.5 * 2 * sum(words) < result["tokens"] < 2 * sum(words)
