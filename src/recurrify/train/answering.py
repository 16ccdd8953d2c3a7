"""Training a question answerer on Hugging Face's Trainer."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from recurrify.data.question_windows import WindowedQuestion, collate_questions
from recurrify.modeling.task_heads import RecurrentForQuestionAnswering
from recurrify.train.running import TrainOutcome
from recurrify.train.settings import SCHEDULES
from recurrify.train.task import TaskSettings, run_task, task_arguments
from recurrify.train.trainer import RecurrentTrainer


@dataclass(frozen=True, kw_only=True)
class AnswerSettings(TaskSettings):
    """The defaults are the paper's for HotpotQA."""

    questions: int | None = None
    """Train on so many questions, drawn at random; None: on all."""
    epochs: float = 4.0
    learning_rate: float = 2e-5
    """For the base model's weights and its heads."""
    longest_answer: int = 30
    """Tokens of the longest span that is predicted."""

    def __post_init__(self) -> None:
        self.check({"longest_answer": 1}, ("epochs", "added_learning_rate", "questions"))
        self.check_choice("schedule", *SCHEDULES)


def train_answerer(
    model: RecurrentForQuestionAnswering,
    questions: Sequence[WindowedQuestion],
    settings: AnswerSettings,
    tokenizer: Any = None,
    show_progress: bool = True,
    progress_label: str = "",
) -> TrainOutcome:
    """Train `model` in place, going on from the newest whole checkpoint in `settings.out` if there is one."""
    pad = getattr(tokenizer, "pad_token_id", None) or 0
    trainer = RecurrentTrainer(
        model=model,
        args=task_arguments(settings, len(questions)),
        train_dataset=list(questions),
        data_collator=partial(collate_questions, pad_token_id=pad, window=model.recurrence.window),
        processing_class=tokenizer,
        validate=None,
        added_learning_rate=settings.added_learning_rate,
    )
    tokens = sum(len(window) for question in questions for window in question.windows)
    return run_task(trainer, settings, tokens, len(questions), show_progress, progress_label)
