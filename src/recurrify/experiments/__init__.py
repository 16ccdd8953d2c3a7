"""Published results by name: run ours, hold them against theirs."""

from recurrify.experiments import (  # noqa: F401 - they register what they hold
    beyond_frozen,
    beyond_mechanisms,
    beyond_rotary,
    beyond_tokens,
    complexity,
    lengths,
    scratch,
    texts,
    thesis,
    unfamiliar,
    variants,
)
from recurrify.experiments.beyond import NAMES as BEYOND
from recurrify.experiments.catalogue import EXPERIMENTS, Experiment, experiment_named
from recurrify.experiments.lab import Lab
from recurrify.experiments.running import run_experiments
from recurrify.experiments.sizes import SIZES, Size, size_named

__all__ = [
    "BEYOND",
    "EXPERIMENTS",
    "SIZES",
    "Experiment",
    "Lab",
    "Size",
    "experiment_named",
    "run_experiments",
    "size_named",
]
