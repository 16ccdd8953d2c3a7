"""Whole jobs, from names to result files: what the command line, the demo and the experiments call."""

from recurrify.jobs.answering import answer_evaluate, answer_predict, answer_train
from recurrify.jobs.evaluation import evaluation_rows, gain_row
from recurrify.jobs.finetuning import count_parameters, train_run
from recurrify.jobs.pretraining import pretrain
from recurrify.jobs.resuming import RESULT_FILE
from recurrify.jobs.scratch import score_stream, stream_for, train_scratch
from recurrify.jobs.texts import Say, cache_folder, pick_device, read_text, shorten
from recurrify.jobs.two_part import two_part_experiment
from recurrify.jobs.xlnet import XLNetMemory, load_xlnet, xlnet_run

__all__ = [
    "RESULT_FILE",
    "Say",
    "XLNetMemory",
    "answer_evaluate",
    "answer_predict",
    "answer_train",
    "cache_folder",
    "count_parameters",
    "evaluation_rows",
    "gain_row",
    "load_xlnet",
    "pick_device",
    "pretrain",
    "read_text",
    "score_stream",
    "shorten",
    "stream_for",
    "train_run",
    "train_scratch",
    "two_part_experiment",
    "xlnet_run",
]
