"""Old name of `recurrify.train.answer`; to be removed."""

from recurrify.train.answer import *  # noqa: F403
