"""Training with Hugging Face's Trainer: fine-tuning on text, classification, question answering.

Names are imported when they are first used: settings and help need no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

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
    from recurrify.train.run_folder import earlier_result
    from recurrify.train.settings import AnswerSettings, ClassifySettings, TrainerSettings, TrainSettings

_HOMES = ("settings", "checkpoints", "callbacks", "loop", "run_folder", "finetune", "answer")
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
    "finish_checkpoint",
    "last_whole_checkpoint",
    "run_to_end",
    "seconds_trained",
    "train",
    "train_run",
    "trainer_arguments",
    "uses_bf16",
]


def _load(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    homes = (import_module(f"{__name__}.{home}") for home in _HOMES)
    value = globals()[name] = next(getattr(home, name) for home in homes if hasattr(home, name))
    return value


if not TYPE_CHECKING:
    __getattr__ = _load
