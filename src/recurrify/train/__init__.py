"""Training recurrent and plain models by the same path."""

from recurrify.train.checkpoints import last_whole_checkpoint
from recurrify.train.settings import TrainSettings
from recurrify.train.trainer import RecurrentTrainer, TrainOutcome, Validate, train, uses_bf16

__all__ = [
    "RecurrentTrainer",
    "TrainOutcome",
    "TrainSettings",
    "Validate",
    "last_whole_checkpoint",
    "train",
    "uses_bf16",
]
