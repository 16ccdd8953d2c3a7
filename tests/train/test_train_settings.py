"""What the settings of a run do, and which values are invalid."""

import importlib.util
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from recurrify.data.sequences import TrainingSequences
from recurrify.data.texts import read_text
from recurrify.errors import UserError
from recurrify.mechanisms import recurrence_config
from recurrify.modeling.loading import load_model
from recurrify.train.finetune import train, train_run, training_arguments
from recurrify.train.loop import RecurrentTrainer, compile_mode, trainer_arguments, uses_bf16
from recurrify.train.settings import TrainSettings
from support.runs import assert_same_weights, run_settings, validations, weights_of


def run(settings: TrainSettings) -> dict[str, Any]:
    return train_run(settings, lambda text: None, show_progress=False)


@pytest.fixture
def trainers(monkeypatch: pytest.MonkeyPatch) -> list[RecurrentTrainer]:
    """The trainers that the test's runs make."""
    made: list[RecurrentTrainer] = []
    real = RecurrentTrainer.__init__

    def keep(self: RecurrentTrainer, *args: Any, **kwargs: Any) -> None:
        real(self, *args, **kwargs)
        made.append(self)

    monkeypatch.setattr(RecurrentTrainer, "__init__", keep)
    return made


class TestBestModel:
    """Validation on other words than those trained on: it gets worse from the first step on."""

    @pytest.fixture
    def other_words(self, tmp_path: Path) -> Path:
        path = tmp_path / "other.txt"
        path.write_text("w58 w59 " * 30)
        return path

    @pytest.fixture
    def same_words(self, tmp_path: Path) -> Path:
        path = tmp_path / "same.txt"
        path.write_text("w10 w11 w12 w13 " * 60)
        return path

    def test_patience_ends_the_run(self, base: Path, same_words: Path, other_words: Path, tmp_path: Path) -> None:
        more = {"valid": str(other_words), "valid_every": 1, "max_tokens": None, "epochs": 20.0, "batch": 1}
        settings = run_settings(base, same_words, tmp_path / "run", patience=3, warmup_steps=0, **more)
        result = run(settings)
        losses = [loss for _, loss in validations(result)]
        best = losses.index(min(losses))
        assert len(losses) == best + 1 + 3
        assert result["finished"]
        assert result["steps"] == len(losses) < 100
        saved, checkpoint = weights_of(tmp_path / "run"), tmp_path / "run" / f"checkpoint-{best + 1}"
        assert_same_weights(saved, load_file(checkpoint / "model.safetensors"))
        last = load_file(tmp_path / "run" / f"checkpoint-{len(losses)}" / "model.safetensors")
        assert any(not torch.equal(last[name], value) for name, value in saved.items())

    def test_validation_equals_evaluation(self, base: Path, texts: Path, tmp_path: Path) -> None:
        """The best validation loss is that of the saved model, on the first tokens of each document."""
        from recurrify.data.texts import read_text
        from recurrify.evaluate.perplexity import evaluate_documents

        result = run(run_settings(base, texts, tmp_path / "run", valid_tokens=20))
        model, tokenizer = load_model(str(tmp_path / "run"))
        tokens, _ = read_text(str(texts), "valid", tokenizer, lambda text: None, tokens_per_document=20)
        assert max(len(document.ids) for document in tokens) == 20
        found = evaluate_documents(model, tokens)
        best = min(loss for _, loss in validations(result))
        assert math.log(found.perplexity_per_token) == pytest.approx(best, abs=1e-6)


class TestParameters:
    def test_added_learning_rate(
        self, base: Path, texts: Path, tmp_path: Path, trainers: list[RecurrentTrainer]
    ) -> None:
        run(run_settings(base, texts, tmp_path / "run", learning_rate=1e-3, added_learning_rate=7e-3))
        (trainer,) = trainers
        rates: dict[str, set[float]] = {"added": set(), "base": set()}
        counted = 0
        names = {id(value): name for name, value in trainer.model.named_parameters()}
        for group in trainer.optimizer.param_groups:
            for value in group["params"]:
                counted += 1
                rates["added" if names[id(value)].startswith("mechanism.") else "base"].add(group["lr"])
        assert rates == {"added": {7e-3}, "base": {1e-3}}
        assert counted == len(names)

    def test_freeze_base(self, base: Path, texts: Path, tmp_path: Path) -> None:
        settings = run_settings(base, texts, tmp_path / "run", freeze_base=True, added_learning_rate=1e-2, seed=5)
        torch.manual_seed(0)
        run(settings)
        torch.manual_seed(5)
        begun, _ = load_model(str(base), recurrence_config(settings.recurrence))
        trained = load_model(str(tmp_path / "run"))[0].state_dict()
        for name, value in begun.state_dict().items():
            if name.startswith("base."):
                assert torch.equal(trained[name], value), name
            else:
                assert not torch.equal(trained[name], value), name

    def test_freeze_base_survives_texts_of_one_window(self, base: Path, tmp_path: Path) -> None:
        """Such a batch gives the added weights nothing to learn; that is no reason to stop."""
        (tmp_path / "data").mkdir()
        for number in range(12):
            words = 6 if number % 3 else 20
            (tmp_path / "data" / f"{number}.txt").write_text(" ".join(["w7 w9"] * (words // 2)))
        settings = run_settings(
            base, tmp_path / "data", tmp_path / "run", freeze_base=True, batch=1, max_tokens=None, epochs=1.0
        )
        assert run(settings)["steps"] >= 10


class TestSchedule:
    @staticmethod
    def rates(result: dict[str, Any]) -> list[float]:
        return [entry["learning_rate"] for entry in result["history"] if "learning_rate" in entry]

    @pytest.mark.parametrize(
        ("schedule", "share"),
        [
            ("constant_with_warmup", lambda done: 1.0),
            ("linear", lambda done: 1.0 - done),
            ("cosine", lambda done: 0.5 * (1.0 + math.cos(math.pi * done))),
        ],
    )
    def test_rates(
        self, schedule: str, share: Any, base: Path, texts: Path, tmp_path: Path, trainers: list[RecurrentTrainer]
    ) -> None:
        more = {"schedule": schedule, "warmup_steps": 3, "learning_rate": 0.03, "added_learning_rate": 0.5}
        result = run(run_settings(base, texts, tmp_path / "run", **more))
        steps = result["steps"]
        expected = [0.03 * (step / 3 if step < 3 else share((step - 3) / (steps - 3))) for step in range(steps)]
        assert self.rates(result) == pytest.approx(expected)
        groups = trainers[0].optimizer.param_groups
        assert {group["initial_lr"] for group in groups} == {0.03, 0.5}
        assert len({group["lr"] / group["initial_lr"] for group in groups}) == 1  # both follow the schedule


class TestBudget:
    @pytest.fixture
    def sequences(self, base: Path, texts: Path) -> TrainingSequences:
        documents, _ = read_text(str(texts), "train", load_model(str(base))[1], print)
        return TrainingSequences(documents, window=8, windows=3)

    @pytest.mark.parametrize(
        ("more", "steps"),
        [
            ({"epochs": 1.0, "max_tokens": None}, 8),
            ({"epochs": 2.0, "max_tokens": None}, 16),
            ({"epochs": 0.5, "max_tokens": None}, 4),
            ({"epochs": 1.0, "max_tokens": 10**9}, 8),
            ({"epochs": 9.0, "max_tokens": 1}, 1),
            ({"epochs": 1.0, "max_tokens": None, "accumulate": 2}, 4),
        ],
    )
    def test_steps(
        self, more: dict[str, Any], steps: int, sequences: TrainingSequences, base: Path, texts: Path, tmp_path: Path
    ) -> None:
        assert len(sequences) == 30
        arguments = training_arguments(run_settings(base, texts, tmp_path, **more), sequences, validates=True)
        assert arguments.max_steps == steps
        assert arguments.eval_steps == arguments.save_steps <= steps

    @pytest.mark.parametrize("grouped", [False, True])
    def test_order(self, grouped: bool, sequences: TrainingSequences, base: Path, texts: Path, tmp_path: Path) -> None:
        settings = run_settings(base, texts, tmp_path, group_by_length=grouped)
        arguments = training_arguments(settings, sequences, validates=False)
        assert arguments.train_sampling_strategy == ("group_by_length" if grouped else "random")

    def test_without_validation(self, sequences: TrainingSequences, base: Path, texts: Path, tmp_path: Path) -> None:
        settings = run_settings(base, texts, tmp_path / "run")
        model, _ = load_model(str(base), recurrence_config(settings.recurrence))
        outcome = train(model, sequences, settings, show_progress=False)
        assert outcome.finished
        assert not any("eval_loss" in entry for entry in outcome.history)
        assert (tmp_path / "run" / f"checkpoint-{outcome.steps}" / "model.safetensors").is_file()


class TestPrecision:
    def test_on_a_cpu(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        assert not uses_bf16("auto")
        assert not uses_bf16("fp32")
        with pytest.raises(UserError, match="no usable CUDA GPU: use auto or fp32"):
            uses_bf16("bf16")

    @pytest.mark.parametrize("able", [True, False])
    def test_on_a_gpu(self, able: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: able)
        assert uses_bf16("auto") is able
        assert not uses_bf16("fp32")
        assert uses_bf16("bf16")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("learning_rate", -1e-3),
        ("learning_rate", 0.0),
        ("learning_rate", math.nan),
        ("added_learning_rate", -1.0),
        ("epochs", 0.0),
        ("epochs", math.inf),
        ("max_tokens", 0),
        ("max_minutes", -1.0),
        ("windows", 0),
        ("batch", 0),
        ("accumulate", -1),
        ("valid_every", 0),
        ("valid_tokens", 0),
        ("valid_tokens", 1),
        ("warmup_steps", -5),
        ("patience", -1),
        ("weight_decay", -0.1),
        ("max_grad_norm", -1.0),
        ("seed", -1),
        ("precision", "fp8"),
        ("schedule", "sawtooth"),
    ],
)
def test_invalid_value_raises(name: str, value: Any) -> None:
    with pytest.raises(UserError, match=f"`{name}` must be"):
        TrainSettings(model="m", data="d", out="o", **{name: value})


def test_nothing_to_train() -> None:
    with pytest.raises(UserError, match="nothing to train"):
        TrainSettings(model="m", data="d", out="o", freeze_base=True, recurrence={"mechanism": "none"})


@pytest.mark.parametrize(
    ("choice", "gpus", "mode"),
    [
        ("auto", 0, "off"),
        ("auto", 1, "graphs"),
        ("auto", 2, "on"),
        ("layers", 0, "on"),
        ("layers", 1, "graphs"),
        ("layers", 2, "on"),
        ("on", 0, "on"),
        ("off", 1, "off"),
    ],
)
def test_compile_mode(choice: str, gpus: int, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert compile_mode(choice) == mode
    if not gpus:
        with pytest.raises(UserError, match="use auto, on or off"):
            compile_mode("graphs")


@pytest.mark.parametrize(("steps", "warmup"), [(10, 1), (100, 10), (5_000, 100)])
def test_warm_up_scales_with_short_runs(steps: int, warmup: int) -> None:
    settings = TrainSettings(model="m", data="d", out="o")
    assert settings.warmup(steps) == warmup
    assert replace(settings, warmup_steps=7).warmup(steps) == 7


def test_report_to_wandb_without_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settings = TrainSettings(model="m", data="d", out=str(tmp_path), report_to="wandb")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="pip install wandb"):
        trainer_arguments(settings, 1, 1)
    assert trainer_arguments(replace(settings, report_to="none"), 1, 1).report_to == []
