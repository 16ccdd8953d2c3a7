"""The two-part task: train a small GPT-2 from scratch and test it."""

import shutil
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import StackDataset
from transformers import GPT2Config, GPT2ForSequenceClassification, default_data_collator, set_seed

from recurrify import RecurrentForSequenceClassification, add_recurrence
from recurrify.evaluate import classification_metrics
from recurrify.modeling import recurrence_config
from recurrify.results import provenance
from recurrify.train import TrainerSettings, TrainOutcome, ValidatingTrainer, run_to_end, trainer_arguments
from recurrify_papers.beyond.two_part_task import END, TwoPartTask, two_part_documents
from recurrify_papers.finetune import OUT, finished
from recurrify_papers.runner import Say, minutes_left

TEST_SEED = 2**31
"""Far from the seeds of training documents."""


def two_part_run(settings: dict[str, Any], folder: Path, say: Say) -> dict[str, Any] | None:
    """Train and test one model; a few minutes on a CPU."""
    task, steps = TwoPartTask(), settings["steps"]
    set_seed(settings["seed"])
    model = new_model(task, settings["recurrence"])
    training = TrainerSettings(
        out=str(folder / OUT),
        batch=settings["batch"],
        learning_rate=3e-3,
        warmup_steps=steps // 20,
        seed=settings["seed"],
        report_to="none",
        max_minutes=minutes_left(),
    )
    if finished(vars(train_on_two_parts(model, task, training, steps))) is None:
        return None
    shutil.rmtree(training.out)
    metrics = score_on_two_parts(model, task, settings["documents"])
    say(f"{folder.name}: accuracy {metrics['accuracy']:.3f} (chance {1 / task.labels:.3f})")
    notes = {"accuracy": f"chance {1 / task.labels:g}"}
    numbers = [
        {"metric": metric, "value": value, "split": "test", "note": notes.get(metric)}
        for metric, value in metrics.items()
    ]
    origin = provenance({**settings, "task": task._asdict()}, seed=settings["seed"])
    return {"kind": "two-part", "numbers": numbers, "provenance": origin}


def new_model(task: TwoPartTask, recurrence: dict[str, Any]) -> RecurrentForSequenceClassification:
    """A decoder of two layers."""
    config = GPT2Config(
        vocab_size=task.vocabulary,
        n_positions=task.window,
        n_embd=32,
        n_layer=2,
        n_head=2,
        num_labels=task.labels,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=END,
        eos_token_id=END,
        initializer_range=0.2,  # the usual 0.02 is for wide models
    )
    memory = recurrence_config({**recurrence, "window": task.window})
    model: RecurrentForSequenceClassification = add_recurrence(GPT2ForSequenceClassification(config), memory)
    return model


def train_on_two_parts(
    model: RecurrentForSequenceClassification, task: TwoPartTask, settings: TrainerSettings, steps: int
) -> TrainOutcome:
    """Train in place; no document is seen twice."""
    made = two_part_documents(steps * settings.batch, settings.seed, task)
    tensors: dict[str, Any] = {"input_ids": torch.from_numpy(made.tokens), "labels": torch.from_numpy(made.labels)}
    documents: Any = StackDataset(**tensors)
    trainer = ValidatingTrainer(
        model=model,
        args=trainer_arguments(settings, steps, steps, lr_scheduler_type="cosine"),
        train_dataset=documents,
        data_collator=default_data_collator,
        validate=None,
    )
    per_step = settings.batch * task.length
    return run_to_end(trainer, settings, lambda done: done * per_step, show_progress=False)


@torch.no_grad()
def score_on_two_parts(model: RecurrentForSequenceClassification, task: TwoPartTask, documents: int) -> dict[str, Any]:
    """Metrics on documents that were never trained on."""
    made = two_part_documents(documents, TEST_SEED, task)
    logits = model.eval()(torch.from_numpy(made.tokens).to(model.device)).logits
    return classification_metrics(logits.float().cpu().numpy(), made.labels)
