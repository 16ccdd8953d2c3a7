"""Settings that should not change what is learnt do not change it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.training_args import OptimizerNames

from recurrify.modeling.loading import load_model
from recurrify.train import finetune
from recurrify.train.finetune import train_run
from support.runs import assert_same_weights, run_settings, validations, weights_of


@pytest.fixture
def _plain_descent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Adam turns the rounding noise of gradients that should be zero into whole steps; SGD does not."""
    real = finetune.training_arguments

    def with_sgd(*args: Any) -> Any:
        arguments = real(*args)
        arguments.optim = OptimizerNames.SGD
        return arguments

    monkeypatch.setattr(finetune, "training_arguments", with_sgd)


def run(base: Path, texts: Path, out: Path, **more: Any) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    result = train_run(run_settings(base, texts, out, **more), lambda text: None, show_progress=False)
    return result, weights_of(out)


@pytest.mark.usefixtures("_plain_descent")
def test_accumulated_batches_equal_a_large_one(base: Path, texts: Path, tmp_path: Path) -> None:
    shared = {"recurrence": {"overlap": 2}, "learning_rate": 0.1}
    large, large_weights = run(base, texts, tmp_path / "large", batch=4, accumulate=1, **shared)
    added, added_weights = run(base, texts, tmp_path / "added", batch=1, accumulate=4, **shared)
    assert large["steps"] == added["steps"] >= 6
    assert_same_weights(large_weights, added_weights, tolerance=1e-5)
    for (step, loss), (other_step, other_loss) in zip(validations(large), validations(added), strict=True):
        assert (step, loss) == (other_step, pytest.approx(other_loss, abs=1e-5))


@pytest.mark.usefixtures("_plain_descent")
def test_checkpointing_changes_nothing(base: Path, texts: Path, tmp_path: Path) -> None:
    settings = {"standardize": True, "pooling": "attention", "bptt_windows": 2}
    runs = [
        run(base, texts, tmp_path / str(on), recurrence={"checkpoint": on, **settings}, learning_rate=0.1)
        for on in (True, False)
    ]
    assert_same_weights(runs[0][1], runs[1][1], tolerance=1e-5)


def test_the_same_seed_gives_the_same_run_and_another_does_not(base: Path, texts: Path, tmp_path: Path) -> None:
    first, again, other = (
        run(base, texts, tmp_path / name, seed=seed) for name, seed in (("first", 3), ("again", 3), ("other", 4))
    )
    assert_same_weights(first[1], again[1])
    assert validations(first[0]) == validations(again[0])
    assert validations(first[0]) != validations(other[0])


def test_plain_windows_take_the_same_path(base: Path, texts: Path, tmp_path: Path) -> None:
    plain, _ = run(base, texts, tmp_path / "plain", recurrence={"mechanism": "none"})
    recurrent, _ = run(base, texts, tmp_path / "recurrent")
    assert plain["parameters"]["added"] == 0
    assert recurrent["parameters"]["added"] > 0
    for name in ("steps", "tokens", "finished"):
        assert plain[name] == recurrent[name]
    assert plain["parameters"]["base"] == recurrent["parameters"]["base"]
    model, _ = load_model(str(tmp_path / "plain"))
    assert model.recurrence.mechanism == "none"
    assert model.mechanism is None


def test_the_first_logged_loss_is_the_mean_over_targets(base: Path, texts: Path, tmp_path: Path) -> None:
    """Sequences of different lengths: a mean of their means would be another number."""
    (tmp_path / "data").mkdir()
    for name, words in (("train", 60), ("valid", 20), ("test", 20)):
        text = (texts / "0.txt").read_text().split()[:words]
        (tmp_path / "data" / f"{name}.txt").write_text(" ".join(text))
    model, tokenizer = load_model(str(base))
    ids = tokenizer((tmp_path / "data" / "train.txt").read_text(), return_tensors="pt", add_special_tokens=False)
    ids = ids["input_ids"]
    model.set_recurrence(window=8)
    with torch.no_grad():
        expected = torch.cat([model(part, labels=part, return_losses=True).token_losses[0, :-1] for part in _cut(ids)])
    more = {"recurrence": {"mechanism": "none"}, "max_tokens": None, "epochs": 1.0}
    batch, _ = run(base, tmp_path / "data", tmp_path / "batch", batch=8, **more)
    single, _ = run(base, tmp_path / "data", tmp_path / "single", batch=1, accumulate=8, **more)
    for result in (batch, single):
        assert result["steps"] == 1
        assert result["history"][0]["loss"] == pytest.approx(expected.mean().item(), abs=1e-4)


def _cut(ids: torch.Tensor) -> list[torch.Tensor]:
    """Sequences of three windows of eight, each with the token after its end."""
    return [ids[:, start : start + 25] for start in range(0, ids.shape[1] - 1, 24)]
