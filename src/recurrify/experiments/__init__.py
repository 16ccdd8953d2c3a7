"""Published results by name: run ours, hold them against theirs."""

from recurrify.experiments import complexity, lengths, texts, thesis, variants  # noqa: F401 - they register what they hold
from recurrify.experiments.catalogue import EXPERIMENTS, Experiment, experiment_named
from recurrify.experiments.lab import Lab
from recurrify.experiments.running import run_experiments
from recurrify.experiments.sizes import SIZES, Size, size_named

__all__ = ["EXPERIMENTS", "SIZES", "Experiment", "Lab", "Size", "experiment_named", "run_experiments", "size_named"]
