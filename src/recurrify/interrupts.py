"""Ctrl-C and the signals of batch systems while training: finish the step, save, and exit."""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

__all__ = ["CTRL_C", "TERMINATED", "Interrupt", "answering_ctrl_c", "interrupt_code", "last_signal", "stop_at_once"]

CTRL_C, TERMINATED = 130, 143
"""Exit codes of a run that was stopped and saved."""
NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
SIGNALS = [getattr(signal, name) for name in NAMES if hasattr(signal, name)]
_received: list[int] = []
"""The signals that this process received while training."""


def interrupt_code() -> int:
    """The exit code of a stopped run: 130 after Ctrl-C, else 143."""
    return CTRL_C if last_signal() in (None, signal.SIGINT) else TERMINATED


def stop_at_once(number: int, frame: Any) -> None:
    """The handler for work that keeps what it has: it ends as after Ctrl-C, with the exit code of its signal."""
    _received.append(number)
    raise KeyboardInterrupt


def last_signal() -> int | None:
    """The last signal that this process received while training."""
    return _received[-1] if _received else None


@contextmanager
def answering_ctrl_c(
    answer: Callable[[int, Any], Any] | signal.Handlers, signals: Sequence[int] = (signal.SIGINT,)
) -> Iterator[None]:
    """Handle these signals with `answer` meanwhile, if this is the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, answer) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Interrupt:
    """Records the first signal, so that the step ends and is saved; a second Ctrl-C raises `KeyboardInterrupt`.

    Batch systems send several signals before they kill.
    """

    def __init__(self) -> None:
        self.heard = False

    def listening(self) -> AbstractContextManager[None]:
        """Listen to signals meanwhile."""
        return answering_ctrl_c(self._hear, SIGNALS)

    def _hear(self, number: int, frame: Any) -> None:
        _received.append(number)
        if self.heard and number == signal.SIGINT:
            raise KeyboardInterrupt
        if not self.heard:
            self.heard = True
            with suppress(OSError):  # a signal may come while sys.stderr, which cannot be entered twice, is in use
                os.write(2, b"stopping after this step; Ctrl-C again stops at once\n")
