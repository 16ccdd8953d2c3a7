"""Training a classifier of texts on Hugging Face's Trainer."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from torch.utils.data import Sampler

from recurrify.data.labelled_windows import GroupedByLength, collate_texts
from recurrify.errors import UserError
from recurrify.modeling.task_heads import RecurrentForSequenceClassification
from recurrify.train.running import TrainOutcome
from recurrify.train.settings import SCHEDULES
from recurrify.train.task import TaskSettings, run_task, task_arguments
from recurrify.train.trainer import RecurrentTrainer


@dataclass(frozen=True, kw_only=True)
class ClassifySettings(TaskSettings):
    """What a run that trains a classifier is told; without `test` a tenth of the texts is held out."""

    text_field: str = "text"
    """The column or field that holds the text."""
    label_field: str = "label"
    """The column or field that holds the class."""
    recurrence: dict[str, Any] = field(default_factory=lambda: {"mechanism": "carry"})
    """The mechanism and its settings, as RecurrenceConfig.to_dict writes them."""
    language_weight: float = 0.0
    """How many times the loss of predicting each next token is added to that of the classes; for decoders."""
    freeze_base: bool = False
    """Train only the head and what recurrence added."""

    def __post_init__(self) -> None:
        self.check({"language_weight": 0}, ("epochs", "added_learning_rate"))
        if not math.isfinite(self.language_weight):
            raise UserError(f"`language_weight` must be a number of at least 0: got {self.language_weight}.")
        self.check_choice("schedule", *SCHEDULES)
        if self.recurrence.get("mechanism") not in ("none", "kv") and self.recurrence.get("bptt_windows") == 1:
            raise UserError(
                "With bptt_windows=1 no gradient crosses from one window to the next, so the memory would learn "
                "nothing: take at least 2."
            )


class ClassifierTrainer(RecurrentTrainer):
    """Trainer whose batches hold texts of similar length, in an order that a resumed run finds again."""

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int]:
        texts = self.train_dataset if train_dataset is None else train_dataset
        return GroupedByLength(
            [len(text["input_ids"]) for text in texts], self.args.per_device_train_batch_size, self.args.seed
        )


def freeze_backbone(model: RecurrentForSequenceClassification) -> None:
    """Leave to training what was added and the head, which knows nothing yet; a pooler belongs to it."""
    for name, parameter in model.base.base_model.named_parameters():
        parameter.requires_grad_(name.startswith("pooler."))


def train_classifier(
    model: RecurrentForSequenceClassification,
    tokens: Sequence[np.ndarray],
    labels: np.ndarray,
    settings: ClassifySettings,
    tokenizer: Any,
    show_progress: bool = True,
    progress_label: str = "",
) -> TrainOutcome:
    """Train `model` in place, going on from the newest whole checkpoint in `settings.out` if there is one."""
    if settings.freeze_base:
        freeze_backbone(model)
    trainer = ClassifierTrainer(
        model=model,
        args=task_arguments(settings, len(tokens)),
        train_dataset=[{"input_ids": ids, "labels": label} for ids, label in zip(tokens, labels.tolist(), strict=True)],
        data_collator=partial(collate_texts, pad_token_id=tokenizer.pad_token_id),
        processing_class=tokenizer,
        validate=None,
        added_learning_rate=settings.added_learning_rate,
    )
    return run_task(trainer, settings, sum(map(len, tokens)), len(tokens), show_progress, progress_label)
