"""Run Python code in a process that ends when the one that started it is gone, however that ended.

Called by its path, with the parent's number, the code and its arguments: nothing is imported from the package, which
takes seconds to load, before the parent is watched.
"""

import os
import signal
import sys
import threading
import time

WATCH_SECONDS = 1.0
END_WITH_PARENT = 1
"""What Linux calls PR_SET_PDEATHSIG."""


def end_with_parent(parent: int) -> None:
    """From now on this process is killed when `parent` is gone; what trainings save is whole at any moment."""
    if not _ask_the_kernel():
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    if os.getppid() != parent:  # it ended before anybody was asked to tell
        os._exit(1)


def _ask_the_kernel() -> bool:
    """Whether Linux will see to it, which works even where no thread of Python gets its turn."""
    if sys.platform != "linux":
        return False
    import ctypes

    return bool(ctypes.CDLL(None).prctl(END_WITH_PARENT, signal.SIGKILL, 0, 0, 0) == 0)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(WATCH_SECONDS)
    os._exit(1)


def main() -> None:
    """As `python -c CODE ARGUMENTS`, but watched."""
    parent, code, *arguments = sys.argv[1:]
    end_with_parent(int(parent))
    sys.argv = ["-c", *arguments]
    sys.path[0] = ""  # not the folder of this file, whose names would hide others
    exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})


if __name__ == "__main__":
    main()
