"""Other processes, seen from a test."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path


def comes(condition: Callable[[], bool]) -> bool:
    """Whether it comes true within three minutes: a busy machine takes one to import twice."""
    for _ in range(1800):
        if condition():
            return True
        time.sleep(0.1)
    return False


def runs(process: int) -> bool:
    """And is not a mere entry that nobody has asked for its end yet."""
    try:
        return "State:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def ends_with_its_parent(program: str, folder: Path) -> bool:
    """Whether the process whose number a program writes to the file that it is given ends with that program, which is
    killed outright and can tell it nothing."""
    script, written = folder / "program.py", folder / "process"
    script.write_text(program)
    parent = subprocess.Popen([sys.executable, str(script), str(written)])
    try:
        # In one write so short there is no half of it to be read, but there may be none of it yet.
        assert comes(lambda: written.exists() and bool(written.read_text()))
        child = int(written.read_text())
        assert runs(child)
    finally:
        parent.kill()
        parent.wait()
    return comes(lambda: not runs(child))
