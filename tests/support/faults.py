"""Faults for whole commands: signals and full disks at any point, damaged files, and generated bad input.

A command runs in a forked process, which starts in milliseconds. Faults come from an audit hook, which Python calls
before it opens, renames or removes a file: none of recurrify's own functions is replaced.
"""

import errno
import hashlib
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from support.processes import become_a_program

EVENTS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.listdir", "os.scandir", "shutil.rmtree")
FULL = "full disk"
HANGS = -1000
"""The code of a command that did not end in time."""


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    """The exit code; minus the signal that ended it; HANGS."""
    said: str
    """What it wrote to standard output and error."""
    events: int
    """File-system events in its output folder."""

    @property
    def is_clean(self) -> bool:
        """Whether a user would call it orderly: done, one sentence, or stopped as asked."""
        return self.code in (0, 2, 130, 143) and "Traceback" not in self.said


def run_command(
    arguments: Sequence[object],
    folder: Path,
    fault: str | int | None = None,
    at: int = 0,
    seconds: float = 300.0,
    limits: Mapping[int, int] | None = None,
    after: float | None = None,
    environment: Mapping[str, str] | None = None,
    encoding: str = "utf-8",
) -> Ended:
    """Run `recurrify ARGUMENTS` in a forked process.

    Args:
        arguments: The command.
        folder: An existing folder for the count of its events.
        fault: A signal that the process sends itself, or FULL.
        at: The file-system event below `--out` before which the fault happens, counted from 1. A full disk stays full.
        seconds: After so long it hangs; a busy machine takes twenty times as long as a quiet one.
        limits: Limits of `resource.setrlimit`, by resource.
        after: Send the signal after so many seconds instead of at an event.
        environment: Variables of the process.
        encoding: The encoding of its standard output and error.
    """
    words = [str(argument) for argument in arguments]
    counted = folder / "events.txt"
    heard, spoken = os.pipe()  # a limit on the size of files does not hold for pipes
    os.set_blocking(heard, False)
    child = os.fork()
    if child == 0:
        code = 99
        try:
            os.environ.update(environment or {})
            code = _in_child(words, spoken, counted, fault if after is None else None, at, limits or {}, encoding)
        finally:
            os._exit(code)
    os.close(spoken)
    begun, sent, said = time.monotonic(), False, b""
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        with suppress(BlockingIOError):
            while part := os.read(heard, 2**16):
                said += part
        if done:
            break
        spent = time.monotonic() - begun
        if after is not None and spent > after and not sent:
            os.kill(child, int(fault or signal.SIGKILL))
            sent = True
        if spent > seconds:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            break
        time.sleep(0.01)
    os.close(heard)
    code = os.waitstatus_to_exitcode(status) if done else HANGS
    events = int(counted.read_text()) if counted.exists() else 0
    counted.unlink(missing_ok=True)
    return Ended(code, said.decode(errors="replace"), events)


def _in_child(
    words: list[str],
    spoken: int,
    counted: Path,
    fault: str | int | None,
    at: int,
    limits: Mapping[int, int],
    encoding: str,
) -> int:
    import resource
    import traceback

    from recurrify.cli.main import main

    become_a_program(spoken, spoken, encoding)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    out = _out_of(words)
    count = 0

    def hook(event: str, given: tuple[object, ...]) -> None:
        nonlocal count
        if event not in EVENTS or out is None or not str(given[0]).startswith(out):
            return
        count += 1
        if fault == FULL:
            writes = event in ("os.mkdir", "os.rename") or (event == "open" and set(str(given[1])) & set("wax+"))
            if count >= at and writes:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(given[0]))
        elif fault is not None and count == at:
            os.kill(os.getpid(), int(fault))

    for which, most in limits.items():
        resource.setrlimit(which, (most, resource.getrlimit(which)[1]))
    sys.addaudithook(hook)
    sys.argv = ["recurrify", *words]
    code = 98
    try:
        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    out = None
    counted.write_text(str(count))
    return code


def _out_of(words: Sequence[str]) -> str | None:
    return words[words.index("--out") + 1] if "--out" in words[:-1] else None


def contents(folder: Path, ignored: Callable[[Path], bool] = lambda path: False) -> dict[str, str]:
    """The SHA-256 of every regular file below a folder, by its path; other files by their kind."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if ignored(path):
            continue
        if path.is_file():
            found[str(path)] = hashlib.sha256(path.read_bytes()).hexdigest()
        elif not path.is_dir():
            found[str(path)] = f"special {path.lstat().st_mode}"
    return found


def damage(file: Path, chance: random.Random) -> str:
    """Truncate a file or flip one of its bits; returns what was done."""
    content = bytearray(file.read_bytes())
    if not content or chance.random() < 0.3:
        kept = chance.randrange(len(content) + 1)
        file.write_bytes(content[:kept])
        return f"{file.name} cut to {kept} bytes"
    place, bit = chance.randrange(len(content)), chance.randrange(8)
    content[place] ^= 1 << bit
    file.write_bytes(content)
    return f"{file.name} bit {bit} of byte {place} flipped"
