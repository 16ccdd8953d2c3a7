"""Ctrl-C while a training runs: the first one is noted, so that the step is finished and all is saved."""

import multiprocessing
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

Found = TypeVar("Found")
_heard_here = threading.Event()
"""Whether this process has heard it."""


class Interrupt:
    """The first Ctrl-C while listening is noted; a second one ends all at once."""

    def __init__(self) -> None:
        self.heard = False

    @contextmanager
    def listening(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield  # signals are for the main thread alone
            return
        before = signal.signal(signal.SIGINT, self._hear)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _hear(self, number: int, frame: Any) -> None:
        if self.heard:
            raise KeyboardInterrupt
        self.heard = True
        _heard_here.set()
        if multiprocessing.parent_process() is None:  # workers side by side hear it all at once
            print("stopping after this step and saving; Ctrl-C again stops at once", file=sys.stderr, flush=True)


def unless_interrupted(work: Callable[..., Found], *args: Any) -> Found | None:
    """For a pool's processes, to which it hands out one piece of work more than there are: after Ctrl-C nobody waits
    for that any more. None where it was not done."""
    if _heard_here.is_set():
        return None
    try:
        return work(*args)
    except KeyboardInterrupt:
        _heard_here.set()
        raise
