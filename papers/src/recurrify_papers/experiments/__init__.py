"""Published results by name: run ours, hold them against theirs."""

from recurrify_papers.experiments import (  # noqa: F401 - they register what they hold
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
from recurrify_papers.experiments.beyond import NAMES as BEYOND
from recurrify_papers.experiments.catalogue import EXPERIMENTS, Experiment, experiment_named
from recurrify_papers.experiments.lab import Lab
from recurrify_papers.experiments.running import run_experiments
from recurrify_papers.experiments.sizes import SIZES, Size, size_named

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
