"""What the scripts beside this one time kernels with."""

import statistics
from collections.abc import Callable
from typing import Any

import torch

from recurrify.capturing import capture, on_side_stream

WARM_UPS = 3


def as_graph(step: Callable[[], Any], calls: int = 1) -> Callable[[], None]:
    """`calls` of `step` captured once, to be replayed without Python."""
    for _ in range(WARM_UPS):
        on_side_stream(step)

    def all_calls() -> None:
        for _ in range(calls):
            step()

    return capture(all_calls)


def milliseconds(work: Callable[[], Any], calls: int = 1) -> float:
    """Of one of several calls in a row, by the device's own clock."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(calls):
        work()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / calls


def in_a_graph(step: Callable[[], Any], calls: int = 1, rounds: int = 11) -> float:
    """The median milliseconds of a step among `calls` in one CUDA graph."""
    replay = as_graph(step, calls)
    return statistics.median(milliseconds(replay) for _ in range(rounds)) / calls


def in_short(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:110]}"
