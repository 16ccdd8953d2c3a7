"""Old name of `recurrify.train.callbacks`; to be removed."""

from recurrify.train.callbacks import *  # noqa: F403
