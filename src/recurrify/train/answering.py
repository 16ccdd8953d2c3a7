"""Training a question answerer on Hugging Face's Trainer."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from transformers import TrainingArguments

from recurrify.data.question_windows import WindowedQuestion, collate_questions
from recurrify.recurrence import RecurrentForQuestionAnswering
from recurrify.train.callbacks import StopOnNonFinite
from recurrify.train.running import TrainOutcome, run_to_end, trainer_arguments
from recurrify.train.settings import SCHEDULES, TrainerSettings
from recurrify.train.trainer import RecurrentTrainer

MOST_CHECKPOINTS = 10
"""Written in the course of a run; only the newest is kept."""


@dataclass(frozen=True, kw_only=True)
class AnswerSettings(TrainerSettings):
    """The defaults are the paper's for HotpotQA."""

    model: str
    """The base: a Hugging Face name, a folder, or a question answerer to go on with."""
    data: str
    """Training questions: a SQuAD or a HotpotQA file."""
    test: str | None = None
    """Questions to answer and to score once training is over."""
    recurrence: dict[str, Any] = field(default_factory=dict)
    """The mechanism and its settings, as RecurrenceConfig.to_dict writes them."""
    questions: int | None = None
    """Train on so many questions, drawn at random; None: on all."""
    epochs: float = 4.0
    batch: int = 8
    """Questions in a step, per device."""
    learning_rate: float = 2e-5
    """For the base model's weights and its heads."""
    added_learning_rate: float | None = None
    """For the weights that recurrence added; None takes `learning_rate`."""
    schedule: str = "linear"
    """Learning rate after the warm-up: constant_with_warmup, linear or cosine."""
    longest_answer: int = 30
    """Tokens of the longest span that is predicted."""

    def __post_init__(self) -> None:
        self.check({"longest_answer": 1}, ("epochs", "added_learning_rate", "questions"))
        self.check_choice("schedule", *SCHEDULES)


def answering_arguments(settings: AnswerSettings, questions: int) -> TrainingArguments:
    """The settings in Trainer's words; a checkpoint after each epoch, unless epochs are many."""
    batches = math.ceil(questions / (settings.batch * int(os.environ.get("WORLD_SIZE", "1"))))
    updates = math.ceil(batches / settings.accumulate)
    steps = max(1, math.ceil(settings.epochs * updates))
    return trainer_arguments(
        settings,
        steps,
        max(min(updates, steps), math.ceil(steps / MOST_CHECKPOINTS)),
        lr_scheduler_type=settings.schedule,
        save_total_limit=1,
        # A batch of one-window contexts leaves the added weights without gradients.
        ddp_find_unused_parameters=True,
    )


def train_answerer(
    model: RecurrentForQuestionAnswering,
    questions: Sequence[WindowedQuestion],
    settings: AnswerSettings,
    tokenizer: Any = None,
    show_progress: bool = True,
    progress_label: str = "",
) -> TrainOutcome:
    """Train `model` in place, going on from the newest whole checkpoint in `settings.out` if there is one."""
    args = answering_arguments(settings, len(questions))
    per_epoch = sum(len(tokens) for question in questions for tokens in question.windows)
    per_question = round(per_epoch / len(questions))
    per_step = per_question * settings.batch * settings.accumulate
    pad = getattr(tokenizer, "pad_token_id", None) or 0
    trainer = RecurrentTrainer(
        model=model,
        args=args,
        train_dataset=list(questions),
        data_collator=partial(collate_questions, pad_token_id=pad, window=model.recurrence.window),
        processing_class=tokenizer,
        validate=None,
        added_learning_rate=settings.added_learning_rate,
    )
    return run_to_end(
        trainer,
        settings,
        lambda steps: steps * per_step,
        first=[StopOnNonFinite()],
        show_progress=show_progress,
        progress_label=progress_label,
    )
