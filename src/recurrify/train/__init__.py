"""Training recurrent and plain models by the same path, and base models from scratch."""

from recurrify.train.answering import AnswerSettings, train_answerer
from recurrify.train.checkpoints import last_whole_checkpoint
from recurrify.train.pretrain import Pace, PretrainOutcome, PretrainSettings, new_model, pretrain_model
from recurrify.train.running import TrainOutcome, Validate, uses_bf16, uses_compile
from recurrify.train.settings import TrainSettings
from recurrify.train.trainer import RecurrentTrainer, train

__all__ = [
    "AnswerSettings",
    "Pace",
    "PretrainOutcome",
    "PretrainSettings",
    "RecurrentTrainer",
    "TrainOutcome",
    "TrainSettings",
    "Validate",
    "last_whole_checkpoint",
    "new_model",
    "pretrain_model",
    "train",
    "train_answerer",
    "uses_bf16",
    "uses_compile",
]
