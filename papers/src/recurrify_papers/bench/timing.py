"""Interleaved timings: every entrant runs once in every round, so that ratios are from one run."""

import gc
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.utils.benchmark import Timer

Row = dict[str, Any]
OUT_OF_MEMORY, WRONG = "out of memory", "wrong results"


class NotMeasuredError(Exception):
    """An entrant cannot run here; the message says why and becomes its `problem`."""


@dataclass
class Entrant:
    """Something that is timed."""

    name: str
    run: Callable[[], object]
    prepare: Callable[[], None] = lambda: None
    """Called before each of its turns: chooses how its model runs, or raises NotMeasuredError."""
    release: Callable[[], None] = lambda: None
    """Called after each of its turns: gives memory back."""
    reserved: bool = False
    """Count reserved memory: CUDA graphs own memory that is not allocated."""


@dataclass
class Timing:
    seconds: list[float] = field(default_factory=list)
    """One per round."""
    peak_bytes: int | None = None
    problem: str | None = None

    def rate(self, amount: float) -> float | None:
        """`amount` per second, by the median round."""
        return amount / statistics.median(self.seconds) if self.seconds else None


def interleave(entrants: Sequence[Entrant], rounds: int, device: torch.device) -> list[Timing]:
    """Time all entrants in turns. One that fails for an expected reason keeps that reason as its problem."""
    timings = [Timing() for _ in entrants]
    for _ in range(rounds):
        for entrant, timing in zip(entrants, timings, strict=True):
            if timing.problem is None:
                timing.problem = attempt(partial(_turn, entrant, timing, device), device)
                entrant.release()
    return timings


def _turn(entrant: Entrant, timing: Timing, device: torch.device) -> None:
    entrant.prepare()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    # Timer warms up, synchronizes CUDA and disables garbage collection.
    timing.seconds.append(Timer("run()", globals={"run": entrant.run}).timeit(1).mean)
    if device.type == "cuda":
        read = torch.cuda.max_memory_reserved if entrant.reserved else torch.cuda.max_memory_allocated
        timing.peak_bytes = max(timing.peak_bytes or 0, read(device))


def attempt(work: Callable[[], object], device: torch.device) -> str | None:
    """Do it; return why it failed if that is something a benchmark expects."""
    problem = None
    try:
        work()
    except Exception as error:
        problem = problem_of(error)
        if problem is None:
            raise
    if problem is not None:  # after `except`: the error holds on to what did not fit
        free_memory(device)
    return problem


def problem_of(error: Exception) -> str | None:
    text = (str(error).strip().splitlines() or [type(error).__name__])[0]
    if isinstance(error, NotMeasuredError):
        return text
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in text:
        return OUT_OF_MEMORY
    if type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
        return f"could not be compiled ({text[:120]})"
    return None


def free_memory(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def ratio(name: str, first: Iterable[float], second: Iterable[float]) -> list[Row]:
    """How many times as fast the first is as the second: the median over rounds and the range; empty without both."""
    rounds = [theirs / ours for ours, theirs in zip(first, second, strict=False)]
    if not rounds:
        return []
    return [{"name": name, "ratio": statistics.median(rounds), "low": min(rounds), "high": max(rounds)}]
