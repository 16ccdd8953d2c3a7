"""Waiting for other processes."""

import time
from collections.abc import Callable


def comes(condition: Callable[[], bool]) -> bool:
    """Whether it comes true within three minutes: a busy machine takes one to import twice."""
    for _ in range(1800):
        if condition():
            return True
        time.sleep(0.1)
    return False
