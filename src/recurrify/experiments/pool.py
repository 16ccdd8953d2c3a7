"""Units of work, one after another or several side by side on one device."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, NamedTuple

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from recurrify.console import err_console
from recurrify.experiments.unit import INTERRUPTED, Unit, do_unit
from recurrify.jobs import Say

POLL_SECONDS = 0.2
GRACE_SECONDS = 30.0
"""How long a stopped unit may take to save itself."""


@dataclass
class Running:
    unit: Unit
    process: subprocess.Popen[bytes]
    log: IO[bytes]

    def log_path(self) -> Path:
        return self.unit.folder / "logs" / f"{self.unit.name}.log"


class Outcome(NamedTuple):
    finished: bool
    """Whether nothing was left undone for want of time."""
    failures: list[str]
    """A sentence for each unit that failed."""


def do_units(units: Sequence[Unit], jobs: int, say: Say, deadline: float | None = None) -> Outcome:
    """Do what is not finished. `deadline` is a `time.monotonic()` at which to stop, saved.

    With one job everything runs in this process. With more, each unit gets a process of its own and a log file, and
    one that fails does not stop the others.
    """
    waiting = [unit for unit in units if not unit.is_finished()]
    if len(units) > len(waiting):
        say(f"{len(units) - len(waiting)} of {len(units)} runs are finished already")
    if not waiting:
        return Outcome(True, [])
    if jobs > 1:
        say(f"{len(waiting)} runs, {jobs} at a time; each writes a log in {waiting[0].folder / 'logs'}")
        return _side_by_side(waiting, jobs, say, deadline)
    for unit in waiting:
        if deadline is not None and time.monotonic() > deadline:
            return Outcome(False, [])
        if not do_unit(_until(unit, deadline), say):
            return Outcome(False, [])
    return Outcome(True, [])


def _until(unit: Unit, deadline: float | None) -> Unit:
    """The unit with what is left of the time as its own limit."""
    if deadline is None:
        return unit
    minutes = max((deadline - time.monotonic()) / 60, 0.01)
    return replace(unit, settings=replace(unit.settings, max_minutes=minutes))


@contextmanager
def _ending_in_order() -> Iterator[None]:
    """A request to end becomes an exception, so that the units are stopped too; left alone, it would orphan them."""
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


def _side_by_side(waiting: list[Unit], jobs: int, say: Say, deadline: float | None) -> Outcome:
    queue, stopped = list(waiting), False
    running: list[Running] = []
    failed: list[Running] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with _ending_in_order(), Progress(*columns, console=err_console, transient=True) as bar:
        task = bar.add_task("runs", total=len(waiting))
        try:
            while queue or running:
                if deadline is not None and time.monotonic() > deadline:
                    stopped = True
                    break
                while queue and len(running) < jobs:
                    running.append(_start(queue.pop(0), jobs))
                time.sleep(POLL_SECONDS)
                for done in [one for one in running if one.process.poll() is not None]:
                    running.remove(done)
                    done.log.close()
                    bar.advance(task)
                    if done.process.returncode == INTERRUPTED:
                        stopped = True
                    elif done.process.returncode:
                        failed.append(done)
                    say(f"{done.unit.name}: {'done' if not done.process.returncode else 'did not finish'}")
        finally:
            _stop(running)
    return Outcome(not stopped, [_failure(one) for one in failed])


def _failure(done: Running) -> str:
    lines = done.log_path().read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return f"{done.unit.name} ended with {lines[-1] if lines else 'no message'!r}, see {done.log_path()}"


def _start(unit: Unit, jobs: int) -> Running:
    path = unit.write()
    log = (unit.folder / "logs" / f"{unit.name}.log").open("ab")
    command = [sys.executable, "-c", "from recurrify.experiments.unit import main; main()", str(path)]
    # A session of its own: Ctrl-C reaches this process, which then stops the others in order.
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        # Processes that each take all cores for themselves are slower than one after another.
        env={"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // jobs)), **os.environ},
    )
    return Running(unit, process, log)


def _stop(running: Sequence[Running]) -> None:
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
