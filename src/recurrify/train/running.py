"""Old name of `recurrify.train.loop`; to be removed."""

from recurrify.train.loop import *  # noqa: F403
