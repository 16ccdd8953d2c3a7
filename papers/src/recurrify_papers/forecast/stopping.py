"""What ends a training within an epoch: its time, or Ctrl-C. Either way the step is finished and all is saved."""

import math
import time

from torch import Tensor

from recurrify.interrupts import Interrupt


class Stop(Interrupt):
    """Asked before each step."""

    def __init__(self, deadline: float = math.inf) -> None:
        super().__init__()
        self.deadline = deadline
        """A `time.monotonic()`."""

    def is_due(self, total: Tensor, looks_at_clock: bool) -> bool:
        """Looking at the clock waits for the device, on which `total` is the last thing that was asked for."""
        if self.heard or not looks_at_clock or math.isinf(self.deadline):
            return self.heard
        total.item()
        return time.monotonic() > self.deadline
