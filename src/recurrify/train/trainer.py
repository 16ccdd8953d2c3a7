"""Old name of `recurrify.train.finetune`; to be removed."""

from recurrify.train.finetune import *  # noqa: F403
from recurrify.train.loop import RecurrentTrainer as RecurrentTrainer
