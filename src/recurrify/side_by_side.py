"""Several processes side by side on one device: a log file and a folder for each, one end for all."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from recurrify import ending_with_parent
from recurrify.console import err_console
from recurrify.data.texts import Say
from recurrify.run_lock import run_lock as held_alone

__all__ = ["INTERRUPTED", "Outcome", "Task", "held_alone", "run_side_by_side"]
INTERRUPTED = 130
"""What a task exits with that was stopped before its end and is ready to go on."""
POLL_SECONDS = 0.2
GRACE_SECONDS = 30.0
"""How long a stopped task may take to save itself."""
NO_ROOM = ("out of memory", "ALLOC_FAILED", "mha_graph.execute")
"""What a log's last lines say where the device's memory was full; the last is how cuDNN's attention puts it."""
LAST_LINES = 8
"""As many as CUDA's errors take with the advice behind them."""


class Task(NamedTuple):
    """Something for a Python process of its own, which saves itself and ends when it is sent SIGINT."""

    name: str
    arguments: tuple[str, ...]
    """What Python is called with: `-c`, the code, and what the code finds in `sys.argv`."""
    log: Path
    least_minutes: float = 0.0
    """With less than that before the deadline it is not begun."""


class Outcome(NamedTuple):
    finished: bool
    """Whether nothing was left undone for want of time."""
    failures: list[str]
    """A sentence for each task that failed."""


@dataclass
class _Running:
    task: Task
    process: subprocess.Popen[bytes]
    log: IO[bytes]
    earlier: int
    """Bytes of the log that are from another time."""


def run_side_by_side(tasks: Sequence[Task], jobs: int, say: Say, deadline: float | None = None) -> Outcome:
    """Run every task, `jobs` at a time, until `deadline`, a `time.monotonic()`; one that fails does not stop others.

    One that finds no room in memory beside the others waits until they are done, and from then on fewer run at a time.
    """
    queue, stopped = list(tasks), False
    running: list[_Running] = []
    failed: list[_Running] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with _ending_in_order(), Progress(*columns, console=err_console, transient=True) as bar:
        row = bar.add_task("runs", total=len(tasks))
        try:
            while queue or running:
                if deadline is not None and time.monotonic() > deadline:
                    stopped = True
                    break
                while queue and len(running) < jobs:
                    task = queue.pop(0)
                    if deadline is not None and time.monotonic() + 60 * task.least_minutes > deadline:
                        stopped = True
                    else:
                        running.append(_start(task, jobs))
                time.sleep(POLL_SECONDS)
                for done in [one for one in running if one.process.poll() is not None]:
                    running.remove(done)
                    done.log.close()
                    if done.process.returncode and jobs > 1 and _had_no_room(done):
                        jobs = max(1, min(jobs - 1, len(running)))
                        queue.append(done.task)
                        say(f"{done.task.name}: no room in memory, tried again later; from now on {jobs} at a time")
                        continue
                    bar.advance(row)
                    if done.process.returncode == INTERRUPTED:
                        stopped = True
                    elif done.process.returncode:
                        failed.append(done)
                    say(f"{done.task.name}: {'done' if not done.process.returncode else 'did not finish'}")
        finally:
            _stop(running)
    return Outcome(not stopped, [_failure(one) for one in failed])


@contextmanager
def _ending_in_order() -> Iterator[None]:
    """A request to end becomes an exception, so that the tasks are stopped too; left alone, it would orphan them."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are for the main thread alone
        return

    def end(number: int, frame: Any) -> None:
        sys.exit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _what_happened(done: _Running) -> str:
    """The last line that names an error, which advice of several lines may follow; or else the last line."""
    said = done.task.log.read_bytes()[done.earlier :]
    lines = said.decode("utf-8", errors="replace").strip().splitlines()[-LAST_LINES:] or ["no message"]
    return next((line for line in reversed(lines) if re.match(r"[\w.]*(Error|Exception)\b", line)), lines[-1])


def _had_no_room(done: _Running) -> bool:
    told = _what_happened(done)
    return any(sign in told for sign in NO_ROOM)


def _failure(done: _Running) -> str:
    return f"{done.task.name} ended with {_what_happened(done)!r}, see {done.task.log}"


def _start(task: Task, jobs: int) -> _Running:
    task.log.parent.mkdir(parents=True, exist_ok=True)
    log = task.log.open("ab")
    earlier = log.tell()
    option, *code = task.arguments
    assert option == "-c", "only code can be watched"
    cores = str(max(1, (os.cpu_count() or 1) // jobs))
    # A session of its own: Ctrl-C reaches this process, which then stops the others in order.
    process = subprocess.Popen(
        [sys.executable, ending_with_parent.__file__, str(os.getpid()), *code],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        # Processes that each take all cores, to compute or to compile, are slower than one after another.
        env={"OMP_NUM_THREADS": cores, "TORCHINDUCTOR_COMPILE_THREADS": cores, **os.environ},
    )
    return _Running(task, process, log, earlier)


def _stop(running: Sequence[_Running]) -> None:
    for one in running:
        if one.process.poll() is None:
            one.process.send_signal(signal.SIGINT)
    end = time.monotonic() + GRACE_SECONDS
    for one in running:
        try:
            one.process.wait(timeout=max(end - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            one.process.kill()
            one.process.wait()
        one.log.close()
