"""What training a classifier and training a question answerer have in common: settings, Trainer's words, the run."""

import math
import os
from dataclasses import dataclass, field
from typing import Any

from transformers import TrainingArguments

from recurrify.train.callbacks import StopOnNonFinite
from recurrify.train.running import TrainOutcome, run_to_end, trainer_arguments
from recurrify.train.settings import TrainerSettings
from recurrify.train.trainer import RecurrentTrainer

MOST_CHECKPOINTS = 10
"""Written in the course of a run; only the newest is kept."""


@dataclass(frozen=True, kw_only=True)
class TaskSettings(TrainerSettings):
    """What a run is told that trains a model on examples, and scores others when it is over."""

    model: str
    """The base: a Hugging Face name, a folder, or a trained model to go on with."""
    data: str
    """Training examples."""
    test: str | None = None
    """Examples to score once training is over."""
    recurrence: dict[str, Any] = field(default_factory=dict)
    """The mechanism and its settings, as RecurrenceConfig.to_dict writes them."""
    epochs: float = 3.0
    added_learning_rate: float | None = None
    """For the weights that recurrence added; None takes `learning_rate`."""
    schedule: str = "linear"
    """Learning rate after the warm-up: constant_with_warmup, linear or cosine."""


def task_arguments(settings: TaskSettings, examples: int) -> TrainingArguments:
    """The settings in Trainer's words; a checkpoint after each epoch, unless epochs are many."""
    batches = math.ceil(examples / (settings.batch * int(os.environ.get("WORLD_SIZE", "1"))))
    updates = math.ceil(batches / settings.accumulate)
    steps = max(1, math.ceil(settings.epochs * updates))
    return trainer_arguments(
        settings,
        steps,
        max(min(updates, steps), math.ceil(steps / MOST_CHECKPOINTS)),
        lr_scheduler_type=settings.schedule,
        save_total_limit=1,
        # A batch of one-window examples leaves the added weights without gradients.
        ddp_find_unused_parameters=True,
    )


def run_task(
    trainer: RecurrentTrainer,
    settings: TaskSettings,
    tokens: int,
    examples: int,
    show_progress: bool = True,
    progress_label: str = "",
) -> TrainOutcome:
    """Train to the end, going on from the newest whole checkpoint; `tokens` are those of all examples together."""
    per_step = round(tokens / examples) * settings.batch * settings.accumulate * trainer.args.world_size
    return run_to_end(
        trainer,
        settings,
        lambda steps: steps * per_step,
        first=[StopOnNonFinite()],
        show_progress=show_progress,
        progress_label=progress_label,
    )
