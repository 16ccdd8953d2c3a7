"""The run lock: one process at a time trains in a folder. The system releases the lock of a killed process."""

import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from recurrify.console import is_first
from recurrify.errors import UserError

__all__ = ["LOCK_FILE", "run_lock"]

LOCK_FILE = ".training.lock"
WAIT_SECONDS = 3.0
"""How long a killed process may take to release its lock."""
POLL_SECONDS = 0.2


@contextmanager
def run_lock(folder: str | Path) -> Iterator[None]:
    """Hold the lock of a run's folder; raises `UserError` if another process holds it.

    Of processes that train one model together the first takes the lock. The lock file is removed at the end, and the
    folder too if it is new and empty.
    """
    if not is_first():
        yield
        return
    folder = Path(folder)
    is_new, file, held = not folder.exists(), folder / LOCK_FILE, None
    with suppress(OSError):
        if not stat.S_ISREG(file.lstat().st_mode):
            raise UserError(f"{file} is not a regular file: remove it.")
    lock = FileLock(file, timeout=WAIT_SECONDS, poll_interval=POLL_SECONDS)
    with suppress(OSError):  # the run itself reports a folder that it cannot write to
        folder.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire()
        except Timeout as error:
            raise UserError(
                f"Another process is training in {str(folder)!r}: wait until it ends, or stop it, then try again."
            ) from error
        held = file.stat().st_ino
    try:
        yield
    finally:
        if lock.is_locked:
            with suppress(OSError):
                if file.stat().st_ino == held:  # not in another folder that has taken the place of ours
                    file.unlink()  # while it is locked: who waits for it takes a new file
                    if is_new:
                        folder.rmdir()  # fails unless the folder is empty
            lock.release()
