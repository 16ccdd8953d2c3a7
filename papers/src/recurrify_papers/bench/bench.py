"""What every part of a benchmark is given: the size, the device, and the time that is left."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch

from recurrify_papers.bench.models import USUAL_KINDS
from recurrify_papers.bench.sizes import Size
from recurrify_papers.bench.timing import Turns

Say = Callable[[str], None]
Bar = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]
"""Opens a progress bar with a name and a total."""
WAYS = ("eager", "compiled", "graphs")


@dataclass
class Bench:
    size: Size
    device: torch.device
    say: Say
    bar: Bar
    deadline: float | None = None
    """By `time.monotonic()`."""
    ceiling: float | None = None
    """Measured floating-point operations per second of matrix products."""
    batches: tuple[int, ...] = ()
    """Of the size's, those that are measured."""
    ways: tuple[str, ...] = WAYS
    """In which training steps are timed."""
    kinds: tuple[str, ...] = USUAL_KINDS
    """Of ours, those that are trained and that score documents."""
    budgets: tuple[float, ...] = ()
    """Memory budgets below 1 in which compiled steps of the paper's mechanism are timed as well."""
    side_by_side: int = 1
    """Processes of one thread each in which steps are timed as well, as the demo trains; 1: nowhere."""
    only_checks: bool = False
    """Time nothing: what is compiled on the way is in the compiler's cache for those who do."""
    keep: Callable[[dict[str, Any]], None] = field(default=lambda result: None)
    """Saves what a part has so far."""

    def wants(self, kind: str, way: str) -> bool:
        """What graphs are held against is what transformers' own model has instead: it is compiled."""
        return way in self.ways or (kind == "transformers" and way == "compiled" and "graphs" in self.ways)

    def out_of_time(self) -> bool:
        return self.deadline is not None and time.monotonic() >= self.deadline

    def may_time(self) -> bool:
        return not (self.only_checks or self.out_of_time())

    def turns(self, advance: Callable[[int], None], warm_ups: int = 1, limited: bool = True) -> Turns:
        """`limited` ones end when the time does, and have none where only checks are asked for."""
        return Turns(self.device, self.size.rounds, lambda: limited and not self.may_time(), advance, warm_ups)

    def turns_of(self, entrants: int) -> int:
        """How often `turns` tells that it is a step further: memory is a turn of its own."""
        return entrants * (self.size.rounds + 1)

    def share(self, flops_per_second: float | None) -> float | None:
        if flops_per_second is None or self.ceiling is None:
            return None
        return flops_per_second / self.ceiling
