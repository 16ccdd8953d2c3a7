"""Other processes, seen from a test."""

import socket
import time
from collections.abc import Callable
from pathlib import Path


def comes(condition: Callable[[], bool]) -> bool:
    """Whether it becomes true within three minutes: on a busy machine two imports take one minute."""
    for _ in range(1800):
        if condition():
            return True
        time.sleep(0.1)
    return False


def runs(process: int) -> bool:
    """Whether it runs; a zombie does not."""
    try:
        return "State:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return int(found.getsockname()[1])
