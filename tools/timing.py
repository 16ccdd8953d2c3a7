"""Timing of kernels, for the scripts in this folder."""

import statistics
from collections.abc import Callable
from typing import Any

from recurrify_papers.graphs import as_graph, device_seconds


def in_a_graph(step: Callable[[], Any], calls: int = 1, rounds: int = 11) -> float:
    """The median milliseconds of a step among `calls` in one CUDA graph."""
    replay = as_graph(step, calls)
    return 1000 * statistics.median(device_seconds(replay) for _ in range(rounds)) / calls


def in_short(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:110]}"
