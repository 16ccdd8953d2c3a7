"""Old name of `recurrify.train.run_folder`; to be removed."""

from recurrify.train.run_folder import *  # noqa: F403
