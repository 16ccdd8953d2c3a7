"""The run lock: one process at a time trains in a folder. The system releases the lock of a killed process."""

import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:  # not on Windows, which has no such locks
    fcntl = None  # type: ignore[assignment]

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
    is_new = not folder.exists()
    with _locked(folder) as file:
        try:
            yield
        finally:
            if file is not None:
                with suppress(OSError):
                    (folder / LOCK_FILE).unlink()
                    if is_new:
                        folder.rmdir()  # fails unless the folder is empty


def _locked(folder: Path) -> IO[bytes] | nullcontext[None]:
    end, path = time.monotonic() + WAIT_SECONDS, folder / LOCK_FILE
    while True:
        with suppress(FileNotFoundError, NotADirectoryError):  # its owner may remove it at any time
            if not stat.S_ISREG(path.stat().st_mode):
                raise UserError(f"{path} is not a regular file: remove it.")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            file = path.open("ab")
        except OSError:  # the run itself reports a folder that it cannot write to
            return nullcontext()
        try:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(file, path):
                return file
        except BlockingIOError as error:
            if time.monotonic() > end:
                file.close()
                raise UserError(
                    f"Another process is training in {str(folder)!r}: wait until it ends, or stop it, then try again."
                ) from error
        except OSError:  # a file system without locks
            return file
        file.close()
        time.sleep(POLL_SECONDS)


def _is_at(file: IO[bytes], path: Path) -> bool:
    """Whether an open file still has its name; the previous owner of the lock removes it."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
