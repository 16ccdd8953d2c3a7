"""Training with Hugging Face's Trainer: fine-tuning on text, classification, question answering.

Names are imported when they are first used: settings and help need no torch.
"""

from typing import TYPE_CHECKING

from recurrify.lazy import lazily

if TYPE_CHECKING:
    from recurrify.train.answer import answer_evaluate, answer_train
    from recurrify.train.callbacks import seconds_trained
    from recurrify.train.checkpoints import finish_checkpoint, last_whole_checkpoint
    from recurrify.train.finetune import train, train_run
    from recurrify.train.loop import (
        TrainOutcome,
        Validate,
        ValidatingTrainer,
        compile_mode,
        run_to_end,
        trainer_arguments,
        uses_bf16,
    )
    from recurrify.train.memory import estimate_memory
    from recurrify.train.run_folder import earlier_result
    from recurrify.train.settings import AnswerSettings, ClassifySettings, TrainerSettings, TrainSettings

__all__ = [
    "AnswerSettings",
    "ClassifySettings",
    "TrainOutcome",
    "TrainSettings",
    "TrainerSettings",
    "Validate",
    "ValidatingTrainer",
    "answer_evaluate",
    "answer_train",
    "compile_mode",
    "earlier_result",
    "estimate_memory",
    "finish_checkpoint",
    "last_whole_checkpoint",
    "run_to_end",
    "seconds_trained",
    "train",
    "train_run",
    "trainer_arguments",
    "uses_bf16",
]

if not TYPE_CHECKING:  # or every name would seem to exist
    __getattr__ = lazily(__name__)
