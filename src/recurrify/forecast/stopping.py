"""What ends a training within an epoch: its time, or Ctrl-C. Either way the step is finished and all is saved."""

import math
import multiprocessing
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor


class Stop:
    """Asked before each step."""

    def __init__(self, deadline: float = math.inf) -> None:
        self.deadline = deadline
        """A `time.monotonic()`."""
        self.interrupted = False

    def is_due(self, total: Tensor, looks_at_clock: bool) -> bool:
        """Looking at the clock waits for the device, on which `total` is the last thing that was asked for."""
        if self.interrupted or not looks_at_clock or math.isinf(self.deadline):
            return self.interrupted
        total.item()
        return time.monotonic() > self.deadline

    @contextmanager
    def listening(self) -> Iterator[None]:
        """The first Ctrl-C is noted, and raised again when the caller has saved; a second one ends all at once."""
        # Signals are for the main thread alone, and whoever ignores or handles this one has a reason.
        in_main = threading.current_thread() is threading.main_thread()
        if not in_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            yield
            return
        before = signal.signal(signal.SIGINT, self._hear)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)
        if self.interrupted:
            raise KeyboardInterrupt

    def _hear(self, number: int, frame: Any) -> None:
        if self.interrupted:
            raise KeyboardInterrupt
        self.interrupted = True
        if multiprocessing.parent_process() is None:  # workers side by side hear it all at once
            print("stopping after this step and saving; Ctrl-C again stops at once", file=sys.stderr, flush=True)
