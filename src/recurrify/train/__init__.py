"""Training recurrent and plain models by the same path, and base models from scratch."""

from recurrify.train.answering import AnswerSettings, train_answerer
from recurrify.train.answering_run import answer_evaluate, answer_train
from recurrify.train.checkpoints import last_whole_checkpoint
from recurrify.train.finetuning import train_run
from recurrify.train.running import TrainOutcome, Validate, uses_bf16, uses_compile
from recurrify.train.settings import TrainSettings
from recurrify.train.trainer import RecurrentTrainer, train

__all__ = [
    "AnswerSettings",
    "RecurrentTrainer",
    "TrainOutcome",
    "TrainSettings",
    "Validate",
    "answer_evaluate",
    "answer_train",
    "last_whole_checkpoint",
    "train",
    "train_answerer",
    "train_run",
    "uses_bf16",
    "uses_compile",
]
