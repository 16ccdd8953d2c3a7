"""Shared by everything that runs as CUDA graphs: warm-up and capture."""

import gc
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import torch

Found = TypeVar("Found")


def on_side_stream(step: Callable[[], Found]) -> Found:
    """Run a step on a side stream, as torch requires before the first capture."""
    side = _side_stream(torch.cuda.current_device())
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        found = step()
    torch.cuda.current_stream().wait_stream(side)
    return found


def capture(step: Callable[[], None], pool: Any = None) -> Callable[[], None]:
    """Record everything that a step launches, without running it; the returned function launches all of it.

    The step reads and writes tensors at fixed addresses. Graphs with the same `pool` share memory: results of one are
    valid until another is launched.
    """
    gc.collect()  # freeing garbage during a capture may synchronize, which ends the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, stream=_side_stream(torch.cuda.current_device())):
        step()
    replay: Callable[[], None] = graph.replay
    return replay


@cache
def _side_stream(device: int) -> torch.cuda.Stream:
    """One stream for warm-up and capture: every stream caches memory and library workspaces of its own."""
    return torch.cuda.Stream(device)
