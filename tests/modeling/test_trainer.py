"""A plain `transformers.Trainer` trains a recurrent model like any other."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer, TrainingArguments

from recurrify import add_recurrence
from support.checks import config
from support.models import text, tiny

ROWS, LENGTH = 8, 20


def examples(ragged: bool = False) -> list[dict[str, torch.Tensor]]:
    found = []
    for index, row in enumerate(text(ROWS, LENGTH)):
        mask = (torch.arange(LENGTH) < LENGTH - (index % 3 if ragged else 0)).long()
        found.append({"input_ids": row, "attention_mask": mask, "labels": row.masked_fill(mask == 0, -100)})
    return found


def model(**settings: Any) -> Any:
    torch.manual_seed(0)
    return add_recurrence(tiny("gpt2"), config(overlap=3, **settings)).train()


def trainer(
    recurrent: Any, folder: Path, data: list[dict[str, torch.Tensor]] | None = None, **settings: Any
) -> Trainer:
    arguments = {
        "per_device_train_batch_size": 4,
        "learning_rate": 5e-3,
        "lr_scheduler_type": "constant",
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "seed": 1,
        "dataloader_pin_memory": False,
        **settings,
    }
    return Trainer(recurrent, TrainingArguments(str(folder), **arguments), train_dataset=data or examples())


def losses(run: Trainer) -> list[float]:
    return [entry["loss"] for entry in run.state.log_history if "loss" in entry]


def test_loss_falls(tmp_path: Path) -> None:
    recurrent = model()
    run = trainer(recurrent, tmp_path, max_steps=35, learning_rate=2e-2, gradient_checkpointing=True)
    before = {name: value.clone() for name, value in recurrent.added_parameters().items()}
    run.train()
    assert recurrent.is_gradient_checkpointing
    found = losses(run)
    assert 3.0 < found[0] < 6.0
    assert found[-1] < 0.5 * found[0]
    for name, value in recurrent.added_parameters().items():
        assert not torch.equal(value, before[name]), f"{name} was not trained"


def test_gradient_accumulation_equals_a_large_batch(tmp_path: Path) -> None:
    trained, found = [], []
    for rows, accumulated in ((4, 1), (1, 4)):
        recurrent = model()
        run = trainer(
            recurrent,
            tmp_path,
            examples(ragged=True),
            max_steps=4,
            per_device_train_batch_size=rows,
            gradient_accumulation_steps=accumulated,
            optim="sgd",
            learning_rate=0.1,
        )
        run.train()
        trained.append(recurrent.state_dict())
        found.append(losses(run))
    torch.testing.assert_close(torch.tensor(found[1]), torch.tensor(found[0]), rtol=1e-4, atol=1e-4)
    for name, value in trained[0].items():
        torch.testing.assert_close(trained[1][name], value, rtol=1e-5, atol=1e-5, msg=name)


def test_resumes_to_the_same_loss(tmp_path: Path) -> None:
    settings = {"max_steps": 6, "save_strategy": "steps", "save_steps": 3}
    whole_model = model(standardize=True)
    whole = trainer(whole_model, tmp_path / "whole", **settings)
    whole.train()
    resumed_model = model(standardize=True)
    with torch.no_grad():
        resumed_model.get_input_embeddings().weight.zero_()
    resumed = trainer(resumed_model, tmp_path / "resumed", **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-3"))
    assert resumed.state.global_step == 6
    torch.testing.assert_close(torch.tensor(losses(resumed)), torch.tensor(losses(whole)))
    for name, value in whole_model.state_dict().items():
        torch.testing.assert_close(resumed_model.state_dict()[name], value, rtol=1e-6, atol=1e-6, msg=name)


def test_evaluates_and_predicts(tmp_path: Path) -> None:
    recurrent = model()
    run = trainer(recurrent, tmp_path, per_device_eval_batch_size=8)
    batch = {name: torch.stack([row[name] for row in examples()]) for name in ("input_ids", "labels")}
    with torch.no_grad():
        output = recurrent.eval()(**batch)
    predicted = run.predict(examples())
    assert predicted.metrics["test_loss"] == pytest.approx(output.loss.item(), rel=1e-4)
    torch.testing.assert_close(torch.tensor(predicted.predictions), output.logits, rtol=1e-4, atol=1e-5)
    assert run.evaluate(examples())["eval_loss"] == pytest.approx(output.loss.item(), rel=1e-4)


def test_checkpoint_of_the_trainer_is_a_saved_model(tmp_path: Path) -> None:
    recurrent = model()
    trainer(recurrent, tmp_path, max_steps=2, save_strategy="steps", save_steps=2).train()
    loaded = type(recurrent).from_pretrained(tmp_path / "checkpoint-2")
    for name, value in recurrent.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name
