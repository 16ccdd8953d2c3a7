"""Failures in the middle of a run: numbers that are not finite, and errors of other code."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from recurrify.errors import UserError
from recurrify.modeling.heads import RecurrentForCausalLM
from recurrify.modeling.loading import load_model
from recurrify.results import NO_SPACE, explain_full_disk
from recurrify.train.checkpoints import last_whole_checkpoint
from recurrify.train.finetune import train_run
from recurrify.train.settings import TrainSettings
from support.runs import assert_same_weights, run_settings, validations, weights_of


def run(settings: TrainSettings) -> dict[str, Any]:
    return train_run(settings, lambda text: None, show_progress=False)


@pytest.fixture(scope="session")
def whole(base: Path, texts: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """The run without trouble: seven steps, checkpoints after each second one and the last."""
    out = tmp_path_factory.mktemp("runs") / "smooth"
    return run(run_settings(base, texts, out)), out


def check_resumes(settings: TrainSettings, whole: tuple[dict[str, Any], Path]) -> None:
    """With the trouble gone, the run ends where it would have ended without."""
    result = run(settings)
    assert result["steps"] == whole[0]["steps"]
    assert validations(result) == validations(whole[0])
    assert_same_weights(weights_of(Path(settings.out)), weights_of(whole[1]))


def check_sentence(message: str, *words: str) -> None:
    for word in words:
        assert word in message
    assert message.endswith(".")
    assert "\n" not in message


def spoil(monkeypatch: pytest.MonkeyPatch, call: int, how: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Let `how` change the loss of the training step's `call`-th batch."""
    real, calls = RecurrentForCausalLM.forward, [0]

    def forward(self: RecurrentForCausalLM, *args: Any, **kwargs: Any) -> Any:
        output = real(self, *args, **kwargs)
        if self.training:
            calls[0] += 1
            if calls[0] == call:
                output.loss = how(output.loss)
        return output

    monkeypatch.setattr(RecurrentForCausalLM, "forward", forward)


def infinite_gradient(loss: torch.Tensor) -> torch.Tensor:
    loss.register_hook(lambda gradient: gradient * float("inf"))
    return loss


@pytest.mark.parametrize(
    ("what", "how", "resumes"),
    [
        ("loss", lambda loss: loss * float("nan"), False),
        ("gradient", infinite_gradient, True),  # once for all that leave the same checkpoint
    ],
)
def test_non_finite_numbers_stop_the_run(
    what: str,
    how: Callable[[torch.Tensor], torch.Tensor],
    resumes: bool,
    base: Path,
    texts: Path,
    whole: tuple[dict[str, Any], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = run_settings(base, texts, tmp_path / "run")
    with monkeypatch.context() as patch:
        spoil(patch, 4, how)
        with pytest.raises(UserError) as caught:
            run(settings)
    check_sentence(str(caught.value), f"The {what} is not finite at step 4", "learning rate")
    assert not (tmp_path / "run" / "result.json").exists()
    checkpoint = last_whole_checkpoint(tmp_path / "run")
    assert checkpoint is not None
    assert checkpoint.name == "checkpoint-2"
    model, _ = load_model(str(checkpoint))
    assert all(torch.isfinite(value).all() for value in model.state_dict().values())
    if resumes:
        check_resumes(settings, whole)


def test_error_names_the_step_with_accumulation(
    base: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch, 5, lambda loss: loss * float("nan"))
    with pytest.raises(UserError, match="loss is not finite at step 3"):
        run(run_settings(base, texts, tmp_path / "run", batch=2, accumulate=2))


def test_model_with_infinite_weights_raises(texts: Path, base: Path, tmp_path: Path) -> None:
    model, tokenizer = load_model(str(base))
    with torch.no_grad():
        model.base.transformer.ln_f.weight[3] = float("inf")
    model.base.save_pretrained(tmp_path / "broken")
    tokenizer.save_pretrained(tmp_path / "broken")
    with pytest.raises(UserError, match=r"hold numbers that are not finite, in .*ln_f\.weight"):
        run(run_settings(tmp_path / "broken", texts, tmp_path / "run"))


def test_other_errors_are_kept(base: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, 2, lambda loss: loss.view(7))
    with pytest.raises(RuntimeError, match="shape"):
        run(run_settings(base, texts, tmp_path / "run"))


@pytest.mark.parametrize("below", [False, True])
def test_output_folder_is_a_file(below: bool, base: Path, texts: Path, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("mine")
    out = tmp_path / "taken" / "run" if below else tmp_path / "taken"
    with pytest.raises(UserError) as caught:
        run(run_settings(base, texts, out))
    check_sentence(str(caught.value), str(out))
    assert (tmp_path / "taken").read_text() == "mine"


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("enforce fail at inline_container.cc:858] . PytorchStreamWriter failed writing file data/3", NO_SPACE),
        ("[enforce fail at inline_container.cc:672] . unexpected pos 2768768 vs 2768660", NO_SPACE),
        ("basic_ios::clear: iostream error", NO_SPACE),
        ("File too large (os error 27)", "File too large (os error 27)"),
    ],
)
def test_what_libraries_say_of_a_full_disk(said: str, reason: str) -> None:
    """As seen under `ulimit -f` and on a full file system."""
    check_sentence(
        str(explain_full_disk(RuntimeError(f"{said}\nframe #0: more"), "out")), "'out'", reason, "free some space"
    )


def test_a_read_that_fails_is_no_full_disk() -> None:
    failed = OSError(errno.EIO, os.strerror(errno.EIO), "book.txt")
    said = str(explain_full_disk(failed, "out"))
    check_sentence(said, "read or write error of the disk", "book.txt", "run the same command again")
    assert "free some space" not in said
