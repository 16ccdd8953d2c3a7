"""Training recurrent and plain models by the same path, and base models from scratch."""

from recurrify.train.answering import AnswerSettings, train_answerer
from recurrify.train.checkpoints import last_whole_checkpoint
from recurrify.train.running import TrainOutcome, Validate, uses_bf16, uses_compile
from recurrify.train.settings import TrainSettings
from recurrify.train.trainer import RecurrentTrainer, train

__all__ = [
    "AnswerSettings",
    "RecurrentTrainer",
    "TrainOutcome",
    "TrainSettings",
    "Validate",
    "last_whole_checkpoint",
    "train",
    "train_answerer",
    "uses_bf16",
    "uses_compile",
]
