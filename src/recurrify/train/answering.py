"""Old name of `recurrify.train.answer`; to be removed."""

from recurrify.train.answer import *  # noqa: F403
from recurrify.train.settings import AnswerSettings as AnswerSettings
