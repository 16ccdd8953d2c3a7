"""Old name of `recurrify.train.finetune`; to be removed."""

from recurrify.train.finetune import *  # noqa: F403
from recurrify.train.run_folder import check_vocabulary as check_vocabulary
from recurrify.train.run_folder import count_parameters as count_parameters
from recurrify.train.run_folder import explain_full_disk as explain_full_disk
