"""Ctrl-C and SIGTERM while a training runs: the first one is recorded, the step is finished and all is saved."""

import multiprocessing
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

Found = TypeVar("Found")
_heard_here = threading.Event()
"""Whether this process has heard it."""


@contextmanager
def answering_ctrl_c(answer: Callable[[int, Any], Any] | signal.Handlers, *others: signal.Signals) -> Iterator[None]:
    """Handle Ctrl-C, and the other signals, with `answer` in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, answer) for number in (signal.SIGINT, *others)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Interrupt:
    """The first Ctrl-C or SIGTERM while listening is recorded; a second one raises KeyboardInterrupt at once."""

    def __init__(self) -> None:
        self.heard = False

    def listening(self) -> AbstractContextManager[None]:
        return answering_ctrl_c(self._hear, signal.SIGTERM)

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
